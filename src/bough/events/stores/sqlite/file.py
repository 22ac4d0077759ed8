"""Open store files: create or upgrade them, or read them where they cannot be written."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from bough.errors import BoughError, CorruptLog, StoreError
from bough.events.private_folder import PrivateFolder
from bough.events.queries import Migration, log_upgrade, migrations, split_statements
from bough.events.stores.sqlite.connection import BUSY_SECONDS, SQLITE_ERRORS, StoreFile, connect, store_error

APPLICATION_ID = 0x626F7567
"""Marks the file's header, so that another program's database is never taken for a store."""

MEMORY_PREFIX = "bough-memory-"
"""Prefix of the temporary folders of private stores."""

_LOG = logging.getLogger("bough.events")
_PAGE_SIZE_BYTES = 16384
_READING = ("mode=ro", "immutable=1")
"""Modes for reading a file that cannot be written: `ro` allows other writers, `immutable` assumes none."""


class OpenedFile(NamedTuple):
    """A store file in use.

    Attributes:
        path: The requested file.
        file: The file to connect to: the requested one, or a copy.
        folder: The folder of the copy, which is removed with this object.
    """

    path: Path
    file: StoreFile
    folder: PrivateFolder | None = None


def open_file(path: Path, *, keep_copy: bool = False) -> OpenedFile:
    """Open a store file. Creates it if missing (readable by its owner only), and upgrades its schema.

    A file that cannot be written is read directly. If it has a write-ahead log or an older schema, a private copy is
    read instead: SQLite would ignore the commits that are only in that log.

    Args:
        keep_copy: Whether to copy the file to `<name>.schema-<version>` beside it before its schema is upgraded.

    Raises:
        CorruptLog: The file is empty, which a store file never is.
        StoreError: The file cannot be opened or copied, is not a bough store, or comes from a newer bough.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
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
    if path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return _open_for_reading(path)
    old_version = _upgrade(path, keep_copy=keep_copy)
    if old_version is not None:
        copy = _copy_path(path, old_version) if keep_copy else None
        log_upgrade(str(path), old_version, migrations("sqlite")[-1].version, copy=copy)
    return OpenedFile(path, StoreFile(path))


def _open_for_reading(path: Path) -> OpenedFile:
    """Open a file that cannot be written: directly if SQLite can read all of it, else through a private copy."""
    log = _append_suffix(path, "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    for mode in _READING[:1] if has_log else _READING:
        file = StoreFile(path, mode)
        if _is_usable(file):
            return OpenedFile(path, file)
    return _copy(path)


def _is_usable(file: StoreFile) -> bool:
    """Whether a file can be read in its mode and has the newest schema.

    Raises:
        StoreError: The file is not a bough store, or comes from a newer bough.
    """
    newest = migrations("sqlite")[-1].version
    try:
        with closing(connect(file)) as db:
            return _version(db, file.path, newest) == newest
    except SQLITE_ERRORS as error:
        failure = store_error(file.path, error)
    except BoughError as error:
        failure = error
    if str(failure.details.get("sqlite")).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return False
    raise failure


def _copy(path: Path) -> OpenedFile:
    """Copy a file and its write-ahead log to a private folder, and upgrade the copy."""
    folder = PrivateFolder(MEMORY_PREFIX)
    copy = folder.path / "log.db"
    try:
        shutil.copyfile(path, copy)
        if _append_suffix(path, "-wal").exists():
            shutil.copyfile(_append_suffix(path, "-wal"), _append_suffix(copy, "-wal"))
    except OSError as error:
        folder.remove()
        raise StoreError(
            f"{path} cannot be written, and copying it for reading failed: {error.strerror}",
            hint="free space in the folder for temporary files, or fix the permissions of the file and its folder",
        ) from error
    _LOG.warning("%s cannot be written; reading a copy", path)
    _upgrade(copy)
    return OpenedFile(path, StoreFile(copy, "mode=ro"), folder)


def _append_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _create(path: Path) -> None:
    """Create a store under another name, then link it into place, so that no process ever sees an empty store file."""
    new = path.with_name(f"{path.name}.new-{uuid4().hex}")
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        _upgrade(new)
        _put_in_place(new, path)
    finally:
        for leftover in (new, _append_suffix(new, "-wal"), _append_suffix(new, "-shm")):
            leftover.unlink(missing_ok=True)


def _put_in_place(new: Path, path: Path) -> None:
    """Move a new store to its path, unless another process created one meanwhile."""
    with suppress(FileExistsError):
        try:
            os.link(new, path)
        except FileExistsError:
            raise
        except OSError:
            os.rename(new, path)  # on a file system without hard links; of two concurrent creations the later one wins
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the directory entry must survive a power failure before any write is acknowledged
    finally:
        os.close(folder)


def _copy_path(path: Path, version: int) -> Path:
    return _append_suffix(path, f".schema-{version}")


def _copy_old_schema(path: Path, version: int) -> None:
    """Copy a store before its schema is upgraded. Called within the writing transaction, so nothing is missing.

    A complete copy replaces an earlier one; an incomplete copy is never left behind.
    """
    copy = _copy_path(path, version)
    new = _append_suffix(copy, f".new-{uuid4().hex}")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(connect(StoreFile(path, "mode=ro"))) as source, closing(sqlite3.connect(new)) as target:
            source.backup(target)
        os.replace(new, copy)
    except (OSError, *SQLITE_ERRORS) as error:
        raise StoreError(
            f"{path} has an older schema, and copying it before the upgrade failed: {error}",
            hint="free space beside the file, or set BOUGH_COPY_BEFORE_UPGRADE=no after making a copy elsewhere",
            details={"path": str(path), "schema": version},
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _upgrade(path: Path, *, keep_copy: bool = False) -> int | None:
    """Upgrade a file's schema and return the old version; None if nothing was upgraded."""
    db = connect(StoreFile(path))
    try:
        return _prepare(db, path, keep_copy=keep_copy)
    except SQLITE_ERRORS as error:
        raise store_error(path, error) from error
    finally:
        db.close()


def _prepare(db: sqlite3.Connection, path: Path, *, keep_copy: bool) -> int | None:
    """Run the missing migrations, in write-ahead mode. Returns as `_upgrade`."""
    steps = migrations("sqlite")
    newest = steps[-1].version
    with _transaction(db, "begin"):
        if _version(db, path, newest) == newest:
            return None
    db.execute(f"pragma page_size = {_PAGE_SIZE_BYTES}")
    _set_wal(db)
    with _transaction(db, "begin immediate"):  # read the version again: another process may have upgraded meanwhile
        version = _version(db, path, newest)
        if keep_copy and 0 < version < newest:
            _copy_old_schema(path, version)
        for step in steps:
            if step.version > version:
                _migrate(db, step)
    return version if 0 < version < newest else None


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
    """Return the schema version; 0 for an empty file."""
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
    """Switch to write-ahead logging. Waits for other openers, since SQLite's busy timeout does not apply here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
