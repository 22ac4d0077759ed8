"""Loading a log raw, typed, its tail and a page in the middle, against bare selects; memory for a page of a million.

The strict floor fetches rows. The fair one also compares each row with its digest, as every reader of a store does,
because a damaged row would otherwise be returned without an error.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import tempfile
import tracemalloc
from pathlib import Path
from uuid import UUID
from zlib import crc32

from bough.events import SqliteEventStore
from bough.events.record import StoredEvent
from fork import create_log
from harness import MIN_ROUNDS, Figure, compare, compare_async, print_note

LOG = 10_000
LONG = 100_000
LONGEST = 1_000_000
REPEAT = 100


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        log, long = await create_log(store, LOG), await create_log(store, LONG)
        db = sqlite3.connect(store.path)
        first = find_first_key(db, log)
        for floor, read in FLOORS.items():
            await compare_async(
                f"load 10000 events, raw, to {floor}",
                lambda: load(store, log),
                lambda read=read: read(db, first, 0, LOG),
            )
        events = [stored async for stored in store.read(log)]
        compare(
            "load 10000 events, typed",
            lambda: decode_typed(events),
            lambda: [json.loads(stored.raw) for stored in events],
        )
        long_first = find_first_key(db, long)
        for what, work, place in (
            ("tail 50 of 100000", lambda: store.tail(long, 50), LONG - 50),
            ("page of 50 in the middle of 100000", lambda: read_page(store, long), LONG // 2),
        ):
            for floor, read in FLOORS.items():
                await compare_async(
                    f"{what}, to {floor}",
                    lambda work=work: repeat(work),
                    lambda read=read, place=place: repeat(lambda: read(db, long_first, place, place + 50)),
                    unit="us",
                    per=REPEAT,
                )
        await measure_memory(store)
        db.close()
        await store.aclose()


def find_first_key(db: sqlite3.Connection, cid: UUID) -> int:
    return db.execute("select cid << 32 from conversation where id = ?", (cid.bytes,)).fetchone()[0]


async def select(db: sqlite3.Connection, first: int, lo: int, hi: int) -> list[object]:
    query = "select k, id, kind, ts, data from event where k >= ? and k < ? order by k"
    return db.execute(query, (first | lo, first | hi)).fetchall()


async def select_checked(db: sqlite3.Connection, first: int, lo: int, hi: int) -> list[object]:
    query = "select k, id, kind, ts, data, digest from event where k >= ? and k < ? order by k"
    rows = db.execute(query, (first | lo, first | hi)).fetchall()
    if not all(crc32(id + f"{kind}{ts}".encode() + data) == digest for _, id, kind, ts, data, digest in rows):
        raise ValueError("damaged")
    return rows


FLOORS = {"a select": select, "a select that checks digests": select_checked}


async def load(store: SqliteEventStore, cid: UUID) -> list[StoredEvent]:
    return [stored async for stored in store.read(cid)]


def decode_typed(events: list[StoredEvent]) -> None:
    for stored in events:
        stored.__dict__.clear()
        _ = stored.event


async def read_page(store: SqliteEventStore, cid: UUID) -> list[StoredEvent]:
    return [stored async for stored in store.read(cid, LONG // 2, LONG // 2 + 50)]


async def repeat(work) -> None:
    for _ in range(REPEAT):
        await work()


async def measure_memory(store: SqliteEventStore) -> None:
    """Report how much the process grows while it reads pages of a conversation with a million events."""
    print_note(f"writing {LONGEST} events …")
    cid = await create_log(store, LONGEST)
    tracemalloc.start()
    grown = []
    for i in range(MIN_ROUNDS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        _ = [stored async for stored in store.read(cid, 100_000 * (i + 1), 100_000 * (i + 1) + 50)]
        peak = tracemalloc.get_traced_memory()[1] - start
        grown.append(max(peak, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024) / 1e6)
    Figure.of("memory for a page of 1000000 events", grown, unit="MB").report()


if __name__ == "__main__":
    asyncio.run(main())
