"""Results of tools: encoding as JSON of limited size for the log, and decoding for the model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import pydantic_core
from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import BinaryContent, ToolReturn, ToolReturnContent

from bough.conversation.log.result_files import is_file, list_files, replace_files
from bough.errors import InvalidInput, NotFound
from bough.events.model import ResultFile, ToolFailed, ToolReturned
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.events.store import EventStore

MAX_RESULT_BYTES = 1 << 20
"""Of a longer result only the beginning and the end are recorded."""

MAX_BINARY_BYTES = 16 << 20
"""The largest result with images or other files, in base64. Files that do not fit are left out; the text stays."""

MAX_ENCODED_BYTES = 64 << 20
"""A larger result, or one of more than `MAX_PARTS` parts, is refused before it is encoded."""

MAX_PARTS = 4_000_000

MAX_NOTES = 8
"""How many omitted files are replaced by a note each; one line counts the remaining omitted files of a list."""

_CUT_LINE_CHARS = 160
"""The greatest length of the line that replaces the omitted text."""

_UNCUT_TOOLS = frozenset({"load_skill"})
"""Tools whose results are not cut: instructions of a skill have another limit, and need their middle."""

_SMALL_CHARS = 1 << 16
_SMALL_PARTS = 32
LOST = "[what was sent here is not in this store]"
"""Shown to the model in place of bytes that the store does not have."""

_FILE_MARK = b'"kind":"binary"'
_FIELD_BYTES = 160
"""Room for the other fields of an encoded file."""

_REASON = f"at most {MAX_BINARY_BYTES} base64 are kept"

_CONTENT: TypeAdapter[Any] = TypeAdapter(
    ToolReturnContent, config=ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="utf8")
)
_PLAIN = (str, int, float, bool, type(None))


def encode_result(value: Any) -> Json:
    """Return a tool's result as JSON: files as base64, NaN and infinities as text, values without JSON form as `repr`.

    Lone surrogates are replaced by U+FFFD. The content of a `ToolReturn` is added to its value; its metadata is not
    recorded, because the model is never shown it. A text of any length costs O(length of what is recorded).

    Raises:
        InvalidInput: The result is or contains an iterator, or has too much text or too many parts to be encoded.
    """
    return _encode(value).result


def encode_with_files(value: Any) -> ToolResult:
    """Return a tool's result in the form of its event: JSON, and the files by digest. Raises: see `encode_result`."""
    encoded = _encode(value)
    return take_out_files(encoded.result) if encoded.may_have_files else ToolResult(encoded.result)


class ToolResult(NamedTuple):
    """An encoded result as an event has it: with digests in place of the bytes of its files."""

    result: Json
    files: tuple[ResultFile, ...] = ()


def take_out_files(result: Json) -> ToolResult:
    """Return an encoded result with digests in place of its files, and the files. O(parts), O(bytes) of files."""
    if isinstance(result, _PLAIN) or next(list_files(result), None) is None:
        return ToolResult(result)
    files: dict[str, ResultFile] = {}

    def take_out_bytes(fields: JsonObject) -> JsonObject:
        content = _CONTENT.validate_python(fields)
        if not isinstance(content, BinaryContent) or not content.data:
            return fields  # a tool's own object that only resembles a file
        file = ResultFile.of(content.data, content.media_type)
        files.setdefault(file.sha256, file)
        return fields | {"data": "", "sha256": file.sha256, "size_bytes": file.size_bytes}

    return ToolResult(replace_files(result, take_out_bytes), tuple(files.values()))


def is_small(value: Any) -> bool:
    """Whether `value` is encoded so quickly that no thread is needed. O(1)."""
    match value:
        case None | bool() | int() | float():
            return True
        case str() | bytes():
            return len(value) < _SMALL_CHARS  # pyright: ignore[reportUnknownArgumentType]
        case dict() | list() | tuple():
            parts = cast("list[Any]", list(value.values() if isinstance(value, dict) else value)[: _SMALL_PARTS + 1])  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            return len(parts) <= _SMALL_PARTS and all(isinstance(item, _PLAIN) and is_small(item) for item in parts)
        case _:
            return False


def format_result(result: Json) -> str:
    """Return a result as the text that the model reads: a text unchanged, any other value as JSON."""
    return result if isinstance(result, str) else pydantic_core.to_json(result).decode()


def limit_shown(outcome: ToolReturned | ToolFailed, max_chars: int) -> ToolReturned | ToolFailed:
    """Return the outcome with `shown` set if it is too long: how many characters of it the model is shown.

    This is decided once and recorded, so that every later request shows the same text. Results with files are not cut.

    Args:
        max_chars: The most the model is shown, including the line about the omitted text.
    """
    if outcome.tool in _UNCUT_TOOLS or outcome.shown is not None:
        return outcome
    if isinstance(outcome, ToolReturned) and isinstance(outcome.result, _PLAIN) and not isinstance(outcome.result, str):
        return outcome
    text = outcome.error if isinstance(outcome, ToolFailed) else format_result(outcome.result)
    has_files = (
        isinstance(outcome, ToolReturned) and not isinstance(outcome.result, str) and _FILE_MARK.decode() in text
    )
    if len(text) <= max_chars or has_files:
        return outcome
    return outcome.model_copy(update={"shown": max(0, max_chars - _CUT_LINE_CHARS)})


