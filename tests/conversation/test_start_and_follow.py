"""A run that continues without its caller, and the readers that follow it, from any object and process."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic_ai.models.function import FunctionModel

from bough import AgentSpec
from bough.conversation import AsyncConversation, Conversation, Delta
from bough.errors import Conflict, InvalidInput, ModelError, NotFound
from bough.events.lease import owner
from bough.events.record import Lease
from bough.events.store import EventStore
from bough.events.stores.sqlite import SqliteEventStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

WORDS = ("one ", "two ", "three ")


class Gate:
    """A tool that returns when the test opens it, and a model that streams words."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self) -> str:
        """Wait."""
        self.reached.set()
        await self.opened.wait()
        return "opened"

    def spec(self, *steps: Any) -> AgentSpec:
        return AgentSpec(model=ScriptedModel(steps or (tool_call("wait"), "done")), tools=(self.wait,), skills=())


def streaming() -> AgentSpec:
    async def stream(*_: Any) -> AsyncIterator[str]:
        for word in WORDS:
            await asyncio.sleep(0)
            yield word

    return AgentSpec(model=FunctionModel(stream_function=stream), skills=())


@pytest.fixture
def create(store: EventStore, settings: Settings, tmp_path: Path) -> Callable[[AgentSpec], Any]:
    async def create(spec: AgentSpec) -> AsyncConversation:
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
        await conversation.send_message("go")
        return conversation

    return create


async def collect(updates: AsyncIterator[Any]) -> list[Any]:
    async with asyncio.timeout(30):
        return [update async for update in updates]


def kinds(updates: list[Any]) -> list[str]:
    return [update.kind for update in updates if not isinstance(update, Delta)]


async def test_start_returns_with_the_lease_and_a_second_one_conflicts(
    create: Any, store: EventStore, settings: Settings
) -> None:
    gate = Gate()
    async with await create(gate.spec()) as conversation:
        await conversation.start()
        assert await store.lease_owner(conversation.id) is not None
        with pytest.raises(Conflict):
            await conversation.start()
        with pytest.raises(Conflict):
            await conversation.run()
        other = await AsyncConversation.open(conversation.id, agent=gate.spec(), store=store, settings=settings)
        async with other:
            with pytest.raises(Conflict):
                await other.start(close=True)
        gate.opened.set()
        assert kinds(await collect(conversation.follow()))[-1] == "StateChanged"
        assert conversation.result is not None
        assert conversation.result.output == "done"
        assert await store.lease_owner(conversation.id) is None


async def test_a_run_goes_on_when_its_followers_have_left(create: Any, store: EventStore, settings: Settings) -> None:
    gate = Gate()
    conversation = await create(gate.spec())
    cid = conversation.id
    await conversation.start(close=True)
    async for update in conversation.follow():
        if update.kind == "ToolCalled":
            break
    del conversation
    await gate.reached.wait()
    gate.opened.set()
    async with await AsyncConversation.open(cid, agent=gate.spec(), store=store, settings=settings) as again:
        seen = await collect(again.follow(after=2))
        assert seen[0].seq == 3
        assert kinds(seen)[-2:] == ["ModelResponded", "StateChanged"]
        await again.send_message("and more")
        assert again.status == "finished" or again.state.head > seen[-1].seq


async def test_each_follower_gets_each_event_once_and_pieces_before_their_response(
    create: Any, store: EventStore, settings: Settings
) -> None:
    spec = streaming()
    async with (
        await create(spec) as conversation,
        await AsyncConversation.open(conversation.id, agent=spec, store=store, settings=settings) as other,
    ):
        await conversation.start()
        results = await asyncio.gather(*(collect(each.follow()) for each in (conversation, other, other)))
        head = (await store.get(conversation.id)).head
    for updates in results:
        assert [update.seq for update in updates if not isinstance(update, Delta)] == list(range(head))
        pieces = [update for update in updates if isinstance(update, Delta)]
        assert [piece.text for piece in pieces] == list(WORDS)
        response = next(i for i, update in enumerate(updates) if getattr(update, "kind", "") == "ModelResponded")
        assert max(updates.index(piece) for piece in pieces) < response
        assert all(piece.response == updates[response].id for piece in pieces)


async def test_following_without_a_run_ends_at_the_head(create: Any) -> None:
    async with await create(streaming()) as conversation:
        assert kinds(await collect(conversation.follow()))[:2] == ["ConversationStarted", "UserMessage"]
        assert await collect(conversation.follow(after=conversation.state.head - 1)) == []
        await conversation.run()
        await conversation.start()
        assert conversation.result is not None
        assert conversation.result.steps == 0, "there was nothing to do"
        assert await collect(conversation.follow(after=10_000)) == []
        for after in (-2, 1.5, True, None):
            with pytest.raises(InvalidInput):
                conversation.follow(after)  # at once, and not when a response has begun


async def test_an_error_of_a_started_run_is_in_its_log(create: Any) -> None:
    async with await create(AgentSpec(model=ScriptedModel([ModelError("overloaded")]), skills=())) as conversation:
        await conversation.start()
        seen = await collect(conversation.follow())
        assert kinds(seen)[-2:] == ["ErrorRaised", "StateChanged"]
        assert conversation.result is not None
        assert (conversation.result.status, conversation.status) == ("error", "error")


