"""What a request costs, counted: statements, write transactions, hand-overs to threads. Never a time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import UUID

import httpx2
import pytest
from tests.conversation.places import Served
from tests.conversation.places import serving as serving_here

import bough
from bough.events import SqliteEventStore
from bough.events.model import StateChanged
from bough.events.stores.sqlite import readers
from bough.settings import Settings

pytestmark = pytest.mark.anyio

PACKAGE = f"{Path(bough.__file__).parent}/"


class CountingStore(SqliteEventStore):
    """Counts what is asked of the database: its statements, and the questions that other threads answer."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.statements: list[str] = []
        self.handovers = 0

    async def _read(self, query: Any, **named: Any) -> Any:
        loop_thread = threading.get_ident()

        def counted(log: Any) -> Any:
            self.handovers += threading.get_ident() != loop_thread
            log.db.set_trace_callback(self.statements.append)
            try:
                return query(log)
            finally:
                log.db.set_trace_callback(None)

        return await super()._read(counted, **named)

    async def _write(self, change: Any, **named: Any) -> Any:
        self.handovers += 1
        return await super()._write(change, **named)

    async def _append(self, append: Any) -> Any:
        self.handovers += 1
        return await super()._append(append)

    async def trace_writes(self) -> None:
        await super()._write(lambda log: log.db.set_trace_callback(self.statements.append))


class Costs:
    """Counts requests to a server in this process."""

    def __init__(self, served: Served, store: CountingStore, client: httpx2.AsyncClient) -> None:
        self.served, self.store, self.client = served, store, client

    async def count(self, method: str, path: str, rounds: int = 6, **options: Any) -> tuple[int, int, int]:
        """Return the least statements, hand-overs and write transactions of several warm requests."""
        counts: list[tuple[int, int, int]] = []
        for _ in range(rounds):
            await self.served.settle()
            self.store.statements.clear()
            self.store.handovers = 0
            response = await self.client.request(method, path, **options)
            assert response.status_code < 300, response.text
            # Not the store's own looks for other processes' commits: how many of them fall into a request is chance.
            ignored = ("--", "pragma data_version")
            statements = [line for line in self.store.statements if not line.startswith(ignored)]
            writes = sum(line.lower().startswith("begin immediate") for line in statements)
            counts.append((len(statements), self.store.handovers, writes))
        return min(counts[1:])

    async def record_calls(self, method: str, path: str, **options: Any) -> Counter[str]:
        """Return how often each function of bough was entered or resumed for a warm request, by file and name."""
        called: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(PACKAGE):
                called[f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_name}"] += 1

        for profile in (None, count):
            await self.served.settle()
            sys.setprofile(profile)
            try:
                response = await self.client.request(method, path, **options)
            finally:
                sys.setprofile(None)
            assert response.status_code < 300, response.text
        return called


@pytest.fixture
async def costs(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Costs]:
    # On a busy machine an inline query can take long, and the next ones would go to threads for a second.
    monkeypatch.setattr(readers, "SLOW_SECONDS", inf)
    store = cast("CountingStore", await CountingStore.open(tmp_path / "log.db"))
    try:
        async with serving_here(store, settings, tmp_path) as served:
            await store.trace_writes()
            async with httpx2.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as client:
                yield Costs(served, store, client)
    finally:
        await store.aclose()


async def start(costs: Costs, **body: Any) -> str:
    response = await costs.client.post("/api/conversations", json={"agent": {"model": "offline"}, **body})
    assert response.status_code == 201, response.text
    path = f"/api/conversations/{response.json()['id']}"
    said = await costs.client.post(f"{path}/events", json={"content": "hello"})
    assert said.status_code == 200
    return path


async def test_a_get_costs_one_look_at_the_store(costs: Costs) -> None:
    path = await start(costs)
    assert await costs.count("GET", path) == (5, 0, 0), "begin, row, erasures, run, commit"
    statements, handovers, writes = await costs.count("GET", f"{path}/events/search?limit=10")
    assert (handovers, writes) == (0, 0)
    assert statements <= 5
    statements, handovers, writes = await costs.count("GET", "/api/conversations/search?limit=10")
    assert (handovers, writes) == (0, 0), "few conversations are listed without a thread"
    assert statements <= 5


async def test_a_message_costs_one_transaction_and_one_handover(costs: Costs) -> None:
    path = await start(costs)
    statements, handovers, writes = await costs.count("POST", f"{path}/events", json={"content": "more"})
    assert (handovers, writes) == (1, 1)
    assert statements <= 18


