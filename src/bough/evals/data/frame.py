"""Messages between a query process and its parent: JSON behind its length, on pipes of their own."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from bough.types import JsonObject

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")


def write_frame(fd: int, message: JsonObject) -> None:
    """Write one message whole.

    Raises:
        OSError: The other side is gone.
    """
    body = json.dumps(message, default=str).encode()
    data = memoryview(_LENGTH.pack(len(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


def read_frame(fd: int) -> JsonObject:
    """Read one message.

    Raises:
        EOFError: The other side is gone.
        ValueError: It is not one.
    """
    (size,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {size} bytes")
    found: Any = json.loads(_read_exactly(fd, size))
    if not isinstance(found, dict):
        raise ValueError("the message is not an object")  # noqa: TRY004 - what it holds is wrong, not its type
    return found  # pyright: ignore[reportUnknownVariableType]


def _read_exactly(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
