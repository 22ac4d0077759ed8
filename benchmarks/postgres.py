"""The Postgres store against bare psycopg on a server of its own, durable: append, fork and load.

The floors are the statements one would write by hand over one connection: an insert of a row for an append or fork, a
select for a load; bytes in, tuples out. The strict ones run in the caller's thread (for eight producers there are eight
connections in eight threads), the fair ones in a thread that an event loop awaits, and compare each event they load
with its digest.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID
from zlib import crc32

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
        log = await create_log(store)
        threads = ThreadPoolExecutor(8)
        for producers in (1, 8):
            cids = [(await store.create()).id for _ in range(producers)]
            for floor, work in (
                ("inserts", lambda some=floors[:producers]: insert(some)),
                ("awaited inserts", lambda some=floors[:producers]: insert_awaited(threads, some)),
            ):
                await compare_async(
                    f"postgres: append, {producers} producers, to {floor}",
                    lambda cids=cids: produce(store, cids),
                    work,
                    unit="1/s",
                    per=TIMES,
                )
        for floor, work in (
            ("an insert", lambda: insert(floors[:1])),
            ("an awaited insert", lambda: insert_awaited(threads, floors[:1])),
        ):
            name = f"postgres: fork of {LOG} events, to {floor}"
            await compare_async(name, lambda: fork(store, log), work, unit="us", per=TIMES)
        query = floors[0].execute("select cid from bough.conversation where id = %s", (log,)).fetchone()
        assert query
        for floor, work in (
            ("a select", lambda: select(floors[0], query)),
            ("an awaited select that checks digests", lambda: select_awaited(threads, floors[0], query)),
        ):
            await compare_async(f"postgres: load {LOG} events, raw, to {floor}", lambda: load(store, log), work)
        threads.shutdown()
        for floor in floors:
            floor.close()
        await store.aclose()


async def create_log(store: PostgresEventStore) -> UUID:
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


async def insert_awaited(threads: ThreadPoolExecutor, floors: list[Any]) -> None:
    data, loop = encode(UserMessage.text(TEXT)), asyncio.get_running_loop()

    async def producer(db: Any) -> None:
        for _ in range(TIMES // len(floors)):
            await loop.run_in_executor(threads, db.execute, INSERT, (new_id(), data))

    await asyncio.gather(*(producer(db) for db in floors))


async def fork(store: PostgresEventStore, cid: UUID) -> None:
    for _ in range(TIMES):
        await store.fork(cid)


async def load(store: PostgresEventStore, cid: UUID) -> None:
    _ = [stored async for stored in store.read(cid)]


async def select(db: Any, number: Any) -> None:
    query = "select seq, id, kind, ts, data from bough.event where cid = %s order by seq"
    db.execute(query, number, binary=True).fetchall()


async def select_awaited(threads: ThreadPoolExecutor, db: Any, number: Any) -> None:
    await asyncio.get_running_loop().run_in_executor(threads, select_checked, db, number)


def select_checked(db: Any, number: Any) -> None:
    query = "select seq, uuid_send(id), kind, ts, data, digest from bough.event where cid = %s order by seq"
    rows = db.execute(query, number, binary=True).fetchall()
    if not all(crc32(id + f"{kind}{ts}".encode() + data) == digest for _, id, kind, ts, data, digest in rows):
        raise ValueError("damaged")


if __name__ == "__main__":
    asyncio.run(main())
