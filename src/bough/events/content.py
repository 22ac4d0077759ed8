"""What people send besides text: read from a path, from bytes or from an address, within bounds, and looked at."""

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
"""Of one image or file; what is larger belongs in the workspace."""

Source: TypeAlias = "str | Path | bytes"
"""A URL (https:, http:, data:), a path, or the bytes themselves."""

IMAGES: Mapping[str, Callable[[bytes], bool]] = {
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data[:6] in (b"GIF87a", b"GIF89a"),
    "image/webp": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
}
"""The kinds of images that every provider takes, by how their bytes begin."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DATA_URL = re.compile(r"data:[^,]*,", re.IGNORECASE)
_MAX_DATA_URL = 3 * MAX_INPUT_BYTES
"""Characters: of bytes that are written as %XX."""

_FILES: Mapping[str, Callable[[bytes], bool]] = {
    "application/pdf": lambda data: data.startswith(b"%PDF-"),
    "audio/wav": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WAVE",
    "audio/mpeg": lambda data: data.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
}


@dataclass(frozen=True, kw_only=True)
class Input:
    """What was given: bytes or an address, and what it is called."""

    data: bytes | None = None
    url: str | None = None
    name: str | None = None


def read_input(source: Source, name: str | None) -> Input:
    """Return what `source` is. Reads a path, at most `MAX_INPUT_BYTES`; fetches no URL.

    Raises:
        InvalidInput: The path cannot be read, the URL is of no kind that can be, or nothing of the kind was given.
        LimitExceeded: It is too large.
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


def digest_of_bytes(data: bytes) -> str:
    """Return the name of bytes: their SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def image_type(data: bytes) -> str | None:
    """Return the media type of an image that models can see; None for anything else."""
    return next((kind for kind, looks in IMAGES.items() if looks(data)), None)


def file_type(data: bytes, name: str | None) -> str | None:
    """Return the media type of a document, a text or a sound that models can read; None for anything else."""
    if (found := next((kind for kind, looks in _FILES.items() if looks(data)), None)) is not None:
        return found
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
        with path.open("rb") as file:
            return _check_size(file.read(MAX_INPUT_BYTES + 1), str(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}", hint="give a path to a file") from error


def _check_size(data: bytes, what: str) -> bytes:
    if not data:
        raise InvalidInput(f"{what} is empty", hint="give an image or a file with something in it")
    if len(data) > MAX_INPUT_BYTES:
        raise _too_large(what, len(data))
    return data


def _too_large(what: str, size: int) -> LimitExceeded:
    return LimitExceeded(
        f"{what} has {size} bytes, more than {MAX_INPUT_BYTES}",
        hint="put it into the workspace and name it: FilePart(path=…)",
    )
