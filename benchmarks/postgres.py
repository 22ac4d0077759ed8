"""The Postgres store against bare psycopg on a server of its own, durable: append, fork and load.

The floors are the statements one would write by hand over one connection: an insert of a row for an append or fork, a
select for a load; bytes in, tuples out. For eight producers the floor has eight connections in eight threads.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg

from bough.events import PostgresEventStore
from bough.events.codec import encode
from bough.events.model import UserMessage
from bough.testing.postgres import DURABLE, postgres_server
from bough.types import new_id
from harness import compare_async

TEXT = "x" * 500
TIMES = 200
LOG = 10_000
INSERT = "insert into floor (id, data) values (%s, %s)"


async def main() -> None:
    with postgres_server(DURABLE) as url:
        store = await PostgresEventStore.open(url)
        floors = [psycopg.connect(url, autocommit=True) for _ in range(8)]
        floors[0].execute("create table floor (k bigserial primary key, id uuid unique, data bytea)")
        log = await filled(store)
        for producers in (1, 8):
            cids = [(await store.create()).id for _ in range(producers)]
            await compare_async(
                f"postgres: append, {producers} producers",
                lambda cids=cids: produce(store, cids),
                lambda producers=producers: insert(floors[:producers]),
                unit="1/s",
                per=TIMES,
            )
        await compare_async(
            "postgres: fork of 10000 events", lambda: fork(store, log), lambda: insert(floors[:1]), unit="us", per=TIMES
        )
        query = floors[0].execute("select cid from bough.conversation where id = %s", (log,)).fetchone()
        assert query
        await compare_async(
            "postgres: load 10000 events, raw", lambda: load(store, log), lambda: select(floors[0], query)
        )
        for floor in floors:
            floor.close()
        await store.aclose()


async def filled(store: PostgresEventStore) -> UUID:
    record = await store.create()
    for _ in range(0, LOG, 1000):
        await store.append(record.id, [UserMessage.text("x" * 200) for _ in range(1000)])
    return record.id


async def produce(store: PostgresEventStore, cids: list[UUID]) -> None:
    async def producer(cid: UUID) -> None:
        for _ in range(TIMES // len(cids)):
            await store.append(cid, [UserMessage.text(TEXT)])

    await asyncio.gather(*(producer(cid) for cid in cids))


async def insert(floors: list[Any]) -> None:
    data = encode(UserMessage.text(TEXT))

    def work(db: Any) -> None:
        for _ in range(TIMES // len(floors)):
            db.execute(INSERT, (new_id(), data))

    if len(floors) == 1:
        work(floors[0])
        return
    with ThreadPoolExecutor(len(floors)) as threads:
        list(threads.map(work, floors))


async def fork(store: PostgresEventStore, cid: UUID) -> None:
    for _ in range(TIMES):
        await store.fork(cid)


async def load(store: PostgresEventStore, cid: UUID) -> None:
    _ = [stored async for stored in store.read(cid)]


async def select(db: Any, number: Any) -> None:
    query = "select seq, id, kind, ts, data from bough.event where cid = %s order by seq"
    db.execute(query, number, binary=True).fetchall()


if __name__ == "__main__":
    asyncio.run(main())
