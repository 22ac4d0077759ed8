"""Images and files in results of tools.

An encoded file is an object `{"kind": "binary", "data": …, "media_type": …}`, as PydanticAI writes it. In an event
`data` is empty, and `sha256` names the bytes, which are in `ToolReturned.files` until the store has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from bough.events.model import ResultFile, ToolReturned
from bough.guard import Masker
from bough.types import Json, JsonObject


def is_file(value: Mapping[str, Any]) -> bool:
    """Whether an object of a result is an encoded file."""
    return value.get("kind") == "binary" and isinstance(value.get("data"), str)


def list_files(result: Json) -> Iterator[JsonObject]:
    """Yield the encoded files of a result, in the order of the result. O(parts)."""
    match result:
        case list():
            for item in cast("list[Json]", result):
                yield from list_files(item)
        case dict():
            fields = cast("JsonObject", result)
            if is_file(fields):
                yield fields
            else:
                for item in fields.values():
                    yield from list_files(item)
        case _:
            pass


def replace_files(result: Json, replace: Callable[[JsonObject], Any]) -> Any:
    """Return a copy of the result in which each encoded file is replaced by `replace(file)`. O(parts)."""
    match result:
        case list():
            return [replace_files(item, replace) for item in cast("list[Json]", result)]
        case dict():
            fields = cast("JsonObject", result)
            if is_file(fields):
                return replace(fields)
            return {key: replace_files(item, replace) for key, item in fields.items()}
        case _:
            return result


def mask_files(masker: Masker, event: ToolReturned) -> ToolReturned:
    """Return the event with the secrets in the bytes of its files masked. A masked file gets a new digest. O(bytes)."""
    masked: dict[str, ResultFile] = {}
    for file in event.files:
        data = None if file.content is None else masker.data(file.content)
        masked[file.sha256] = file if data is None or data == file.content else ResultFile.of(data, file.media_type)
    if all(file.sha256 == digest for digest, file in masked.items()):
        return event

    def rename(fields: JsonObject) -> JsonObject:
        file = masked.get(str(fields.get("sha256")))
        return fields if file is None else fields | {"sha256": file.sha256, "size_bytes": file.size_bytes}

    files = {file.sha256: file for file in masked.values()}
    return event.model_copy(update={"result": replace_files(event.result, rename), "files": tuple(files.values())})
