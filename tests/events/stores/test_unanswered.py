"""A Postgres behind a proxy that stops, slows, drops and comes back: nothing lost, nothing doubled, every call ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from tests.events.stores.flaky_proxy import FlakyProxy

from bough.errors import BoughError, StoreError, Unavailable
from bough.events import PostgresEventStore
from bough.events.model import UserMessage
from bough.events.side_tables import SideTables
from bough.events.stores.postgres import store as store_module

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgres")]

SNAPSHOT = SideTables("snapshot", "bough.conversation.log.sql")
SLACK_SECONDS = 30
"""A machine that does other work as well: a call without a bound would take longer than any of this."""


@pytest.fixture
async def store(between: Any, schema: str, short: None) -> AsyncIterator[PostgresEventStore]:
    store = await PostgresEventStore.open(between[1], schema=schema, poll_seconds=0.2)
    yield store
    await store.aclose()


def message(text: str = "x") -> UserMessage:
    return UserMessage.text(text)


async def test_a_server_that_answers_nothing_ends_every_call(store: PostgresEventStore, between: Any) -> None:
    """Everything is acknowledged and nothing answered, which no bound of a socket or of the server notices."""
    proxy, _ = between
    record = await store.create(events=[message()])
    lease = await store.acquire(record.id, "me", 60)
    await store.transaction(SNAPSHOT, lambda tables: None)
    proxy.behave("silent")
    calls = {
        "append": store.append(record.id, [message()]),
        "two": store.append(record.id, [message(), message()]),
        "get": store.get(record.id),
        "tail": store.tail(record.id, 1),
        "fork": store.fork(record.id),
        "create": store.create(),
        "acquire": store.acquire(record.id, "other", 5),
        "renew": store.renew(lease, 5),
        "release": store.release(lease),
        "transaction": store.transaction(SNAPSHOT, lambda tables: tables.number(record.id)),
        "lineage": store.lineage(record.id),
    }
    async with asyncio.timeout(SLACK_SECONDS):
        ends = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert {name: type(end) for name, end in zip(calls, ends, strict=True)} == dict.fromkeys(calls, Unavailable)
    unknown = [end.details.get("outcome") for end in ends if isinstance(end, BoughError)]
    assert "unknown" in unknown
    proxy.behave("pass")
    proxy.drop()
    await until_it_answers(store, record.id)
    assert (await store.check()).findings == ()


async def test_closing_does_not_wait_for_a_server_that_is_silent(between: Any, schema: str, short: None) -> None:
    proxy, url = between
    store = await PostgresEventStore.open(url, schema=schema)
    record = await store.create()
    proxy.behave("silent")
    append = asyncio.ensure_future(store.append(record.id, [message()]))
    async with asyncio.timeout(SLACK_SECONDS):
        await store.aclose()
        with pytest.raises((StoreError, Unavailable)):
            await append


async def until_it_answers(store: PostgresEventStore, cid: UUID) -> None:
    async with asyncio.timeout(SLACK_SECONDS):
        while True:
            with suppress(StoreError, Unavailable):
                await store.get(cid)
                return


@pytest.mark.parametrize("count", [1, 3])
async def test_an_append_that_arrives_late_is_not_doubled(store: PostgresEventStore, between: Any, count: int) -> None:
    """The first one is held back, the second is sent over a new connection, and then the first continues."""
    proxy, _ = between
    record = await store.create(events=[message()])
    event = [message(str(n)) for n in range(count)]
    proxy.behave("silent")
    sent = asyncio.ensure_future(store.append(record.id, event, expected_head=1))
    with pytest.raises(Unavailable) as unknown:
        await sent
    assert unknown.value.details["outcome"] == "unknown"
    proxy.behave("pass")
    await until_it_answers(store, record.id)
    with suppress(BoughError):
        await store.append(record.id, event, expected_head=1)  # the caller repeats what it does not know of
    log = [stored.id async for stored in store.read(record.id)]
    assert log[1:] == [each.id for each in event]
    assert (await store.check()).findings == ()


async def test_an_append_whose_answer_is_lost_is_told_as_written(
    store: PostgresEventStore, between: Any, postgres: str, schema: str
) -> None:
    """The server did it; only the answer never came. It is found by its id, and nobody has to know."""
    proxy, _ = between
    record = await store.create(events=[message()])
    tail = store.subscribe(record.id, 0)
    direct = await PostgresEventStore.open(postgres, schema=schema)
    head = 1
    for _ in range(5):
        proxy.close_half()  # requests still arrive, answers do not
        event = message()
        with suppress(StoreError, Unavailable):
            head = await store.append(record.id, [event])
            assert (await direct.tail(record.id, 1))[0].id == event.id
    log = [stored async for stored in direct.read(record.id)]
    assert head <= len(log)
    assert len({stored.id for stored in log}) == len(log)
    async with asyncio.timeout(SLACK_SECONDS), aclosing(tail):
        for stored in log[1:]:
            assert (await anext(tail)).id == stored.id
    await direct.aclose()


class Load:
    """Eight writers to as many conversations, a subscriber, and an account of what every call gave."""

    def __init__(self, store: PostgresEventStore, cids: list[UUID], rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self.acknowledged: dict[UUID, list[UUID]] = {cid: [] for cid in cids}
        self.asked: dict[UUID, list[UUID]] = {cid: [] for cid in cids}
        self.errors: Counter[str] = Counter()
        self.longest = 0.0
        self.heard: list[UUID] = []
        self.running = True
        self.moved = asyncio.Event()

    async def write(self, cid: UUID) -> None:
        while self.running:
            events = [message() for _ in range(self.rng.choice((1, 1, 3)))]
            self.asked[cid] += [event.id for event in events]
            started = monotonic()
            try:
                await self.store.append(cid, events)
            except (StoreError, Unavailable) as error:
                self.errors[error.code] += 1
            else:
                self.acknowledged[cid] += [event.id for event in events]
            self.longest = max(self.longest, monotonic() - started)
            self.moved.set()

    async def follow(self, cid: UUID) -> None:
        async for stored in self.store.subscribe(cid):
            self.heard.append(stored.id)
            self.moved.set()

    async def wait_for_calls(self, count: int) -> None:
        """Return when so many calls more have ended, whichever way."""
        goal = self.ended + count
        await self.wait_until(lambda: self.ended >= goal)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when something is so, which is looked at after each call and each event that was heard."""
        async with asyncio.timeout(SLACK_SECONDS):
            while not is_so():
                self.moved.clear()
                await self.moved.wait()

    @property
    def ended(self) -> int:
        return sum(map(len, self.acknowledged.values())) + self.errors.total()

    def require(self, cid: UUID, log: list[UUID]) -> None:
        """Check a log against what was acknowledged."""
        acknowledged = self.acknowledged[cid]
        assert len(set(log)) == len(log), "doubled"
        assert set(acknowledged) <= set(log), "lost"
        assert set(log) <= set(self.asked[cid])
        assert [id for id in log if id in set(acknowledged)] == acknowledged, "in another order"