async def test_what_cannot_start_raises_and_closes(create: Any, store: EventStore) -> None:
    gate = Gate()
    conversation = await create(gate.spec())
    lease = await store.acquire(conversation.id, owner(), 60)
    with pytest.raises(Conflict):
        await conversation.start(close=True)
    await store.release(lease)
    with pytest.raises(Exception, match="closed"):
        await conversation.start()


async def test_closing_interrupts_a_started_run(create: Any, store: EventStore, settings: Settings) -> None:
    gate = Gate()
    conversation = await create(gate.spec())
    await conversation.start(close=True)
    await gate.reached.wait()
    following = asyncio.create_task(collect(conversation.follow()))
    await asyncio.sleep(0)
    await conversation.aclose()
    assert kinds(await following)[-2:] == ["ToolInterrupted", "StateChanged"]
    assert (await store.get(conversation.id)).status == "paused"


async def test_a_deleted_conversation_ends_its_followers(create: Any, store: EventStore) -> None:
    async with await create(Gate().spec()) as conversation:
        await conversation.start()
        updates = conversation.follow()
        assert (await anext(updates)).seq == 0
        await store.delete(conversation.id)
        assert len(await collect(updates)) < 10
        with pytest.raises(NotFound):
            await collect(conversation.follow())


RUN = """
import asyncio, sys
from bough import AgentSpec, AsyncConversation
from bough.testing import ScriptedModel, tool_call

async def hang() -> None:
    "Hang."
    print("hangs", flush=True)
    await asyncio.Event().wait()

async def main() -> None:
    spec = AgentSpec(model=ScriptedModel([tool_call("hang"), "done"]), tools=(hang,), skills=())
    conversation = await AsyncConversation.create(spec, store=sys.argv[1], workspace=sys.argv[2])
    await conversation.send_message("go")
    print(conversation.id, flush=True)
    await conversation.start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_another_process_follows_a_run_until_it_is_killed(settings: Settings, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    command = [sys.executable, "-c", RUN, url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        cid = process.stdout.readline().strip()
        assert process.stdout.readline() == "hangs\n"
        async with await AsyncConversation.open(cid, agent=Gate().spec(), store=url, settings=settings) as opened:
            updates = opened.follow()
            seen = [await anext(updates)]
            while seen[-1].kind != "ToolCalled":
                seen.append(await anext(updates))
            process.kill()
            process.wait()
            rest = await collect(updates)  # ends, since the process is gone
            assert {update.kind for update in rest} <= {"StateChanged"}, "only the agent that this process opened with"
            assert json.loads(seen[-1].raw)["tool"] == "hang"


def test_the_sync_twin_starts_and_follows(settings: Settings, tmp_path: Path) -> None:
    async def act() -> str:
        """Act."""
        await asyncio.sleep(0.05)
        return "acted"

    url = f"sqlite:///{tmp_path / 'log.db'}"
    spec = AgentSpec(model=ScriptedModel([tool_call("act"), "done"]), tools=(act,), skills=())
    with Conversation(spec, workspace=tmp_path, store=url, settings=settings) as conversation:
        conversation.send_message("go")
        conversation.start()
        assert [update.kind for update in conversation.follow()][-2:] == ["ModelResponded", "StateChanged"]
        assert conversation.result is not None
        assert conversation.result.output == "done"


def test_a_dropped_sync_conversation_runs_to_its_end_and_closes(settings: Settings, tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def act() -> str:
        """Act."""
        entered.set()
        assert release.wait(30)
        return "acted"

    url = f"sqlite:///{tmp_path / 'log.db'}"
    spec = AgentSpec(model=ScriptedModel([tool_call("act"), "done"]), tools=(act,), skills=())
    conversation = Conversation(spec, workspace=tmp_path, store=url, settings=settings)
    cid, core = conversation.id, weakref.ref(conversation._core)
    conversation.send_message("go")
    conversation.start(close=True)
    assert entered.wait(30)
    del conversation
    gc.collect()
    with Conversation.open(cid, agent=spec, store=url, settings=settings) as reader:
        updates = reader.follow()
        release.set()
        assert list(updates)[-1].as_json()["changes"]["status"] == "finished"
    deadline = time.monotonic() + 30
    while core() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert core() is None, "nothing keeps what has closed itself"


class CountingStore(SqliteEventStore):
    """The real store, which counts what a conversation asks it for."""

    calls: ClassVar = Counter[str]()

    async def _write(self, change: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls["writes"] += 1
        return await super()._write(change, *args, **kwargs)

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        self.calls["leases"] += 1
        return await super().acquire(cid, owner, ttl)


async def test_start_costs_what_run_costs(settings: Settings, tmp_path: Path) -> None:
    store = await CountingStore.open(tmp_path / "log.db")
    assert isinstance(store, CountingStore)
    costs: list[Counter[str]] = []
    for starts in (False, True):
        gate = Gate()
        gate.opened.set()
        conversation = await AsyncConversation.create(gate.spec(), workspace=tmp_path, store=store, settings=settings)
        await conversation.send_message("go")
        store.calls.clear()
        if starts:
            await conversation.start()
            assert [update async for update in conversation.follow()]
        else:
            await conversation.run()
        assert conversation.status == "finished"
        costs.append(store.calls.copy())
        await conversation.aclose()
    await store.aclose()
    assert costs[0] == costs[1]
    assert costs[1]["leases"] == 1
