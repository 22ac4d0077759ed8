"""What a tool gave, in the form the log keeps: JSON, bounded, whole again when it is shown to the model."""

from __future__ import annotations

import json
from typing import Any

import pydantic_core
from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ToolReturn, ToolReturnContent

from bough.types import Json

MAX_RESULT_BYTES = 1 << 20
"""A longer result keeps its beginning and its end."""

MAX_BINARY_BYTES = 16 << 20
"""Images and other files in a result may be this long together, base64; longer ones are left out."""

_CONTENT: TypeAdapter[Any] = TypeAdapter(
    ToolReturnContent, config=ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="utf8")
)
_PLAIN = (str, int, bool, type(None))


def recorded(value: Any) -> Json:
    """Return a tool's result as JSON: files base64, NaN and infinities as text, what has no JSON form by its `repr`.

    Invalid text (lone surrogates) is replaced by U+FFFD. Content that a `ToolReturn` carries beside its value goes
    with the value; its metadata, which a model never sees, is not kept.
    """
    data = _json(_unwrapped(value))
    if len(data) <= MAX_RESULT_BYTES:
        return pydantic_core.from_json(data)
    if b'"kind":"binary"' in data:
        return pydantic_core.from_json(data) if len(data) <= MAX_BINARY_BYTES else _too_long(len(data))
    whole = pydantic_core.from_json(data) if data.startswith(b'"') else data.decode()
    return shortened(whole, MAX_RESULT_BYTES)


def restored(result: Json) -> Any:
    """Return a recorded result as PydanticAI knows it: files in it are files again."""
    return result if isinstance(result, _PLAIN) else _CONTENT.validate_python(result)


def shortened(text: str, max_chars: int) -> str:
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


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, ToolReturn):
        return value
    returned: Any = value.return_value  # pyright: ignore[reportUnknownMemberType]
    if not value.content:
        return returned
    return [returned, *([value.content] if isinstance(value.content, str) else value.content)]


def _json(value: Any) -> bytes:
    try:
        return _CONTENT.dump_json(value)
    except (ValueError, RecursionError):  # no JSON form, bytes that are no text, invalid text
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
