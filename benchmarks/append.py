"""Durable appends a second: 1, 8 and 64 producers, typed events encoded on the way, against two floors.

Strict: one connection in one thread, in WAL mode with full synchronisation, inserts bytes at the same places. Each
producer has a conversation that grows, and each transaction inserts a row for every producer. There is no event loop,
no encoding, and no heads are kept. No group commit can be faster.

Fair: asyncio producers await a bare writer thread, which commits all waiting rows in one transaction. The difference
between it and a store is the store's own work: encoding, digests, heads, conditions, and turns between processes.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

from bough.events import SqliteEventStore
from bough.events.codec import encode
from bough.events.model import UserMessage
from bough.types import new_id
from harness import ROUNDS, AsyncWork, compare_async

APPENDS = {1: 300, 8: 1_600, 64: 6_400}
TEXT = "x" * 500
INSERT = "insert into event values (?, ?, ?)"

Row = tuple[int | None, bytes, bytes]


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        strict, bare_writer = (
            open_raw_database(Path(name) / "raw.db"),
            BareWriter(open_raw_database(Path(name) / "bare.db")),
        )
        for producers, appends in APPENDS.items():
            await measure(store, strict, bare_writer, producers, appends)
        await store.aclose()
        bare_writer.stop()
        strict.close()


async def measure(
    store: SqliteEventStore, strict: sqlite3.Connection, bare_writer: BareWriter, producers: int, appends: int
) -> None:
    cids = [(await store.create()).id for _ in range(producers)]
    messages = iter([UserMessage.text(TEXT) for _ in range(2 * appends * (ROUNDS + 1))])
    appends_per_producer, seqs, rounds = appends // producers, count(), count()
    floors: dict[str, AsyncWork] = {
        "raw SQLite in one thread": lambda: insert(strict, producers, appends_per_producer, seqs),
        "a bare writer thread": lambda: produce_bare(bare_writer, producers, appends_per_producer, rounds),
    }
    for floor, work in floors.items():
        name = f"append, durable, {producers} producers, to {floor}"
        await compare_async(
            name, lambda: produce(store, cids, appends_per_producer, messages), work, unit="1/s", per=appends
        )


async def produce(
    store: SqliteEventStore, cids: list[UUID], appends_per_producer: int, messages: Iterator[UserMessage]
) -> None:
    async def producer(cid: UUID) -> None:
        for _ in range(appends_per_producer):
            await store.append(cid, [next(messages)])

    await asyncio.gather(*(producer(cid) for cid in cids))


def open_raw_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("pragma page_size = 16384")
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table event (k integer primary key, id blob unique, data blob)")
    return db


def make_row(producers: int, producer: int, seq: int, data: bytes) -> Row:
    """Return the next row of a producer. The keys differ for each number of producers."""
    return (producers << 8 | producer) << 32 | seq, new_id().bytes, data


async def insert(db: sqlite3.Connection, producers: int, appends_per_producer: int, seqs: Iterator[int]) -> None:
    data = encode(UserMessage.text(TEXT))
    for _ in range(appends_per_producer):
        seq = next(seqs)
        db.execute("begin immediate")
        for producer in range(producers):
            db.execute(INSERT, make_row(producers, producer, seq, data))
        db.execute("commit")


async def produce_bare(writer: BareWriter, producers: int, appends_per_producer: int, rounds: Iterator[int]) -> None:
    data, start = encode(UserMessage.text(TEXT)), next(rounds) * appends_per_producer

    async def producer(number: int) -> None:
        for seq in range(start, start + appends_per_producer):
            await writer.insert(make_row(producers, number, seq, data))

    await asyncio.gather(*(producer(number) for number in range(producers)))


class BareWriter:
    """A thread that inserts all waiting rows in one transaction. It gets the rows of one turn of the loop together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[asyncio.Future[None], Row]] = []
        self._queue: SimpleQueue[list[tuple[asyncio.Future[None], Row]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def insert(self, row: Row) -> None:
        """Return once the row is durable."""
        if not self._waiting:
            self._loop.call_soon(self._send)
        future = self._loop.create_future()
        self._waiting.append((future, row))
        await future

    def stop(self) -> None:
        """End the thread and close the connection."""
        self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _send(self) -> None:
        self._queue.put(self._waiting)
        self._waiting = []

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            self._db.execute("begin immediate")
            self._db.executemany(INSERT, [row for _, row in batch])
            self._db.execute("commit")
            self._loop.call_soon_threadsafe(self._settle, batch)

    @staticmethod
    def _settle(batch: list[tuple[asyncio.Future[None], Row]]) -> None:
        for future, _ in batch:
            future.set_result(None)


if __name__ == "__main__":
    asyncio.run(main())
