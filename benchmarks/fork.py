"""A fork at every length of the log against one durable insert; ten thousand forks, their bytes, and reading one.

It also measures what a caller does: `Conversation.fork` at the head and further back, and `open`, on SQLite and
Postgres. Peers copy the log, so their cost grows with its length. bough writes the same number of rows at each length.
The strict floor inserts in the caller's thread. The fair one awaits a bare writer thread, as every caller of a store
does.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from uuid import UUID

import psycopg

from append import BareWriter, open_raw_database
from bough import AsyncConversation
from bough.events import EventStore, PostgresEventStore, SqliteEventStore
from bough.events.model import UserMessage
from bough.settings import Settings
from bough.testing.postgres import DURABLE, postgres_server
from bough.types import new_id
from harness import ROUNDS, AsyncWork, Figure, compare_async
from talk import talk

SIZES = (1_000, 10_000, 100_000)
FORKS = 100
MANY = 10_000
FLOOR = "an awaited insert"


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        floor = open_raw_database(Path(name) / "raw.db")
        sources = {size: await create_log(store, size) for size in SIZES}
        bare_writer = BareWriter(open_raw_database(Path(name) / "bare.db"))
        for size, cid in sources.items():
            await measure(store, cid, size, floor, bare_writer)
        await measure_many_forks(store, sources[10_000])
        forked = await store.fork(sources[10_000])
        await compare_async(
            "read 10000 events of a fork, of the source",
            lambda: read(store, forked.id),
            lambda: read(store, sources[10_000]),
        )
        await measure_chain(store, sources[10_000])
        await measure_callers(store, "sqlite", SIZES, lambda: insert_bare(bare_writer, 1))
        await store.aclose()
        bare_writer.stop()
        floor.close()
    await measure_postgres()


async def measure(
    store: SqliteEventStore, cid: UUID, size: int, db: sqlite3.Connection, bare_writer: BareWriter
) -> None:
    floors: dict[str, AsyncWork] = {
        "one insert in one thread": lambda: insert(db, FORKS),
        "one insert by a bare writer thread": lambda: insert_bare(bare_writer, FORKS),
    }
    for floor, work in floors.items():
        name = f"fork of {size} events, to {floor}"
        await compare_async(name, lambda: fork(store, cid, FORKS), work, unit="us", per=FORKS)


async def create_log(store: SqliteEventStore, size: int) -> UUID:
    record = await store.create()
    for _ in range(0, size, 1000):
        await store.append(record.id, [UserMessage.text("x" * 200) for _ in range(1000)])
    return record.id


async def fork(store: SqliteEventStore, cid: UUID, times: int) -> None:
    for _ in range(times):
        await store.fork(cid)


async def insert(db: sqlite3.Connection, times: int) -> None:
    for _ in range(times):
        db.execute("insert into event (id, data) values (?, ?)", (new_id().bytes, b"x" * 64))


async def insert_bare(bare_writer: BareWriter, times: int) -> None:
    for _ in range(times):
        await bare_writer.insert((None, new_id().bytes, b"x" * 64))


async def measure_many_forks(store: SqliteEventStore, cid: UUID) -> None:
    """Fork ten thousand times. Report the seconds, and the growth of the table in bytes a row."""
    seconds, sizes = [], []
    for _ in range(ROUNDS):
        before = table_bytes(store.path)
        start = perf_counter()
        await asyncio.gather(*(store.fork(cid) for _ in range(MANY)))
        seconds.append(perf_counter() - start)
        sizes.append((table_bytes(store.path) - before) / MANY)
    Figure.of(f"{MANY} forks of one 10000-event conversation", seconds, unit="s").report()
    Figure.of("row data of a fork", sizes, unit="bytes").report()


def table_bytes(path: Path) -> int:
    """The payload of the conversation table's rows, by SQLite's own account."""
    db = sqlite3.connect(path)
    (size,) = db.execute("select sum(payload) from dbstat where name = 'conversation' and pagetype = 'leaf'").fetchone()
    db.close()
    return size


async def read(store: SqliteEventStore, cid: UUID) -> None:
    async for _ in store.read(cid):
        pass


async def measure_chain(store: SqliteEventStore, flat: UUID) -> None:
    """Read a log that is a thousand forks deep against a flat one of the same length."""
    tip = (await store.create()).id
    for _ in range(1000):
        tip = (await store.fork(tip, events=[UserMessage.text("x" * 200) for _ in range(10)])).id
    await compare_async(
        "read 10000 events, 1000 generations, flat", lambda: read(store, tip), lambda: read(store, flat)
    )


async def measure_postgres() -> None:
    with postgres_server(DURABLE) as url:
        store = await PostgresEventStore.open(url)
        floor = psycopg.connect(url, autocommit=True)
        floor.execute("create table floor (id uuid unique, data bytea)")

        async def insert_row() -> None:
            statement = "insert into floor (id, data) values (%s, %s)"
            await asyncio.to_thread(floor.execute, statement, (new_id(), b"x" * 64))

        await measure_callers(store, "postgres", SIZES, insert_row)
        floor.close()
        await store.aclose()


async def measure_callers(store: EventStore, backend: str, sizes: Sequence[int], floor: AsyncWork) -> None:
    """Fork and open conversations of each length, to one awaited durable insert."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = Settings.load(home=home, env={}, cwd=home)
        for size in sizes:
            conversation = await talk(store, size, settings, home)
            for name, work in list_operations(conversation, backend, size).items():
                await compare_async(name, work, floor, unit="us")
            await conversation.aclose()


def list_operations(conversation: AsyncConversation, backend: str, size: int) -> dict[str, AsyncWork]:
    """Return the operations that a caller does with a long conversation. Each of them closes what it opens."""
    head = conversation.state.head

    async def fork(at: int | None) -> None:
        await (await conversation.fork(at=at)).aclose()

    async def reopen() -> None:
        reopened = await AsyncConversation.open(
            conversation.id,
            store=conversation.store,
            agent=conversation.agent,
            settings=conversation.settings,
            executor=conversation.executor,
        )
        await reopened.aclose()

    return {
        f"{backend}: Conversation.fork() of {size} events, to {FLOOR}": lambda: fork(None),
        f"{backend}: Conversation.fork(at=head - 1) of {size} events, to {FLOOR}": lambda: fork(head - 1),
        f"{backend}: Conversation.fork(at=head // 2) of {size} events, to {FLOOR}": lambda: fork(head // 2),
        f"{backend}: Conversation.open of {size} events, to {FLOOR}": reopen,
    }


if __name__ == "__main__":
    asyncio.run(main())
