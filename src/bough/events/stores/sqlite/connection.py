"""Opening a store file: pragmas, schema, and SQLite's errors in bough's words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from bough.errors import BoughError, CorruptLog, InvalidInput, StoreError
from bough.events.queries import Migration, migrations, split_statements

APPLICATION_ID = 0x626F7567
"""Written into the file's header, so that another program's database is never taken for a store."""

_PAGE_SIZE_BYTES = 16384
_BUSY_SECONDS = 30.0
_CACHE_KIB = 32768


def open_file(path: Path) -> None:
    """Create the file if there is none (readable by its owner only) and bring its schema up to date.

    Raises:
        CorruptLog: It is empty: a store file never is.
        StoreError: It cannot be opened, is not a bough store, or comes from a newer bough.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        is_empty = path.is_file() and path.stat().st_size == 0
    except OSError as error:
        raise StoreError(
            f"cannot create {path}: {error.strerror}", hint="choose a path in a folder you may write to"
        ) from error
    if is_empty:
        raise CorruptLog(
            f"{path}: the file is empty: truncated, or still being made by another program",
            hint="restore a copy; if it never held anything, remove it",
            details={"path": str(path)},
        )
    _upgrade(path)


def _create(path: Path) -> None:
    """Make a store under another name and link it into place whole, so that a store file is never empty."""
    new = path.with_name(f"{path.name}.new-{uuid4().hex}")
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        _upgrade(new)
        _put_in_place(new, path)
    finally:
        for leftover in (new, new.with_name(f"{new.name}-wal"), new.with_name(f"{new.name}-shm")):
            leftover.unlink(missing_ok=True)


def _put_in_place(new: Path, path: Path) -> None:
    """Give a new store its name, unless another process was faster."""
    with suppress(FileExistsError):
        try:
            os.link(new, path)
        except FileExistsError:
            raise
        except OSError:
            os.rename(new, path)  # a file system without hard links: of two that come at once the later one is kept
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name has to survive a power cut before anything in the file is acknowledged
    finally:
        os.close(folder)


def _upgrade(path: Path) -> None:
    db = connect(path)
    try:
        _prepare(db, path)
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    finally:
        db.close()


def connect(path: Path, *, read_only: bool = False, is_private: bool = False) -> sqlite3.Connection:
    """Return a connection in autocommit mode; transactions are begun by name.

    Args:
        read_only: It refuses to write.
        is_private: The file ends with the process, so nothing waits for the disk.

    Raises:
        StoreError: The file cannot be opened.
    """
    try:
        db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    try:
        _configure(db, read_only, is_private)
    except sqlite3.Error as error:
        db.close()
        raise store_error(path, error) from error
    return db


def store_error(path: Path, error: sqlite3.Error) -> BoughError:
    """Return what an SQLite error means, with what to do about it."""
    name = getattr(error, "sqlite_errorname", "")
    for start, kind, message, hint in _MEANINGS:
        if name.startswith(start):
            return kind(f"{path}: {message} ({error})", hint=hint, details={"path": str(path), "sqlite": name})
    return StoreError(f"{path}: {error}", hint="run `bough doctor`", details={"path": str(path), "sqlite": name})


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
    db.execute(f"pragma cache_size = -{_CACHE_KIB}")
    db.execute(f"pragma synchronous = {'off' if is_private else 'full'}")
    db.create_function("lower_text", 1, _lower, deterministic=True)
    db.create_function("unhex_text", 1, bytes.fromhex, deterministic=True)
    if read_only:
        db.execute("pragma query_only = on")


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    steps = migrations("sqlite")
    newest = steps[-1].version
    with _transaction(db, "begin"):
        if _version(db, path, newest) == newest:
            return
    db.execute(f"pragma page_size = {_PAGE_SIZE_BYTES}")
    _set_wal(db)
    with _transaction(db, "begin immediate"):
        version = _version(db, path, newest)
        for step in steps:
            if step.version > version:
                _migrate(db, step)


@contextmanager
def _transaction(db: sqlite3.Connection, begin: str) -> Generator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


def _version(db: sqlite3.Connection, path: Path, newest: int) -> int:
    """Return the schema's version, 0 for an empty file."""
    (version,) = db.execute("pragma user_version").fetchone()
    (application,) = db.execute("pragma application_id").fetchone()
    (tables,) = db.execute("select count(*) from sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(
            f"{path}: this is another program's database", hint="choose another path", details={"path": str(path)}
        )
    if version > newest:
        raise StoreError(
            f"{path} has schema {version}; this bough knows up to {newest}",
            hint="upgrade bough, or export with the newer version and import here",
            details={"path": str(path), "schema": version, "known": newest},
        )
    return version


def _migrate(db: sqlite3.Connection, step: Migration) -> None:
    for statement in split_statements(step.sql):
        db.execute(statement)
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute(f"pragma user_version = {step.version}")


def _set_wal(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite does not wait for other openers here, so this does, in small steps."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            db.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _lower(text: str | None) -> str | None:
    return text and text.lower()
