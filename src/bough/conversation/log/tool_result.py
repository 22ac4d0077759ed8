"""What a tool gave, in the form the log keeps: JSON, bounded, whole again when it is shown to the model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pydantic_core
from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ToolReturn, ToolReturnContent

from bough.errors import InvalidInput, NotFound
from bough.events.model import ToolFailed, ToolReturned
from bough.types import Json

if TYPE_CHECKING:
    from bough.events.store import EventStore

MAX_RESULT_BYTES = 1 << 20
"""A longer result keeps its beginning and its end."""

MAX_BINARY_BYTES = 16 << 20
"""Images and other files in a result may be this long together, base64; longer ones are left out."""

MAX_ENCODED_BYTES = 64 << 20
"""What is larger than that, or has more than `MAX_PARTS` parts, is refused before it is encoded."""

MAX_PARTS = 4_000_000

_CUT_LINE_CHARS = 160
"""Room for the line that stands for what is left out, at most."""

_UNCUT_TOOLS = frozenset({"load_skill"})
"""Instructions of a skill have a bound of their own, and are worth nothing in halves."""

_FILE_MARK = b'"kind":"binary"'

_CONTENT: TypeAdapter[Any] = TypeAdapter(
    ToolReturnContent, config=ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="utf8")
)
_PLAIN = (str, int, float, bool, type(None))


def encode_result(value: Any) -> Json:
    """Return a tool's result as JSON: files base64, NaN and infinities as text, what has no JSON form by its `repr`.

    Invalid text (lone surrogates) is replaced by U+FFFD. Content that a `ToolReturn` carries beside its value goes
    with the value; its metadata, which a model never sees, is not kept. O(size of what is kept) for a text of any
    length.

    Raises:
        InvalidInput: It is or holds an iterator, or is too large to be encoded.
    """
    value = _unwrap(value)
    if isinstance(value, str) and len(value) > MAX_RESULT_BYTES:
        return clean(shorten(value, MAX_RESULT_BYTES))
    if isinstance(value, bytes | bytearray) and len(value) > MAX_BINARY_BYTES:
        return _too_long(len(value))
    _check_size(value)
    data = _json(value)
    if len(data) <= MAX_RESULT_BYTES:
        return pydantic_core.from_json(data)
    if _FILE_MARK in data:
        return pydantic_core.from_json(data) if len(data) <= MAX_BINARY_BYTES else _omit_files(data)
    whole = pydantic_core.from_json(data) if data.startswith(b'"') else data.decode()
    return shorten(whole, MAX_RESULT_BYTES)


def is_small(value: Any) -> bool:
    """Whether encoding `value` takes no time to speak of, so that it needs no thread. O(1)."""
    match value:
        case None | bool() | int() | float():
            return True
        case str() | bytes():
            return len(value) < 1 << 16  # pyright: ignore[reportUnknownArgumentType]
        case dict() | list() | tuple():
            parts = cast("list[Any]", list(value.values() if isinstance(value, dict) else value)[:33])  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            return len(parts) < 33 and all(isinstance(item, _PLAIN) and is_small(item) for item in parts)
        case _:
            return False


def text_of(result: Json) -> str:
    """Return a result as the text a model reads: text as it is, anything else as JSON."""
    return result if isinstance(result, str) else pydantic_core.to_json(result).decode()


def limit_shown(outcome: ToolReturned | ToolFailed, max_chars: int) -> ToolReturned | ToolFailed:
    """Return the outcome with how much of it the model is shown, decided here once and for ever; files are not cut.

    Args:
        max_chars: What the model reads of it at most, the line about the rest included.
    """
    if outcome.tool in _UNCUT_TOOLS or outcome.shown is not None:
        return outcome
    if isinstance(outcome, ToolReturned) and isinstance(outcome.result, _PLAIN) and not isinstance(outcome.result, str):
        return outcome
    text = outcome.error if isinstance(outcome, ToolFailed) else text_of(outcome.result)
    holds_files = (
        isinstance(outcome, ToolReturned) and not isinstance(outcome.result, str) and _FILE_MARK.decode() in text
    )
    if len(text) <= max_chars or holds_files:
        return outcome
    return outcome.model_copy(update={"shown": max(0, max_chars - _CUT_LINE_CHARS)})


def cut_text(text: str, max_chars: int | None, event: UUID) -> str:
    """Return what the model is shown of a text: all of it, or its two ends with how to read what is between them."""
    if max_chars is None or len(text) <= max_chars:
        return text
    tail = max_chars // 2
    head = max_chars - tail
    omitted = f"{len(text) - max_chars:,} of {len(text):,} characters left out"
    line = f'[… {omitted}; read_result("{event.hex}", offset={head}, pattern=…)]'
    return f"{text[:head]}\n{line}\n{text[len(text) - tail :]}"


def show_result(outcome: ToolReturned) -> Any:
    """Return the content of a result as the model is shown it."""
    if outcome.shown is None:
        return decode_result(outcome.result)
    return cut_text(text_of(outcome.result), outcome.shown, outcome.id)


def decode_result(result: Json) -> Any:
    """Return a recorded result as PydanticAI knows it: files in it are files again."""
    return result if isinstance(result, _PLAIN) else _CONTENT.validate_python(result)


def shorten(text: str, max_chars: int) -> str:
    """Return the text, or its beginning and its end with a note of how much is missing between them."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clean(text: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD; they have no place in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unwrap(value: Any) -> Any:
    if not isinstance(value, ToolReturn):
        return value
    returned: Any = value.return_value  # pyright: ignore[reportUnknownMemberType]
    if not value.content:
        return returned
    return [returned, *([value.content] if isinstance(value.content, str) else value.content)]