def cut_text(text: str, max_chars: int | None, event: UUID) -> str:
    """Return the text, or its beginning and its end with a line that says how to read the omitted middle.

    Args:
        max_chars: The length of the two ends together; None for the whole text.
        event: The id of the event that has the whole text.
    """
    if max_chars is None or len(text) <= max_chars:
        return text
    tail = max_chars // 2
    head = max_chars - tail
    omitted = f"{len(text) - max_chars:,} of {len(text):,} characters left out"
    line = f'[… {omitted}; read_result("{event.hex}", offset={head}, pattern=…)]'
    return f"{text[:head]}\n{line}\n{text[len(text) - tail :]}"


def show_result(outcome: ToolReturned, data_by_digest: Mapping[str, bytes] | None = None) -> Any:
    """Return the content of a result as the model is shown it, with PydanticAI's objects for files.

    Args:
        data_by_digest: Bytes of files from the store, for an event that was read from it. A file whose bytes are
            missing is replaced by the text `LOST`. None leaves files without bytes empty, if the content is not sent.
    """
    if outcome.shown is not None:
        return cut_text(format_result(outcome.result), outcome.shown, outcome.id)
    if isinstance(outcome.result, _PLAIN):
        return outcome.result
    return _CONTENT.validate_python(_with_bytes(outcome, data_by_digest) if outcome.files else outcome.result)


def _with_bytes(outcome: ToolReturned, data_by_digest: Mapping[str, bytes] | None) -> Any:
    """Return a result with the bytes of its files: those of its event, else those of `data_by_digest`."""
    carried = {file.sha256: file.content for file in outcome.files}

    def attach(fields: JsonObject) -> Any:
        digest = str(fields.get("sha256"))
        if digest not in carried:
            return fields
        data = carried[digest]
        if data is None and data_by_digest is not None:
            data = data_by_digest.get(digest)
            if data is None:
                return LOST
        tool_fields = {key: value for key, value in fields.items() if key not in ("sha256", "size_bytes")}
        return tool_fields | {"data": data or b""}

    return replace_files(outcome.result, attach)


