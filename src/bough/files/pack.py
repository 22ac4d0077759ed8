"""Packs of git objects: written, read and copied without deltas.

A pack is two files, `pack-<hash>.pack` with the objects and `pack-<hash>.idx` with their positions. The index is
written last, so a pack exists as soon as its index does. Source: git's `gitformat-pack`, version 2.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from bough.errors import CorruptLog
from bough.tree import open_descriptor

TREE_KIND: Final = 2
BLOB_KIND: Final = 3
TEMPORARY: Final = "tmp_"
"""Prefix of the name of a file until it is complete."""

MAX_PACK_BYTES: Final = 1 << 30
"""A pack of this size takes no more objects, so that every position fits the 31 bits of the index."""

_KIND_NAMES: Final = {TREE_KIND: b"tree", BLOB_KIND: b"blob"}
_IDX_HEADER: Final = b"\377tOc\0\0\0\2"
_FAN_OUT: Final = len(_IDX_HEADER)
_IDS: Final = _FAN_OUT + 256 * 4
_BUFFER_BYTES: Final = 4 << 20
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_HASH_BYTES: Final = 20


class StoredObject(NamedTuple):
    """An object: its kind (`TREE_KIND` or `BLOB_KIND`) and its content."""

    kind: int
    data: bytes


class Position(NamedTuple):
    """Where an object is in a pack: its offset, its length there, and the CRC of those bytes."""

    offset: int
    length: int
    crc: int


def hash_object(kind: int, data: bytes) -> bytes:
    """Return git's id of an object, 20 bytes."""
    digest = hashlib.sha1(b"%s %d\0" % (_KIND_NAMES[kind], len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.digest()


def pack_object(kind: int, data: bytes) -> bytes:
    """Return an object as it is stored in a pack."""
    size, header = len(data) >> 4, bytearray([kind << 4 | len(data) & 15])
    while size:
        header[-1] |= 128
        header.append(size & 127)
        size >>= 7
    return bytes(header) + zlib.compress(data, 1)


class _Header(NamedTuple):
    kind: int
    size: int
    length: int


def _parse_header(packed: bytes) -> _Header:
    """Return kind and size of a packed object, and the length of its header."""
    kind, size, shift, length = packed[0] >> 4 & 7, packed[0] & 15, 4, 1
    while packed[length - 1] & 128:
        size |= (packed[length] & 127) << shift
        shift += 7
        length += 1
    return _Header(kind, size, length)


def unpack_object(oid: bytes, packed: bytes) -> StoredObject | None:
    """Return an object from its bytes in a pack; None if they are damaged or have another id."""
    try:
        header = _parse_header(packed)
        inflater = zlib.decompressobj()
        data = inflater.decompress(packed[header.length :], header.size + 1)
    except (IndexError, zlib.error):
        return None
    if header.kind not in _KIND_NAMES or len(data) != header.size or hash_object(header.kind, data) != oid:
        return None
    return StoredObject(header.kind, data)


class Pack:
    """A complete pack. Its index is in memory, and its objects are read from the file; threads may share it.

    Args:
        index_path: The `.idx` file.

    Raises:
        CorruptLog: The index is damaged.
        OSError: A file is missing or cannot be read.
    """

    def __init__(self, index_path: Path) -> None:
        self.index_path = index_path
        self.path = index_path.with_suffix(".pack")
        self._index = index_path.read_bytes()
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size
        digest = hashlib.sha1(self._index[:-_HASH_BYTES], usedforsecurity=False).digest()
        if not self._index.startswith(_IDX_HEADER) or digest != self._index[-_HASH_BYTES:]:
            self.close()
            raise CorruptLog(
                f"the index of a pack is damaged: {index_path.name}",
                details={"pack": str(index_path)},
                hint=REPAIR_HINT,
            )
        self._fan_out: tuple[int, ...] = struct.unpack_from(">256I", self._index, _FAN_OUT)
        self.count = self._fan_out[255]

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _id_at(self, number: int) -> bytes:
        return self._index[_IDS + _HASH_BYTES * number : _IDS + _HASH_BYTES * (number + 1)]

    def _find(self, oid: bytes) -> int | None:
        low = self._fan_out[oid[0] - 1] if oid[0] else 0
        high = self._fan_out[oid[0]]
        number = bisect_left(range(high), oid, low, high, key=self._id_at)
        return number if number < high and self._id_at(number) == oid else None

    def __contains__(self, oid: bytes) -> bool:
        return self._find(oid) is not None

    @cached_property
    def _ends(self) -> dict[int, int]:
        """For the offset of each object, the offset at which it ends."""
        offsets = sorted(struct.unpack_from(f">{self.count}I", self._index, _IDS + 24 * self.count))
        return dict(zip(offsets, [*offsets[1:], self.size_bytes - _HASH_BYTES], strict=True))

    def _position(self, number: int) -> Position:
        crc = struct.unpack_from(">I", self._index, _IDS + _HASH_BYTES * self.count + 4 * number)[0]
        offset = struct.unpack_from(">I", self._index, _IDS + 24 * self.count + 4 * number)[0]
        return Position(offset, max(0, self._ends[offset] - offset), crc)

    def read_packed(self, oid: bytes) -> bytes | None:
        """Return the bytes of an object as they are stored; None if the pack does not have it, or has damaged bytes."""
        number = self._find(oid)
        if number is None:
            return None
        position = self._position(number)
        packed = os.pread(self._fd, position.length, position.offset)
        return packed if zlib.crc32(packed) == position.crc else None

    def read_size(self, oid: bytes) -> int | None:
        """Return the size of an object without reading it all; None if the pack does not have it."""
        number = self._find(oid)
        if number is None:
            return None
        offset = struct.unpack_from(">I", self._index, _IDS + 24 * self.count + 4 * number)[0]
        header = os.pread(self._fd, 16, offset)
        return _parse_header(header).size if len(header) == 16 else None

    def list_ids(self) -> Iterator[tuple[bytes, int]]:
        """Yield each object's id and its length in the pack, in the order of the file. O(objects)."""
        positions = [(self._position(number), number) for number in range(self.count)]
        for position, number in sorted(positions):
            yield self._id_at(number), position.length

    def is_intact(self) -> bool:
        """Whether the file has the hash with which it ends. O(bytes)."""
        end = self.size_bytes - _HASH_BYTES
        return os.pread(self._fd, _HASH_BYTES, end) == _hash_file(self._fd, end)

    def remove(self) -> None:
        """Remove the files. Another process that has them open can still read them."""
        # The index first: a pack without an index is not used, an index without its pack would be an error.
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


REPAIR_HINT: Final = (
    "`bough doctor --repair` saves what is whole; the rest is in a backup of the folder, if there is one"
)


class PackWriter:
    """A new pack, written to a temporary file until `finish`. Not for several threads at once.

    Args:
        folder: The folder of the packs.
        step: Called with the name of each step that lasts beyond the process; for tests.
    """

    def __init__(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folder = folder
        self._step = step
        self._path = folder / f"{TEMPORARY}{secrets.token_hex(16)}"
        self._fd = os.open(self._path, _CREATE, 0o600)
        self._buffer = bytearray(12)  # the header, which is written when the number of objects is known
        self._written = 0
        self.positions: dict[bytes, Position] = {}

    @property
    def size_bytes(self) -> int:
        """The bytes of the objects so far."""
        return self._written + len(self._buffer)

    def add(self, oid: bytes, packed: bytes) -> None:
        """Add an object, unless the pack has it.

        Raises:
            OSError: The file cannot be written.
        """
        if oid in self.positions:
            return
        self.positions[oid] = Position(self.size_bytes, len(packed), zlib.crc32(packed))
        self._buffer += packed
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def read_packed(self, oid: bytes) -> bytes | None:
        """Return the stored bytes of an object that was added; None if it was not."""
        position = self.positions.get(oid)
        if position is None:
            return None
        if position.offset >= self._written:
            start = position.offset - self._written
            return bytes(self._buffer[start : start + position.length])
        return os.pread(self._fd, position.length, position.offset)

    def finish(self) -> Path:
        """Make the pack durable and return the path of its index.

        Raises:
            OSError: The files cannot be written; the temporary file remains until `discard`.
        """
        header = b"PACK" + struct.pack(">II", 2, len(self.positions))
        if not self._written:
            self._buffer[:12] = header
            trailer = hashlib.sha1(self._buffer, usedforsecurity=False).digest()
            self._flush()
        else:
            self._flush()
            _write_all(self._fd, header, 0)
            trailer = _hash_file(self._fd, self._written)
        _write_all(self._fd, trailer, self._written)
        os.fsync(self._fd)
        self._step("pack written")
        name = self._folder / f"pack-{trailer.hex()}"
        self._path.rename(name.with_suffix(".pack"))
        self._step("pack renamed")
        # The index comes last: with it the pack is there, and without it the next process removes the file.
        index_path = name.with_suffix(".idx")
        write_durably(index_path, _encode_index(self.positions, trailer), self._step)
        self._close()
        return index_path

    def discard(self) -> None:
        """Remove the temporary file, if the pack was not finished. Idempotent."""
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _flush(self) -> None:
        _write_all(self._fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer = bytearray()


def _hash_file(fd: int, end: int) -> bytes:
    """Return the SHA-1 of a file up to `end`."""
    digest, offset = hashlib.sha1(usedforsecurity=False), 0
    while offset < end and (data := os.pread(fd, min(_BUFFER_BYTES, end - offset), offset)):
        digest.update(data)
        offset += len(data)
    return digest.digest()


def _write_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def _encode_index(positions: dict[bytes, Position], trailer: bytes) -> bytes:
    """Return the index of a pack: version 2, sorted ids, their CRCs, their offsets."""
    order = sorted(positions)
    counts = [0] * 256
    for oid in order:
        counts[oid[0]] += 1
    for byte in range(1, 256):
        counts[byte] += counts[byte - 1]
    numbers = [positions[oid].crc for oid in order] + [positions[oid].offset for oid in order]
    index = b"".join(
        [_IDX_HEADER, struct.pack(">256I", *counts), *order, struct.pack(f">{len(numbers)}I", *numbers), trailer]
    )
    return index + hashlib.sha1(index, usedforsecurity=False).digest()


def write_durably(path: Path, data: bytes, step: Callable[[str], None]) -> None:
    """Write a file whole or not at all, so that it lasts when the machine stops.

    Args:
        step: Called between the steps, for tests.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(16)}")
    try:
        with open(os.open(temporary, _CREATE, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        step(f"{path.suffix or path.parent.name} written")
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    step(f"{path.suffix or path.parent.name} renamed")
    with open_descriptor(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
        os.fsync(fd)
