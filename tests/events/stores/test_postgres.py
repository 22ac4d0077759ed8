"""What is special about Postgres: one statement a batch, lost connections, lost notifications, schemas."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from bough.errors import BoughError, Conflict, CorruptLog, InvalidInput, NotFound, StoreError, Unavailable
from bough.events import PostgresEventStore
from bough.events.draft import Append, encode_draft, event_checksum
from bough.events.model import ToolReturned, UserMessage
from bough.events.queries import migrations
from bough.events.stores.postgres.appending import group_appends
from bough.events.stores.postgres.writing import PostgresWriting
from bough.events.stores.relational.reading import PAGE_BYTES
from bough.testing.postgres import drop_schema
from bough.types import new_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def schema(postgres: str) -> Iterator[str]:
    name = f"special_{new_id().hex}"
    yield name
    drop_schema(postgres, name)


@pytest.fixture
async def store(postgres: str, schema: str) -> AsyncIterator[PostgresEventStore]:
    store = await PostgresEventStore.open(postgres, schema=schema, poll_seconds=0.2)
    yield store
    await store.aclose()


def execute(postgres: str, schema: str, statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(postgres, autocommit=True, options=f"-c search_path={schema}") as db:
        cursor = db.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def message(text: str = "x") -> UserMessage:
    return UserMessage.text(text)


async def test_appends_at_the_same_time_are_one_statement(store: PostgresEventStore) -> None:
    records = [await store.create() for _ in range(20)]
    statements = 0
    work = store._appends._work
    execute_ = work._execute

    def counting(*statement: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute_(*statement)

    work._execute = counting
    await asyncio.gather(*(store.append(record.id, [message()]) for record in records for _ in range(3)))
    assert statements == 1
    assert [(await store.get(record.id)).head for record in records] == [3] * 20


async def test_one_event_alone_needs_no_arrays(store: PostgresEventStore) -> None:
    """The lean statement does what the general one does, and leaves saying no to it."""
    record = await store.create()
    asked: list[bytes] = []
    work = store._appends._work
    execute_ = work._execute

    def listening(statement: bytes, parameters: Any) -> Any:
        asked.append(statement)
        return execute_(statement, parameters)

    work._execute = listening
    event = message()
    assert await store.append(record.id, [event], generation=0, expected_head=0) == 1
    assert await store.append(record.id, [message(), message()]) == 3
    with pytest.raises(Conflict, match="has 3 events, not 1"):
        await store.append(record.id, [message()], expected_head=1)
    with pytest.raises(Conflict, match="stored already"):
        await store.append(record.id, [event])
    with pytest.raises(NotFound):
        await store.append(new_id(), [message()])
    lean, general = work._statement_for_one, work._statement
    assert asked == [lean, general, lean, general, lean, lean, general]
    assert [stored.seq for stored in await store.tail(record.id, 9)] == [0, 1, 2]


async def test_kept_plans_find_conversations_by_their_keys(store: PostgresEventStore) -> None:
    """Plans made for a small store are used in a large one: a scan would make appends O(conversations)."""
    record = await store.create()
    for _ in range(40):  # so often that each statement is kept by one connection at least, whichever gets it
        await asyncio.gather(*(store.append(record.id, [message()]) for _ in range(2)))
        await store.append(record.id, [message()])
        await store.fork(record.id)
        assert len(await store.tail(record.id, 2)) == 2
    plans: dict[str, str] = {}
    with ExitStack() as stack:
        for _ in range(store._pool.get_stats()["pool_size"]):
            plans |= kept_plans(stack.enter_context(store._pool.connection()))
    assert len(plans) >= 4
    assert [sql for sql, plan in plans.items() if "Seq Scan" in plan] == []


def kept_plans(db: psycopg.Connection[Any]) -> dict[str, str]:
    db.execute("set plan_cache_mode = force_generic_plan")
    kept = db.execute("select name, statement, cardinality(parameter_types) from pg_prepared_statements").fetchall()
    return {sql: plan(db, name, parameters) for name, sql, parameters in kept if parameters}


def plan(db: psycopg.Connection[Any], name: str, parameters: int) -> str:
    nothing = ", ".join(["null"] * parameters)
    return "\n".join(line for (line,) in db.execute(f"explain execute {name} ({nothing})".encode()))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cut", [None, 3])
async def test_large_events_are_read_a_few_at_a_time(store: PostgresEventStore, reverse: bool, cut: int | None) -> None:
    """Forwards, backwards, and across the ranges of a fork."""
    large = [ToolReturned(tool_call_id="1", tool="t", result="x" * 1_500_000) for _ in range(6)]
    cid = (await store.create(events=large[:cut])).id
    if cut is not None:
        cid = (await store.fork(cid, events=large[cut:])).id
    sizes, seqs = [], []
    events, left = await store._read(lambda log: log.first_page(cid, 0, None, reverse))
    while events:
        sizes.append(sum(len(stored.raw) for stored in events))
        seqs += [stored.seq for stored in events]
        events, left = await store._read(lambda log, left=left: log.page(left, reverse))
    assert seqs == (list(range(6))[::-1] if reverse else list(range(6)))
    assert len(sizes) > 1
    assert max(sizes) < PAGE_BYTES + 1_600_000


async def test_a_changed_payload_is_noticed_by_whoever_reads_it(
    store: PostgresEventStore, postgres: str, schema: str
) -> None:
    record = await store.create(events=[message(str(i)) for i in range(10)])
    execute(postgres, schema, "update event set data = set_byte(data, 20, 33) where seq = 4")
    with pytest.raises(CorruptLog) as corrupt:
        _ = [stored async for stored in store.read(record.id)]
    assert (corrupt.value.details["lo"], corrupt.value.details["hi"]) == (4, 5)
    assert len(await store.tail(record.id, 5)) == 5


async def test_a_fork_writes_one_row(store: PostgresEventStore, postgres: str, schema: str) -> None:
    for size in (10, 1000):
        record = await store.create(events=[message() for _ in range(size)])
        before = rows(postgres, schema)
        await store.fork(record.id)
        assert {table: n - before[table] for table, n in rows(postgres, schema).items()} == {
            "conversation": 1, "event": 0, "lease": 0,
        }  # fmt: skip


def rows(postgres: str, schema: str) -> dict[str, int]:
    return {t: execute(postgres, schema, f"select count(*) from {t}")[0][0] for t in ("conversation", "event", "lease")}


def test_conditional_appends_are_judged_one_after_the_other() -> None:
    a, b = new_id(), new_id()
    plain = Append(a, encode_draft([message()]), None, None)
    groups = group_appends([plain, plain._replace(expected_head=1), plain, plain, plain._replace(cid=b)])
    assert [[[number for number, _ in group] for group in groups_] for groups_ in groups] == [
        [[0], [4]],
        [[1]],
        [[2, 3]],
    ]


async def test_a_lost_notification_is_found_by_looking(store: PostgresEventStore, postgres: str, schema: str) -> None:
    record = await store.create()
    await store.append(record.id, [message("first")])
    tail = store.subscribe(record.id)
    assert (await anext(tail)).seq == 0
    waiting = asyncio.ensure_future(anext(tail))
    ((kind, ts, data),) = execute(postgres, schema, "select kind, ts, data from event")
    id = new_id()
    digest = event_checksum(id.bytes, kind, ts, data)
    execute(postgres, schema, "insert into event select cid, 1, %s, kind, ts, data, %s from event", id, digest)
    execute(postgres, schema, "update conversation set head = 2")
    await store._write(lambda log: log.run("seal", cid=record.number))
    async with asyncio.timeout(20):
        assert (await waiting).id == id


async def test_a_lost_notification_is_found_beside_steady_traffic(
    store: PostgresEventStore, postgres: str, schema: str
) -> None:
    """Looking goes by time, not by silence: events that come and come must not put it off."""
    record, busy = await store.create(events=[message("first")]), await store.create()
    tail, other = store.subscribe(record.id), store.subscribe(busy.id)
    assert (await anext(tail)).seq == 0
    waiting = asyncio.ensure_future(anext(tail))
    ((kind, ts, data),) = execute(postgres, schema, "select kind, ts, data from event")
    id = new_id()
    digest = event_checksum(id.bytes, kind, ts, data)

    def write(log: PostgresWriting) -> None:
        log.db.execute("insert into event select cid, 1, %s, kind, ts, data, %s from event", (id, digest))
        log.db.execute("update conversation set head = 2 where cid = %s", (record.number,))
        log.run("seal", cid=record.number)

    await store._write(write)
    async with asyncio.timeout(60):
        while not waiting.done():
            await store.append(busy.id, [message()])
            await anext(other)
    assert (await waiting).id == id


async def test_another_process_is_heard(store: PostgresEventStore, postgres: str, schema: str) -> None:
    other = await PostgresEventStore.open(postgres, schema=schema, poll_seconds=3600)
    record = await store.create()
    tail = other.subscribe(record.id)
    async with asyncio.timeout(20):
        for seq in range(20):
            await store.append(record.id, [message()])
            assert (await anext(tail)).seq == seq
        waiting = asyncio.ensure_future(anext(tail, None))
        await store.delete(record.id)
        assert await waiting is None
    await other.aclose()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_batch_whose_connection_was_lost_is_sent_once_more(
    store: PostgresEventStore, postgres: str, schema: str, times: int
) -> None:
    record = await store.create(events=[message()])
    blocked = [message("blocked") for _ in range(3)]
    with psycopg.connect(postgres, options=f"-c search_path={schema}") as db:
        db.execute("select 1 from conversation for update")  # the batch now waits for this row
        append = asyncio.create_task(store.append(record.id, blocked))
        for _ in range(times):
            await asyncio.to_thread(terminate_waiting, postgres)
        if times == 1:
            db.rollback()
            assert await append == 4
        else:
            with pytest.raises(StoreError, match="connection was lost") as lost:
                await append
            assert lost.value.details["outcome"] == "unknown"
            db.rollback()
            assert await store.append(record.id, blocked) == 4
    assert (await store.check()).findings == ()


def terminate_waiting(postgres: str) -> None:
    """End the server process that waits for a lock, as soon as one does."""
    ended: list[Any] = []
    with psycopg.connect(postgres, autocommit=True) as db:
        while not ended:
            ended = db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where wait_event_type = 'Lock' and application_name = 'bough'"
            ).fetchall()


async def test_connections_ended_by_the_server_are_replaced(store: PostgresEventStore, postgres: str) -> None:
    record = await store.create()
    tail = store.subscribe(record.id)
    waiting = asyncio.ensure_future(anext(tail))
    await store.get(record.id)
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'bough'")
    head = 0
    async with asyncio.timeout(20):
        while head == 0:
            try:
                head = await store.append(record.id, [message()])
            except StoreError:
                continue  # every dead connection is told once, then gone
        assert (await waiting).seq == 0
    assert (await store.check()).findings == ()


async def test_a_server_that_is_not_there_is_a_typed_error() -> None:
    with pytest.raises(StoreError) as missing:
        await PostgresEventStore.open("postgresql://someone:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(missing.value.as_dict())
    assert missing.value.hint


async def test_a_newer_schema_is_refused(postgres: str, schema: str) -> None:
    await (await PostgresEventStore.open(postgres, schema=schema)).aclose()
    execute(postgres, schema, "insert into migration (version) values (99)")
    with pytest.raises(StoreError, match="99") as refused:
        await PostgresEventStore.open(postgres, schema=schema)
    assert "upgrade" in refused.value.hint


async def test_many_may_open_an_empty_database_at_once(postgres: str, schema: str) -> None:
    stores = await asyncio.gather(*(PostgresEventStore.open(postgres, schema=schema) for _ in range(4)))
    assert execute(postgres, schema, "select version from migration") == [
        (step.version,) for step in migrations("postgres")
    ]
    for store in stores:
        await store.aclose()


async def test_a_schema_has_a_plain_name(postgres: str) -> None:
    with pytest.raises(InvalidInput):
        await PostgresEventStore.open(postgres, schema='x"; drop schema public')


async def test_damage_is_found_and_what_is_readable_named(
    store: PostgresEventStore, postgres: str, schema: str
) -> None:
    record = await store.create(events=[message(str(i)) for i in range(10)])
    execute(postgres, schema, "update event set data = '{}' where seq = 3")
    execute(postgres, schema, "delete from event where seq = 7")
    (finding,) = (await store.check()).findings
    assert finding.conversation == record.id
    assert finding.readable == ((0, 3), (4, 7), (8, 10))
    with pytest.raises(BoughError) as corrupt:
        _ = [stored async for stored in store.read(record.id)]
    assert corrupt.value.code == "corrupt_log"


async def test_it_works_from_another_loop_in_another_thread(store: PostgresEventStore) -> None:
    record = await store.create()

    def elsewhere() -> None:
        asyncio.run(store.append(record.id, [message()]))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert (await store.get(record.id)).head == 1


async def test_every_connection_has_bounds(postgres: str, schema: str) -> None:
    """What the server would wait for without end, it gives up; options of the URL are kept."""
    store = await PostgresEventStore.open(f"{postgres}?options=-c%20work_mem%3D5MB", schema=schema)
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "work_mem")

    def look(log: Any) -> list[str]:
        return [log.db.execute(f"show {name}").fetchone()[0] for name in names]

    assert await store._read(look) == ["10s", "5s", "1min", "5MB"]
    await store.aclose()


async def test_a_lock_that_somebody_keeps_is_given_up(postgres: str, schema: str) -> None:
    """An append behind a transaction that never ends is `Unavailable` and writes nothing."""
    store = await PostgresEventStore.open(postgres, schema=schema)
    record = await store.create()
    with psycopg.connect(postgres, options=f"-c search_path={schema}") as other:
        other.execute("select 1 from conversation for update")
        await store._read(lambda log: None)  # the pool has a connection
        for db in store._pool._pool:
            db.execute("set lock_timeout = '50ms'")
        with pytest.raises(Unavailable):
            await store.append(record.id, [UserMessage.text("x")])
    assert await store.append(record.id, [UserMessage.text("y")]) == 1
    await store.aclose()
