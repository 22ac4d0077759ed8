"""Read images and files that users send, from a path, bytes or a URL, and detect their media type."""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from bough.errors import InvalidInput, LimitExceeded

MAX_INPUT_BYTES = 20 << 20
"""Maximum size of an image or file. Larger files belong in the workspace."""

Source: TypeAlias = "str | Path | bytes"
"""A URL (https:, http:, data:), a path, or the bytes themselves."""

IMAGES: Mapping[str, Callable[[bytes], bool]] = {
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data[:6] in (b"GIF87a", b"GIF89a"),
    "image/webp": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
}
"""Image types that every provider accepts, with a test of the first bytes."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DATA_URL = re.compile(r"data:[^,]*,", re.IGNORECASE)
_MAX_DATA_URL = 3 * MAX_INPUT_BYTES
"""Maximum characters: bytes may be written as %XX."""

_FILES: Mapping[str, Callable[[bytes], bool]] = {
    "application/pdf": lambda data: data.startswith(b"%PDF-"),
    "audio/wav": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WAVE",
    "audio/mpeg": lambda data: data.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
}


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input: its bytes or its URL, and its name."""

    data: bytes | None = None
    url: str | None = None
    name: str | None = None


def read_input(source: Source, name: str | None) -> Input:
    """Return the bytes or the URL of `source`. Reads at most `MAX_INPUT_BYTES` of a path; fetches no URL.

    Raises:
        InvalidInput: The path cannot be read, the URL has another scheme, or `source` is neither path, bytes nor URL.
        LimitExceeded: The input is too large.
    """
    match source:
        case bytes():
            return Input(data=_check_size(source, "the input"), name=name)
        case str() if _DATA_URL.match(source):
            return Input(data=_decode_data_url(source), name=name)
        case str() if (scheme := _SCHEME.match(source)) is not None:
            if scheme[1].lower() not in ("http", "https"):
                raise InvalidInput(f"a URL of {scheme[1].lower()}: cannot be fetched", hint="give an https: URL")
            return Input(url=source, name=name)
        case str() | os.PathLike():
            path = Path(source).expanduser()
            return Input(data=_read(path), name=name or path.name)
        case _:  # pyright: ignore[reportUnnecessaryComparison] - not everyone checks types
            raise InvalidInput(f"a {type(source).__name__} is not an image or file", hint="give a path, bytes or a URL")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal, by which events refer to them."""
    return hashlib.sha256(data).hexdigest()


def image_type(data: bytes) -> str | None:
    """Return the media type of an image that models accept; None for anything else."""
    return next((kind for kind, matches in IMAGES.items() if matches(data)), None)


def file_type(data: bytes, name: str | None) -> str | None:
    """Return the media type of a document, text or sound that models accept; None for anything else."""
    media_type = next((kind for kind, matches in _FILES.items() if matches(data)), None)
    if media_type is not None:
        return media_type
    guessed = mimetypes.guess_type(name or "")[0] or "text/plain"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "\x00" in text:
        return None
    return guessed if guessed.startswith("text/") else "text/plain"


def _decode_data_url(url: str) -> bytes:
    head, _, text = url.partition(",")
    if len(text) > _MAX_DATA_URL:
        raise _too_large("the data: URL", len(text) * 3 // 4)
    data = unquote_to_bytes(text)
    if head.lower().endswith(";base64"):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise InvalidInput("the data: URL is not base64", hint="data:image/png;base64,…") from error
    return _check_size(data, "the data: URL")


def _read(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > MAX_INPUT_BYTES:
            raise _too_large(str(path), size)
        with path.open("rb") as file:  # one byte more than allowed, so that a file that grew since `stat` is refused
            return _check_size(file.read(MAX_INPUT_BYTES + 1), str(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}", hint="give a path to a file") from error


def _check_size(data: bytes, source_name: str) -> bytes:
    """Return the bytes unless there are none or too many."""
    if not data:
        raise InvalidInput(f"{source_name} is empty", hint="give an image or a file that is not empty")
    if len(data) > MAX_INPUT_BYTES:
        raise _too_large(source_name, len(data))
    return data


def _too_large(source_name: str, size: int) -> LimitExceeded:
    return LimitExceeded(
        f"{source_name} has {size} bytes, more than {MAX_INPUT_BYTES}",
        hint="put it into the workspace and name it: FilePart(path=…)",
    )
