"""What a request costs does not depend on how long its conversation is: events read, statements, bytes in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.conversation.places import serving as serving_here

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import Unavailable
from bough.events import SqliteEventStore, open_store
from bough.events.model import SkillActivated, UserMessage
from bough.server.metrics import Metrics
from bough.server.states import StateCache
from bough.settings import Settings
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio

LONG = 10_000


class CountingStore(SqliteEventStore):
    """Counts the events that are read and the statements that are run."""

    events = 0

    async def read(self, *given: Any, **named: Any) -> Any:
        async for stored in super().read(*given, **named):
            self.events += 1
            yield stored

    async def count_statements(self) -> list[str]:
        """Return a list that every statement of the writer is added to."""
        statements: list[str] = []
        await self._write(lambda log: log.db.set_trace_callback(statements.append))
        return statements


async def make_long(store: Any, settings: Settings, workspace: Path) -> UUID:
    spec = AgentSpec(name="long", model="offline", skills=())
    async with await AsyncConversation.create(spec, workspace=workspace, store=store, settings=settings) as made:
        pass
    for start in range(0, LONG, 500):
        await store.append(made.id, [UserMessage.text(f"message {n}") for n in range(start, start + 500)])
    return made.id


async def test_a_fork_and_a_message_read_as_little_of_a_long_conversation_as_of_a_short_one(
    tmp_path: Path, settings: Settings
) -> None:
    """What is known of the source is what is known of the fork: its own few events are all that is read."""
    store = await CountingStore.open(tmp_path / "log.db")
    try:
        async with serving_here(store, settings, tmp_path) as served:
            long = await make_long(store, settings, tmp_path)
            short = await served.start(AgentSpec(name="short", model=ScriptedModel([]), skills=()))
            async with httpx2.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as client:
                written: dict[UUID, list[str]] = {}
                read: dict[UUID, list[int]] = {}
                for id in (short.id, long):
                    path = f"/api/conversations/{id}"
                    assert (await client.get(path)).status_code == 200  # folds it once, and keeps states
                    await served.settle()
                    statements, store.events, read[id] = await store.count_statements(), 0, []
                    made = await client.post(f"{path}/fork", json={})
                    assert made.status_code == 201
                    written[id] = [line.split()[0].lower() for line in statements]
                    read[id].append(store.events)
                    assert (await client.get(f"/api/conversations/{made.json()['id']}")).json()["head"] > 0
                    read[id].append(store.events)
                    assert (await client.post(f"{path}/events", json={"content": "hello"})).status_code == 200
                    read[id].append(store.events)
        for forked, got, said in read.values():
            assert forked <= 4, "the fork's own events"
            assert got == forked, "the document of a fork is what its making knows"
            assert said - got <= 2, "a message is said to what is known"
        assert written[long].count("insert") <= written[short.id].count("insert") + 1, "a kept state"
    finally:
        await store.aclose()


async def test_the_cache_stays_within_its_bytes_and_forgets_what_was_erased(tmp_path: Path, settings: Settings) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/log.db")
    try:
        spec = AgentSpec(name="a", model="offline", system_prompt="x" * 20_000, skills=())
        ids: list[UUID] = []
        for _ in range(6):
            async with await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings) as made:
                await made.send_message("a secret")
                await made.run()
                ids.append(made.id)
        metrics = Metrics()
        cache = StateCache(store, 150_000, metrics)
        for id in ids:
            await cache.state_of(await store.get(id))
            assert cache.bytes <= 150_000
        said = metrics.render().decode()
        assert "bough_cache_misses_total 6.0" in said
        assert f"bough_cache_bytes {float(cache.bytes)}" in said
        await cache.state_of(await store.get(ids[-1]))
        assert "bough_cache_hits_total 1.0" in metrics.render().decode()
        async with await AsyncConversation.open(ids[-1], store=store, settings=settings) as source:
            fork = await source.fork()
            await fork.aclose()
        before = await cache.state_of(await store.get(fork.id))
        assert before.output
        await store.delete(ids[-1], "erase")
        after = await cache.state_of(await store.get(fork.id))
        assert after is not before, "what is in memory was folded before the erase"
        huge = StateCache(store, 100, Metrics())
        await huge.state_of(await store.get(ids[0]))
        assert huge.bytes == 0, "one that is larger than the bound is not kept"
        await asyncio.gather(cache.aclose(), huge.aclose())
    finally:
        await store.aclose()


async def test_the_document_of_a_conversation_that_has_not_changed_reads_no_events(
    tmp_path: Path, settings: Settings
) -> None:
    """Not for its active skills either, whose names are in its events."""
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    store = await CountingStore.open(tmp_path / "log.db")
    try:
        async with serving_here(store, settings, tmp_path) as served:
            made = await served.start(AgentSpec(name="kind", model=ScriptedModel([])))
            async with httpx2.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as client:
                path = f"/api/conversations/{made.id}"
                first = (await client.get(path)).json()
                store.events = 0
                assert (await client.get(path)).json() == first
                assert store.events == 0
                await store.append(
                    made.id, [SkillActivated(name="late", trigger="tool", content_hash="0" * 64, rendered="")]
                )
                assert (await client.get(path)).json()["invoked_skills"] == ["late"]
    finally:
        await store.aclose()


def test_what_a_hundred_readers_are_sent_is_read_and_encoded_once(serving: Any) -> None:
    """Each has the same bytes; the state behind an event is read for all of them together."""
    readers = 100
    with serving("hello") as server, server.client(limits=httpx2.Limits(max_connections=readers + 1)) as client:
        services = server.app.state.services
        asked, latest = 0, services.runs.latest

        async def counting(cid: UUID) -> Any:
            nonlocal asked
            asked += 1
            return await latest(cid)

        services.runs.latest = counting
        id = client.post("/api/conversations", json={}).json()["id"]
        begun = threading.Barrier(readers + 1)

        def read() -> list[str]:
            frames: list[str] = []
            with client.stream("GET", f"/api/conversations/{id}/events/stream?deltas=false") as stream:
                for line in stream.iter_lines():
                    if line.startswith("data:") and "execution_status" in line:
                        frames.append(line)
                        if len(frames) == 1:
                            begun.wait(60)
                        elif '"finished"' in line:
                            return frames[1:]
            raise AssertionError(frames)

        with ThreadPoolExecutor(readers) as pool:
            reading = [pool.submit(read) for _ in range(readers)]
            begun.wait(60)
            before = asked
            client.post(f"/api/conversations/{id}/events", json={"content": "hi", "run": True})
            told = [each.result() for each in reading]
        assert all(each == told[0] for each in told)
        assert asked - before < 10 < readers


def test_a_state_that_could_not_be_read_is_read_again_for_the_next_reader(serving: Any) -> None:
    """What readers share is kept with its event; a kept error would end the stream of each reader that returns."""
    with serving("hello") as server, server.client() as client:
        services = server.app.state.services
        id = client.post("/api/conversations", json={}).json()["id"]
        path, latest, is_away = f"/api/conversations/{id}/events/stream", services.runs.latest, threading.Event()

        async def failing(cid: UUID) -> Any:
            if is_away.is_set():
                raise Unavailable("the store is away")
            return await latest(cid)

        services.runs.latest = failing

        def read_states(**query: str) -> Iterator[str]:
            with client.stream("GET", path, params=query) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data:") and "execution_status" in line:
                        yield line

        broken = read_states(after="now")
        next(broken)
        is_away.set()
        client.post(f"/api/conversations/{id}/events", json={"content": "hi"})
        client.post(f"/api/conversations/{id}/run")
        with suppress(httpx2.HTTPError):
            assert not list(broken), "the stream ends where the state cannot be read"
        is_away.clear()
        _, *states = read_states(after="-1", until="caught_up")
        assert states