def shorten(text: str, max_chars: int) -> str:
    """Return the text, or its beginning and its end with a note of how many characters are omitted."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clean(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Encoded(NamedTuple):
    result: Json
    may_have_files: bool = False


def _encode(value: Any) -> _Encoded:
    """See `encode_result`."""
    value = _unwrap(value)
    if isinstance(value, str) and len(value) > MAX_RESULT_BYTES:
        return _Encoded(clean(shorten(value, MAX_RESULT_BYTES)))
    if isinstance(value, bytes | bytearray) and len(value) > MAX_BINARY_BYTES:
        return _Encoded(_describe_omission(len(value)))
    data = _dump_json(_limit_files(value))
    may_have_files = _FILE_MARK in data
    if len(data) <= (MAX_BINARY_BYTES if may_have_files else MAX_RESULT_BYTES):
        return _Encoded(pydantic_core.from_json(data), may_have_files)
    if may_have_files:
        return _Encoded(_omit_files(data), may_have_files)
    text = pydantic_core.from_json(data) if data.startswith(b'"') else data.decode()
    return _Encoded(shorten(text, MAX_RESULT_BYTES))


def _unwrap(value: Any) -> Any:
    """Return the value of a `ToolReturn`, in a list with its content if it has any; any other value unchanged."""
    if not isinstance(value, ToolReturn):
        return value
    return_value: Any = value.return_value  # pyright: ignore[reportUnknownMemberType]
    if not value.content:
        return return_value
    contents = [value.content] if isinstance(value.content, str) else value.content
    return [return_value, *contents]


class _FileBudget:
    """The space that the files of a result may take, in base64; a file that does not fit is replaced by a note.

    Args:
        free_bytes: The space in bytes.
        measure: Returns the size in base64 and the media type of a file; None for any other value.
    """

    def __init__(self, free_bytes: int, measure: Callable[[Any], tuple[int, str] | None]) -> None:
        self._free_bytes = free_bytes
        self._measure = measure
        self._notes = 0

    def limit(self, value: Any) -> Any:
        """Return the value with the first files that fit, also within lists and mappings."""
        file = self._measure(value)
        if file is not None:
            return value if self._take(file[0]) else self._note(*file)
        if isinstance(value, list | tuple):
            return self._limit_items(cast("Sequence[Any]", value))
        if isinstance(value, dict):
            return {key: self.limit(item) for key, item in cast("dict[Any, Any]", value).items()}
        return value

    def _limit_items(self, items: Sequence[Any]) -> list[Any]:
        parts: list[Any] = []
        omitted_sizes: list[int] = []
        for item in items:
            file = self._measure(item)
            if file is None or self._take(file[0]):
                parts.append(self.limit(item) if file is None else item)
            elif self._notes < MAX_NOTES:
                parts.append(self._note(*file))
            else:
                omitted_sizes.append(file[0] * 3 // 4)
        if omitted_sizes:
            parts.append(f"[{len(omitted_sizes)} more files of {sum(omitted_sizes)} bytes were left out: {_REASON}]")
        return parts

    def _take(self, size: int) -> bool:
        needed = size + _FIELD_BYTES
        fits = needed <= self._free_bytes
        if fits:
            self._free_bytes -= needed
        return fits

    def _note(self, size: int, media_type: str) -> str:
        self._notes += 1
        return f"[a file of {size * 3 // 4} bytes ({media_type}) was left out: {_REASON}]"


def _limit_files(value: Any) -> Any:
    """Return the value without the files that exceed the bound. They are left out before encoding, to save memory.

    Raises:
        InvalidInput: The value is refused: an iterator, or too much text or too many parts.
    """
    text_bytes, file_bytes = _measure_parts(value)
    if file_bytes * 4 // 3 <= MAX_BINARY_BYTES:
        return value

    def measure(part: Any) -> tuple[int, str] | None:
        return (-(-len(part.data) // 3) * 4, part.media_type) if isinstance(part, BinaryContent) else None

    try:
        return _FileBudget(MAX_BINARY_BYTES - text_bytes, measure).limit(value)
    except RecursionError as error:
        raise _make_too_large_error() from error


def _make_too_large_error() -> InvalidInput:
    return InvalidInput(
        f"a tool returned more than {MAX_ENCODED_BYTES >> 20} MiB or {MAX_PARTS:,} parts",
        hint="return less of it, or write it into a file of the workspace and return the file's name",
    )


def _measure_parts(value: Any) -> tuple[int, int]:
    """Return the bytes of the texts and the bytes of the files of a value. O(parts), at most `MAX_PARTS`.

    Raises:
        InvalidInput: It is or contains an iterator, or has too much text or too many parts.
    """
    size = parts = file_bytes = 0
    visited: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        part = pending.pop()
        parts += 1
        match part:
            case str() | bytes() | bytearray():
                size += len(part)  # pyright: ignore[reportUnknownArgumentType]
            case BinaryContent():
                file_bytes += len(part.data)
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
            raise _make_too_large_error()
    return size, file_bytes


def _dump_json(value: Any) -> bytes:
    """Return a value as JSON, by the first of four encoders that accepts it. The last one accepts everything."""
    try:
        return _CONTENT.dump_json(value)
    except (ValueError, RecursionError):  # a value without JSON form, bytes that are not UTF-8, a lone surrogate
        pass
    try:
        return pydantic_core.to_json(value, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="strings")
    except (ValueError, RecursionError):
        pass
    try:
        return clean(json.dumps(value, ensure_ascii=False, default=repr)).encode()
    except (ValueError, TypeError, RecursionError):
        return json.dumps(clean(repr(value))).encode()


def _describe_omission(size_bytes: int) -> str:
    return f"[a result with files of {size_bytes} bytes was left out: at most {MAX_BINARY_BYTES} are kept]"


def _omit_files(data: bytes) -> Json:
    """Return an encoded result with the first files that fit. Every other file is replaced by a note."""
    result = pydantic_core.from_json(data)
    text_size = len(data) - sum(len(file["data"]) for file in list_files(result))

    def measure(value: Any) -> tuple[int, str] | None:
        if not isinstance(value, dict) or not is_file(cast("dict[str, Any]", value)):
            return None
        fields = cast("dict[str, Any]", value)
        return len(fields["data"]), str(fields.get("media_type"))

    result = _FileBudget(MAX_BINARY_BYTES - text_size, measure).limit(result)
    if next(list_files(result), None) is not None:
        return result
    text = pydantic_core.to_json(result).decode()
    return result if len(text) <= MAX_RESULT_BYTES else shorten(text, MAX_RESULT_BYTES)


async def find_result(store: EventStore, cid: UUID, result: str) -> str:
    """Return the text of a result of a conversation, also if a fork shares its event with the source. Reads one row.

    Args:
        result: The id of the result's event, in hexadecimal.

    Raises:
        NotFound: The conversation has no such result.
    """
    unknown = NotFound(
        f"this conversation has no result {result[:64]!r}", hint="give the id in the line about the omitted characters"
    )
    try:
        _, seq = await store.locate(UUID(hex=result), cid=cid)
    except (ValueError, NotFound) as error:
        raise unknown from error
    async for stored in store.read(cid, seq, seq + 1):
        match stored.event:
            case ToolReturned(result=recorded):
                return format_result(recorded)
            case ToolFailed(error=error_text):
                return error_text
            case _:
                break
    raise unknown


def result_chars(result_tokens: int, model: Any) -> int:
    """Return how many characters of a result the model is shown: 4 per token, and at most an eighth of its window."""
    window = model.profile.get("context_window")
    max_tokens = result_tokens if window is None else min(result_tokens, window // 8)
    return 4 * max_tokens
