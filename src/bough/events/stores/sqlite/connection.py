"""Connect to a store file: pragmas, functions, and the translation of SQLite's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from zlib import crc32

from bough.errors import BoughError, CorruptLog, InvalidInput, StoreError, Unavailable
from bough.events.usage import add_counts, dump_usage

BUSY_SECONDS = 30.0
_WRITER_CACHE_KIB = 32768
_READER_CACHE_KIB = 8192
"""Cache of each of up to five readers. Small, since the system caches the file. The writer's is for indexes."""

_HALF = 1 << 31
"""Subtracted from checksums so that SQLite, whose integers are signed, stores them in four bytes instead of six."""


class StoreFile(NamedTuple):
    """A file to connect to.

    Attributes:
        path: The file.
        mode: URI parameter of SQLite for a file that cannot be written: `mode=ro` or `immutable=1`.
    """

    path: Path
    mode: str | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether the file cannot be written."""
        return self.mode is not None


def connect(file: StoreFile, *, read_only: bool = False, is_private: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun explicitly.

    Args:
        file: The file to open.
        read_only: Whether the connection refuses writes.
        is_private: Whether the file is removed with the process, so that commits need not wait for the disk.

    Raises:
        StoreError: The file cannot be opened.
    """
    name = f"file:{quote(str(file.path))}?{file.mode}" if file.is_read_only else str(file.path)
    try:
        db = sqlite3.connect(
            name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=file.is_read_only
        )
    except sqlite3.Error as error:
        raise store_error(file.path, error) from error
    try:
        _configure(db, read_only or file.is_read_only, is_private)
    except SQLITE_ERRORS as error:
        db.close()
        raise store_error(file.path, error) from error
    return db


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of the driver. It raises `UnicodeDecodeError` if an error message quotes a damaged name."""


def store_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> BoughError:
    """Translate an SQLite error, with a hint."""
    name = getattr(error, "sqlite_errorname", "")
    if isinstance(error, UnicodeDecodeError) or _UNDECODABLE in str(error):
        name = "SQLITE_CORRUPT"
    if _NO_MODULE in str(error):
        return Unavailable(
            f"{path}: SQLite was built without a module that the store needs ({error})",
            hint="searching, and deleting from a store that was searched, need FTS5: use a Python whose SQLite has it, "
            "such as those of python.org, or Postgres",
            details={"path": str(path), "sqlite": name},
        )
    for prefix, kind, message, hint in _MEANINGS:
        if name.startswith(prefix):
            return kind(f"{path}: {message} ({error})", hint=hint, details={"path": str(path), "sqlite": name})
    return StoreError(f"{path}: {error}", hint="run `bough doctor`", details={"path": str(path), "sqlite": name})


_NO_MODULE = "no such module"
_UNDECODABLE = "Could not decode to UTF-8"
_MEANINGS = (
    ("SQLITE_NOTADB", StoreError, "this is not a bough store", "choose another path, or move the file away"),
    ("SQLITE_CORRUPT", CorruptLog, "the file is damaged", "`bough doctor` says what is readable; export that"),
    ("SQLITE_FULL", StoreError, "the disk is full, nothing was written", "free disk space, then retry"),
    ("SQLITE_READONLY", StoreError, "the store is protected", "fix the permissions of the file and its folder"),
    ("SQLITE_CANTOPEN", StoreError, "the store cannot be opened", "check that it is a file you may read and write"),
    ("SQLITE_PERM", StoreError, "the store may not be opened", "fix the permissions of the file and its folder"),
    ("SQLITE_BUSY", StoreError, "another process keeps the store locked", "wait for it to finish, then repeat"),
    ("SQLITE_TOOBIG", InvalidInput, "an event is larger than SQLite stores", "keep large content in files"),
    ("SQLITE_IOERR", StoreError, "reading or writing failed", "check the disk: is it full, slow or gone?"),
)


def _configure(db: sqlite3.Connection, read_only: bool, is_private: bool) -> None:
    db.execute(f"pragma cache_size = -{_READER_CACHE_KIB if read_only else _WRITER_CACHE_KIB}")
    db.execute(f"pragma synchronous = {'off' if is_private else 'full'}")
    db.create_function("digest_of", -1, _compute_checksum, deterministic=True)
    db.create_function("usage_of", 2, dump_usage, deterministic=True)
    db.create_function("add_counts", 4, add_counts, deterministic=True)
    db.create_function("lower_text", 1, _lower, deterministic=True)
    db.create_function("unhex_text", 1, bytes.fromhex, deterministic=True)
    if read_only:
        db.execute("pragma query_only = on")


def _compute_checksum(*values: int | bytes | None) -> int:
    """Return a checksum of the values of a row, as an integer of four bytes."""
    # In one function, because each row that is read calls it twice: a call for each value would cost more than the sum.
    parts: list[bytes] = []
    for value in values:
        if isinstance(value, bytes):
            parts.append(value)
        else:
            parts.append(b"-" if value is None else b"%d" % value)
    lengths = ",".join([str(len(part)) for part in parts])
    return crc32(b"".join(parts) + lengths.encode()) - _HALF


def _lower(text: str | None) -> str | None:
    return text and text.lower()
