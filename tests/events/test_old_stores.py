"""Stores that older programs wrote say today what they said then: in SQLite and in Postgres."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from bough.errors import NotFound
from bough.events import PostgresEventStore, SqliteEventStore
from bough.events.model import UserMessage
from bough.events.queries import migrations
from bough.events.record import MessageQuery
from bough.events.store import EventStore
from bough.events.usage import sum_payloads
from bough.testing.postgres import make_database

pytestmark = pytest.mark.anyio

DUMPS = Path(__file__).parent.parent / "golden" / "stores"
PROGRAMS = {
    "1a": "schema 1, where `forked_from` was set in every fork",
    "1b": "schema 1, where `forked_from` was null when it was the same as `parent`",
    "2": "schema 2, whose rows have no digests",
    "3": "schema 3",
    "4": "schema 4, whose rows have usage",
}
ROOT, GONE, EARLY, EMPTY, LAST = (UUID(f"01990000-0000-7000-8000-{n:012x}") for n in range(1, 6))
LOGS = {
    ROOT: ["one", "zwei ä", "three", None, "five"],
    EARLY: ["one", "zwei ä", "early"],
    EMPTY: ["one", "zwei ä", "three", None, "five", "in fork"],
    LAST: ["one", "zwei ä", "three", None, "five", "in fork", "last"],
}
LINEAGES = {
    ROOT: [(ROOT, 0, 5)],
    EARLY: [(ROOT, 0, 2), (EARLY, 2, 3)],
    EMPTY: [(ROOT, 0, 5), (GONE, 5, 6)],
    LAST: [(ROOT, 0, 5), (GONE, 5, 6), (LAST, 6, 7)],
}
FORKED_FROM = {ROOT: None, EARLY: (GONE, 2), EMPTY: (GONE, 6), LAST: (EMPTY, 6)}


def read_dump(program: str, dialect: str) -> str:
    return (DUMPS / f"{program}.{dialect}.sql").read_text("utf-8")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def old_store(request: pytest.FixtureRequest, program: str, tmp_path: Path) -> AsyncIterator[EventStore]:
    """The store that a program left, opened by today's."""
    store: Any
    if request.param == "sqlite":
        db = sqlite3.connect(tmp_path / "log.db")
        db.executescript(read_dump(program, "sqlite"))
        db.close()
        store = await SqliteEventStore.open(tmp_path / "log.db")
    else:
        url = make_database(request.getfixturevalue("postgres"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(read_dump(program, "postgres").encode())
        store = await PostgresEventStore.open(url)
    yield store
    await store.aclose()


def test_every_schema_has_its_dumps() -> None:
    newest = migrations("sqlite")[-1].version
    assert {program.rstrip("ab") for program in PROGRAMS} == {str(n) for n in range(1, newest + 1)}
    assert sorted(file.name for file in DUMPS.iterdir()) == sorted(
        f"{program}.{dialect}.sql" for program in PROGRAMS for dialect in ("sqlite", "postgres")
    )


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_an_older_program_wrote_is_read_and_goes_on(old_store: EventStore) -> None:
    assert (await old_store.check()).findings == ()
    for cid, log in LOGS.items():
        found = [stored async for stored in old_store.read(cid)]
        assert [getattr(stored.event, "plain", None) for stored in found] == log
        assert await old_store.lineage(cid) == LINEAGES[cid]
        record = await old_store.get(cid)
        assert (record.forked_from and (record.forked_from, record.forked_at)) == FORKED_FROM[cid]
        assert record.head == len(log)
        assert record.usage == sum_payloads((stored.kind, stored.raw) for stored in found[record.base :])
    root = await old_store.get(ROOT)
    assert (root.title, root.tags, root.status, root.owner) == ("A title", {"a": "b"}, "paused", "o")
    assert (root.config, root.updated.microsecond) == ({"agent": "x"}, 123456)
    with pytest.raises(NotFound):
        await old_store.get(GONE)
    assert [child.id for child in await old_store.children(EMPTY)] == [LAST]
    fork = await old_store.fork(LAST, at=6)
    assert await old_store.append(fork.id, [UserMessage.text("new")]) == 7
    assert await old_store.append(ROOT, [UserMessage.text("new")]) == 6
    assert (await old_store.acquire(EARLY, "another", 60)).generation == 2, "leases of that time are over, and fenced"
    assert (await old_store.check()).findings == ()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_an_older_program_wrote_is_searched(old_store: EventStore) -> None:
    page = await old_store.search(MessageQuery(text="zwei A"))
    assert [(hit.conversation, hit.seq, hit.snippet) for hit in page.items] == [(ROOT, 1, "zwei ä")]
    assert [hit.conversation for hit in (await old_store.search(MessageQuery(text="early"))).items] == [EARLY]


USED = [
    ("ModelResponded", b'{"usage":{"requests":1,"input_tokens":7,"output_tokens":2,"cost_usd":0.0000000015}}'),
    ("ModelResponded", b"{}"),
    ("ToolReturned", b'{"usage":null}'),
    ("ToolReturned", b'{"usage":{"input_tokens":1' + b"0" * 30 + b'},"result":{"usage":{"requests":9}}}'),
    ("Condensed", b'{"usage":{"requests":-3,"output_tokens":1,"cost_usd":1e300}}'),
    ("UsageAdded", b"{broken"),
    ("TaskEnded", b'{"usage":{"requests":5,"cost_usd":5}}'),
]


@pytest.mark.parametrize("dialect", ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def test_usage_is_counted_as_that_of_new_events(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every event of ROOT counts, damaged ones as nothing; the events of the dump have no usage."""
    rows = [(100 + n, UUID(int=n), kind, data) for n, (kind, data) in enumerate(USED)]
    store: Any
    if dialect == "sqlite":
        with sqlite3.connect(tmp_path / "log.db") as db:
            db.executescript(read_dump("3", "sqlite"))
            insert = "insert into event (k, id, kind, ts, data, digest) values (?, ?, ?, 0, ?, 0)"
            db.executemany(insert, [(1 << 32 | seq, id.bytes, kind, data) for seq, id, kind, data in rows])
        db.close()
        store = await SqliteEventStore.open(tmp_path / "log.db")
    else:
        url = make_database(request.getfixturevalue("postgres"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(read_dump("3", "postgres").encode())
            insert = "insert into bough.event (cid, seq, id, kind, ts, data, digest) values (1, %s, %s, %s, 0, %s, 0)"
            connection.cursor().executemany(insert, rows)
        store = await PostgresEventStore.open(url)
    assert (await store.get(ROOT)).usage == sum_payloads(USED)
    assert sum_payloads(USED).columns == (3, 7 + (1 << 40), 3, 2 + (1 << 50))
    await store.aclose()
