"""Durable appends a second: 1, 8 and 64 producers, typed events encoded on the way, against raw SQLite.

The floor is one connection in one thread, in WAL mode with full synchronisation, that inserts bytes to the same places:
each producer has a conversation, and a transaction has a row of each. No event loop, no encoding, no heads to keep:
what any group commit could do at the very best.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from bough.events import SqliteEventStore
from bough.events.codec import encode
from bough.events.model import UserMessage
from bough.types import new_id
from harness import ROUNDS, compare_async

APPENDS = {1: 300, 8: 1_600, 64: 6_400}
TEXT = "x" * 500


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        floor = raw(Path(name) / "raw.db")
        for producers, appends in APPENDS.items():
            cids = [(await store.create()).id for _ in range(producers)]
            made = iter([UserMessage.text(TEXT) for _ in range(appends * (ROUNDS + 1))])
            await compare_async(
                f"append, durable, {producers} producers",
                lambda cids=cids, each=appends // producers, made=made: produce(store, cids, each, made),
                lambda producers=producers, appends=appends: insert(floor, producers, appends),
                unit="1/s",
                per=appends,
            )
        await store.aclose()
        floor.close()


async def produce(store: SqliteEventStore, cids: list[UUID], each: int, made: Iterator[UserMessage]) -> None:
    async def producer(cid: UUID) -> None:
        for _ in range(each):
            await store.append(cid, [next(made)])

    await asyncio.gather(*(producer(cid) for cid in cids))


def raw(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma page_size = 16384")
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table event (k integer primary key, id blob unique, data blob)")
    return db


async def insert(db: sqlite3.Connection, batch: int, rows: int) -> None:
    data = encode(UserMessage.text(TEXT))
    (first,) = db.execute("select ifnull(max(k) >> 32, 0) + 1 from event").fetchone()
    for seq in range(rows // batch):
        db.execute("begin immediate")
        for cid in range(first, first + batch):
            db.execute("insert into event values (?, ?, ?)", (cid << 32 | seq, new_id().bytes, data))
        db.execute("commit")


if __name__ == "__main__":
    asyncio.run(main())
