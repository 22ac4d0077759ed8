"""The event store in one SQLite file."""

from __future__ import annotations

import asyncio
import glob
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from bough.events.draft import Append
from bough.events.lease_renewal import LeaseRenewer
from bough.events.private_folder import PrivateFolder
from bough.events.queries import queries
from bough.events.record import Lease
from bough.events.stores import faults
from bough.events.stores.batch import Batch
from bough.events.stores.relational.store import RelationalEventStore
from bough.events.stores.sqlite.commit import Addition, Compaction, GroupCommit, ReadOnlyWork, Request
from bough.events.stores.sqlite.file import MEMORY_PREFIX, OpenedFile, open_file
from bough.events.stores.sqlite.readers import Readers
from bough.events.stores.sqlite.reading import SqliteReading
from bough.events.stores.sqlite.writing import SqliteWriting
from bough.types import Clock, SystemClock

T = TypeVar("T")


class SqliteEventStore(RelationalEventStore):
    """Stores conversations in one file, for any number of processes on one machine. See `EventStore`.

    One thread writes, with group commit, and a few others run long reads, so that neither blocks the event loop or the
    other. Small queries run in the caller's thread (see `Readers`). Several event loops may use it concurrently.
    """

    def __init__(self, opened: OpenedFile, clock: Clock, *, is_private: bool = False) -> None:
        super().__init__(clock, "sqlite")
        self.path, file, self._folder = opened
        self.url = "memory:" if is_private else f"sqlite:///{self.path}"
        self.files_key = ("sqlite", str(self.path))
        self._sql = queries("sqlite")
        self._is_read_only = file.is_read_only
        if file.is_read_only:
            work = ReadOnlyWork(self.path, file, self._sql, self._hub, clock)
        else:
            work = GroupCommit(file, self._sql, self._hub, clock, self._followers, is_private=is_private)
        self._writer: Batch[Request] = Batch(f"bough-writer {self.path.name}", self.url, work)
        self._hub.on_first = self._writer.wake
        self._readers = Readers(file, self._sql, clock)
        self._lease_renewer = LeaseRenewer(partial(_renew, self._writer))
        self._pid = os.getpid()
        weakref.finalize(self, self._lease_renewer.stop)
        weakref.finalize(self, self._writer.stop)
        weakref.finalize(self, self._readers.stop)

    @classmethod
    async def open(cls, path: Path, *, clock: Clock | None = None, keep_copy: bool = True) -> SqliteEventStore:
        """Open the store in a file. Creates or upgrades the file if needed.

        Args:
            keep_copy: Whether to keep a copy of a file with an older schema.

        Raises:
            StoreError: The file cannot be opened, is not a bough store, or comes from a newer bough.
        """
        return await asyncio.to_thread(cls._open, path, clock or SystemClock(), keep_copy)

    @classmethod
    async def open_private(cls, *, clock: Clock | None = None) -> SqliteEventStore:
        """Open an empty temporary store: `memory:`. See `PrivateFolder`."""
        return await asyncio.to_thread(cls._open_private, clock or SystemClock())

    @classmethod
    def _open(cls, path: Path, clock: Clock, keep_copy: bool) -> SqliteEventStore:
        return cls(open_file(path, keep_copy=keep_copy), clock)

    @classmethod
    def _open_private(cls, clock: Clock) -> SqliteEventStore:
        folder = PrivateFolder(MEMORY_PREFIX)
        return cls(open_file(folder.path / "log.db")._replace(folder=folder), clock, is_private=True)

    def add_folder(self, path: Path) -> None:
        """Have a folder removed with a temporary store; do nothing for another one."""
        if self._folder is not None and self.url == "memory:":
            self._folder.add_folder(path)

    def _list_copies(self) -> Sequence[str]:
        return sorted(copy.name for copy in self.path.parent.glob(f"{glob.escape(self.path.name)}.schema-*"))

    async def aclose(self) -> None:
        """Finish pending writes and close. Subscriptions end. See `EventStore.aclose`."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # after a fork, the threads belong to the parent
        self._hub.close()
        self._lease_renewer.stop()
        await asyncio.to_thread(self._lease_renewer.join)
        self._writer.flush()  # sends this loop's appends before `stop` refuses them
        self._readers.stop()
        await asyncio.to_thread(self._readers.join)
        self._writer.stop()  # last: closing the last connection merges the write-ahead log into the file
        await asyncio.to_thread(self._writer.join)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    async def _append(self, append: Append) -> int:
        self._check_open()
        return await self._record_failure(self._writer.submit(append))

    async def _read(
        self, query: Callable[[SqliteReading], T], *, small: bool = False, may_take_long: bool = False
    ) -> T:
        self._check_open()
        return await self._readers.run(query, small=small)

    async def _write(
        self,
        change: Callable[[SqliteWriting], T],
        *,
        is_single_statement: bool = False,
        is_addition: bool = False,
        may_take_long: bool = False,
    ) -> T:
        self._check_open()
        return await self._record_failure(self._writer.submit(Addition(change) if is_addition else change))

    async def _compact(self) -> str | None:
        return await self._writer.submit(Compaction())

    def _check_open(self) -> None:
        if self._closed:
            raise faults.store_closed(self.url)
        if self._pid != os.getpid():
            raise faults.store_of_parent_process(self.url)


def _renew(writer: Batch[Request], lease: Lease, ttl_seconds: float) -> None:
    writer.submit_blocking(lambda log: log.renew(lease, ttl_seconds))
