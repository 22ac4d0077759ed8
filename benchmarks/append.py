"""Durable appends a second: 1, 8 and 64 producers, typed events encoded on the way, against raw SQLite.

The floor is one connection, synchronous, in WAL mode with full synchronisation, that inserts bytes: as many rows to a
transaction as there are producers, which is the best that any group commit could do.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path
from uuid import UUID

from bough.events import SqliteEventStore
from bough.events.codec import encode
from bough.events.model import UserMessage
from bough.types import new_id
from harness import compare_async

APPENDS = {1: 300, 8: 1_600, 64: 6_400}
TEXT = "x" * 500


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        floor = raw(Path(name) / "raw.db")
        for producers, appends in APPENDS.items():
            cids = [(await store.create()).id for _ in range(producers)]
            await compare_async(
                f"append, durable, {producers} producers",
                lambda cids=cids, each=appends // producers: produce(store, cids, each),
                lambda producers=producers, appends=appends: insert(floor, producers, appends),
                unit="1/s",
                per=appends,
            )
        await store.aclose()
        floor.close()


async def produce(store: SqliteEventStore, cids: list[UUID], each: int) -> None:
    async def producer(cid: UUID) -> None:
        for _ in range(each):
            await store.append(cid, [UserMessage.text(TEXT)])

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
    for _ in range(rows // batch):
        db.execute("begin immediate")
        for _ in range(batch):
            db.execute("insert into event (id, data) values (?, ?)", (new_id().bytes, data))
        db.execute("commit")


if __name__ == "__main__":
    asyncio.run(main())