def _check_size(value: Any) -> None:
    """Refuse what has no end, or too much of everything. O(parts), of which it looks at `MAX_PARTS` at most."""
    size = parts = 0
    visited: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        part = pending.pop()
        parts += 1
        match part:
            case str() | bytes() | bytearray():
                size += len(part)  # pyright: ignore[reportUnknownArgumentType]
            case Iterator() | AsyncIterator():
                kind = type(cast("object", part)).__name__
                raise InvalidInput(
                    f"a tool returned an iterator ({kind}), which may have no end",
                    hint="return a list: list(…), or its first items",
                )
            case Mapping() | list() | tuple() | set() | frozenset() if id(part) not in visited:  # pyright: ignore[reportUnknownArgumentType]
                visited.add(id(part))  # pyright: ignore[reportUnknownArgumentType]
                if len(part) <= MAX_PARTS:  # pyright: ignore[reportUnknownArgumentType]
                    pending.extend(part.values() if isinstance(part, Mapping) else part)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
                parts += len(part) if len(part) > MAX_PARTS else 0  # pyright: ignore[reportUnknownArgumentType]
            case _:
                pass
        if size > MAX_ENCODED_BYTES or parts > MAX_PARTS:
            raise InvalidInput(
                f"a tool returned more than {MAX_ENCODED_BYTES >> 20} MiB or {MAX_PARTS:,} parts",
                hint="return less of it, or write it into a file of the workspace and return the file's name",
            )


def _json(value: Any) -> bytes:
    try:
        return _CONTENT.dump_json(value)
    except (ValueError, RecursionError):  # no JSON form, bytes that are not text, invalid text
        pass
    try:
        return pydantic_core.to_json(value, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="strings")
    except (ValueError, RecursionError):
        pass
    try:
        return clean(json.dumps(value, ensure_ascii=False, default=repr)).encode()
    except (ValueError, TypeError, RecursionError):
        return json.dumps(clean(repr(value))).encode()


def _too_long(size_bytes: int) -> str:
    return f"[a result with files of {size_bytes} bytes was left out: at most {MAX_BINARY_BYTES} are kept]"


def _omit_files(data: bytes) -> Json:
    """Return a result whose files are too long: its text and its first files, and a note for each other file."""
    result = pydantic_core.from_json(data)
    room = MAX_BINARY_BYTES - (len(data) - sum(len(file["data"]) for file in _list_files(result)))

    def shrink(value: Any) -> Json:
        """Return the value with the files that fit."""
        nonlocal room
        if isinstance(value, list):
            return [shrink(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        if not _is_file(fields):
            return {key: shrink(item) for key, item in fields.items()}
        size = len(fields["data"])
        if size <= room:
            room -= size
            return fields
        kind = fields.get("media_type")
        return f"[a file of {size * 3 // 4} bytes ({kind}) was left out: at most {MAX_BINARY_BYTES} base64 are kept]"

    result = shrink(result)
    if next(_list_files(result), None) is not None:
        return result
    text = pydantic_core.to_json(result).decode()
    return result if len(text) <= MAX_RESULT_BYTES else shorten(text, MAX_RESULT_BYTES)


def _list_files(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the files in an encoded result."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _list_files(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if _is_file(fields):
            yield fields
        else:
            for item in fields.values():
                yield from _list_files(item)


def _is_file(value: Mapping[str, Any]) -> bool:
    """Whether an encoded value is a file's content."""
    return value.get("kind") == "binary" and isinstance(value.get("data"), str)


async def find_result(store: EventStore, cid: UUID, result: str) -> str:
    """Return the text of a result that a conversation has, shared ones of a fork included. Reads one row.

    Args:
        result: The id of its event, in hexadecimal.

    Raises:
        NotFound: The conversation has no such result.
    """
    unknown = NotFound(
        f"this conversation has no result {result[:64]!r}", hint="give the id in the line of what was left out"
    )
    try:
        _, seq = await store.locate(UUID(hex=result), cid=cid)
    except (ValueError, NotFound) as error:
        raise unknown from error
    async for stored in store.read(cid, seq, seq + 1):
        match stored.event:
            case ToolReturned(result=whole):
                return text_of(whole)
            case ToolFailed(error=whole):
                return whole
            case _:
                break
    raise unknown


def result_chars(result_tokens: int, model: Any) -> int:
    """Return how many characters of a result the model is shown: never more than an eighth of its window."""
    window = model.profile.get("context_window")
    return 4 * (result_tokens if window is None else min(result_tokens, window // 8))