async def test_a_message_looks_for_no_interpreter(costs: Costs) -> None:
    """The executor of a conversation looks for its sandboxes when code runs, not when a message is sent."""
    path = await start(costs)
    called = await costs.record_calls("POST", f"{path}/events", json={"content": "more"})
    assert called["conversation/open.py:reopen"] == 1
    assert [name for name in called if name.startswith("execution/sandbox/rung.py")] == []


async def test_a_page_costs_few_calls_for_each_event(costs: Costs) -> None:
    """The reader reads and encodes a batch in one loop: no generator is resumed for each event but the store's two."""
    path = await start(costs)
    for number in range(60):
        await costs.client.post(f"{path}/events", json={"content": f"message {number}"})
    few = await costs.record_calls("GET", f"{path}/events/search?limit=10")
    many = await costs.record_calls("GET", f"{path}/events/search?limit=50")
    growth = {name: (many[name] - few[name]) / 40 for name in many if many[name] > few[name]}
    assert sum(growth.values()) <= 13, growth
    assert "server/reading.py:_read" not in growth, growth


async def test_no_get_writes(costs: Costs) -> None:
    """A write transaction takes a lock and a commit, and wakes every dispatcher."""
    path = await start(costs, secrets={"TOKEN": "a-secret-value"})
    event = (await costs.client.get(f"{path}/events/search")).json()["items"][0]["id"]
    places = {"{id}": path.rpartition("/")[2], "{event_id}": event, "{other}": path.rpartition("/")[2]}
    documented = (await costs.client.get("/openapi.json")).json()["paths"]
    addresses = [address for address, methods in documented.items() if "get" in methods]
    for name, value in places.items():
        addresses = [address.replace(name, value) for address in addresses]
    endless = ("stream", "/api/updates")
    plain = [address for address in addresses if "{" not in address and not any(name in address for name in endless)]
    assert len(plain) > 25
    for address in plain:
        if (await costs.client.get(address)).status_code == 200:
            assert (await costs.count("GET", address))[2] == 0, address


async def test_the_kept_document_follows_everything_it_is_made_of(costs: Costs) -> None:
    """Each input in turn: the row, the events, what was erased, the latest run."""
    from bough.server.access import Access
    from bough.server.auth.caller import Caller
    from bough.server.auth.owned import OwnedStore
    from bough.server.conversations.conversation import info, make_document, read_snapshot

    path = await start(costs, title="first")
    services, id = costs.served._services, UUID(path.rpartition("/")[2])
    access = Access(caller=Caller(), store=OwnedStore(costs.store, None), services=services)

    async def check() -> bytes:
        body = (await costs.client.get(path)).content
        assert body == (await costs.client.get(path)).content
        made = await info(access, id)
        assert body == made.__pydantic_serializer__.to_json(made), "what is kept is what would be made now"
        return body

    documents = [await check()]
    before = await read_snapshot(access, id)
    assert services.states.find_document(id, before) == documents[0]

    await costs.store.append(id, [StateChanged(changes={"title": "second"})])
    documents.append(await check())
    assert (await costs.client.post(f"{path}/events", json={"content": "more"})).status_code == 200
    documents.append(await check())
    assert (await costs.client.post(f"{path}/run", json={})).status_code < 300
    run = await services.runs.latest(id)
    assert run is not None
    await services.runs.wait(run.task, 30)
    documents.append(await check())
    assert len(set(documents)) == len(documents)

    fork = (await costs.client.post(f"{path}/fork", json={})).json()["id"]
    first = (await costs.client.get(f"/api/conversations/{fork}")).content
    shared = await read_snapshot(access, UUID(fork))
    assert services.states.find_document(UUID(fork), shared) == first
    await costs.store.delete(id, "erase")
    erased = await read_snapshot(access, UUID(fork))
    assert erased != shared, "an erase of the source is one of its inputs"
    assert services.states.find_document(UUID(fork), erased) is None
    assert (await costs.client.get(f"/api/conversations/{fork}")).status_code == 200
    assert services.states.find_document(UUID(fork), erased) == await make_document(access, erased)


async def test_a_document_counts_for_the_bound_of_the_cache(costs: Costs) -> None:
    path = await start(costs)
    states, id = costs.served._services.states, UUID(path.rpartition("/")[2])
    await costs.client.get(path)
    held = states.bytes
    states.keep_document(id, "other inputs", b"x" * 1000)
    length = len((await costs.client.get(path)).content)
    states.keep_document(id, "other inputs", b"")
    assert states.bytes == held - length
    states.keep_document(id, "other inputs", b"x" * 1000)
    assert states.bytes == held - length + 1000
    states.forget(id)
    assert states.find_document(id, "other inputs") is None