def trouble(proxy: FlakyProxy, rng: random.Random) -> None:
    match rng.choice(("silent", "slow", "drop", "half", "drop")):
        case "drop":
            proxy.drop()
        case "half":
            proxy.close_half()
        case "slow":
            proxy.behave("slow")
        case _:
            proxy.behave("silent")


@pytest.mark.slow
async def test_fifty_rounds_under_load(store: PostgresEventStore, between: Any, postgres: str, schema: str) -> None:
    """What was acknowledged is there, what is there came once and in order, and a subscriber has all of it."""
    proxy, rng = between[0], random.Random(7)
    cids = [(await store.create()).id for _ in range(8)]
    load = Load(store, cids, rng)
    follower = asyncio.create_task(load.follow(cids[0]))
    writers = [asyncio.create_task(load.write(cid)) for cid in cids]
    for _ in range(50):
        trouble(proxy, rng)
        await load.wait_for_calls(8)
        proxy.behave("pass")
        await load.wait_for_calls(8)
    load.running = False
    async with asyncio.timeout(SLACK_SECONDS):
        await asyncio.gather(*writers)
    assert load.errors, "the proxy was in nobody's way"
    assert load.longest < store_module.CALL_SECONDS + SLACK_SECONDS
    direct = await PostgresEventStore.open(postgres, schema=schema)
    logs = {cid: [stored.id async for stored in direct.read(cid)] for cid in cids}
    for cid, log in logs.items():
        load.require(cid, log)
    await load.wait_until(lambda: len(load.heard) >= len(logs[cids[0]]))
    assert load.heard == logs[cids[0]]
    assert (await direct.check()).findings == ()
    follower.cancel()
    with suppress(asyncio.CancelledError):
        await follower
    await direct.aclose()
