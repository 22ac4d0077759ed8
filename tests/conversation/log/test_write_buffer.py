"""Staged events: folded at once, durable together, and durable before anything outside follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.log import write_buffer
from bough.conversation.log.journal import Journal
from bough.conversation.log.view import encode_response
from bough.errors import Conflict, CorruptLog, StoreError
from bough.events import SqliteEventStore, open_store
from bough.events.model import Event, ModelResponded, StateChanged, ToolCalled, ToolReturned, UserMessage
from bough.guard import ConfirmRisky, Hook, HookKind, HookSet, RuleAnalyzer
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def only_barriers_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)


class Recording(SqliteEventStore):
    """The real store, which notes the kinds of every append and fails when told to."""

    appended: list[list[str]]
    fails = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.appended = []

    async def append(self, cid: UUID, events: Sequence[Event], **kwargs: Any) -> int:
        self.appended.append([event.kind for event in events])
        if self.fails:
            raise StoreError("the disk is gone")
        return await super().append(cid, events, **kwargs)


@pytest.fixture
async def recording() -> AsyncIterator[SqliteEventStore]:
    async with aclosing(await Recording.open_private()) as store:
        yield store


async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def called(n: int) -> ModelResponded:
    call = ToolCallPart("double", {"n": n}, tool_call_id=f"c{n}")
    return ModelResponded(response=encode_response(ModelResponse(parts=[call])))


# How many appends a step takes.


async def run(store: Any, settings: Any, workspace: Path, steps: Sequence[Any], **rules: Any) -> AsyncConversation:
    spec = AgentSpec(model=ScriptedModel(steps), tools=(double,), skills=())
    conversation = await AsyncConversation.create(spec, workspace=workspace, store=store, settings=settings, **rules)
    await conversation.send_message("go")
    store.appended.clear()
    assert (await conversation.run()).status == "finished"
    return conversation


def looking(*kinds: HookKind, outside: bool) -> HookSet:
    async def look(_: Any) -> None: ...

    return HookSet(tuple(Hook(kind=kind, function=look, outside=outside) for kind in kinds))


BOTH = (HookKind.PRE_TOOL_USE, HookKind.POST_TOOL_USE)


async def test_a_step_is_one_append(recording: Recording, settings: Any, tmp_path: Path) -> None:
    steps = [*(tool_call("double", n=n) for n in range(9)), "done"]
    rules = {"hooks": looking(*BOTH, outside=False), "confirmation_policy": ConfirmRisky(confirm_unknown=False)}
    await run(recording, settings, tmp_path, steps, **rules)
    first, *middle, last = recording.appended
    assert first == ["StateChanged", "ModelResponded", "HookRan", "ToolCalled"]
    assert middle == [["ToolReturned", "HookRan", "ModelResponded", "HookRan", "ToolCalled"]] * 8
    assert last == ["ToolReturned", "HookRan", "ModelResponded", "StateChanged"]


async def test_a_hook_that_may_act_has_an_append_before_it(recording: Recording, settings: Any, tmp_path: Path) -> None:
    steps = [*(tool_call("double", n=n) for n in range(3)), "done"]
    await run(recording, settings, tmp_path, steps, hooks=looking(*BOTH, outside=True))
    assert recording.appended[3:6] == [["HookRan", "ModelResponded"], ["HookRan", "ToolCalled"], ["ToolReturned"]]
    assert len(recording.appended) == 3 * 3 + 1


async def test_parallel_calls_are_one_append_and_their_results_another(
    recording: Recording, settings: Any, tmp_path: Path
) -> None:
    steps = [[tool_call("double", n=n) for n in range(5)], "done"]
    await run(recording, settings, tmp_path, steps)
    assert recording.appended[0] == ["StateChanged", "ModelResponded", *["ToolCalled"] * 5]
    assert recording.appended[1] == ["ToolReturned"] * 5
    assert len(recording.appended) == 3


# What is durable when something outside happens.


class Durable:
    """Says what the log of a conversation ends with, at the moment it is asked."""

    def __init__(self, store: Any) -> None:
        self.store, self.seen = store, []  # type: ignore[var-annotated]

    async def look(self, *_: Any) -> None:
        cid = (await self.store.list()).items[0].id
        self.seen.append([stored.kind async for stored in self.store.read(cid)][-1])


async def test_a_call_is_durable_before_its_tool_runs(store: Any, settings: Any, tmp_path: Path) -> None:
    durable = Durable(store)

    async def act() -> str:
        """Act."""
        await durable.look()
        return "acted"

    spec = AgentSpec(model=ScriptedModel([tool_call("act"), "done"]), tools=(act,), skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
    await conversation.send_message("go")
    await conversation.run()
    assert durable.seen == ["ToolCalled"]


@pytest.mark.parametrize(("kind", "last"), [(BOTH[0], "ModelResponded"), (BOTH[1], "ToolReturned")])
async def test_what_a_hook_is_told_is_durable(
    store: Any, settings: Any, tmp_path: Path, kind: HookKind, last: str
) -> None:
    durable = Durable(store)
    spec = AgentSpec(model=ScriptedModel([tool_call("double", n=1), "done"]), tools=(double,), skills=())
    conversation = await AsyncConversation.create(
        spec,
        workspace=tmp_path,
        store=store,
        settings=settings,
        hooks=HookSet((Hook(kind=kind, function=durable.look),)),
    )
    await conversation.send_message("go")
    await conversation.run()
    assert durable.seen == [last]


async def test_what_a_foreign_analyzer_is_asked_is_durable(store: Any, settings: Any, tmp_path: Path) -> None:
    durable = Durable(store)

    class Asking:
        """Asks somebody outside."""

        async def analyze(self, call: Any) -> Any:
            await durable.look()
            return RuleAnalyzer().assess(call)

        def to_json(self) -> Any:
            return {"kind": "Asking"}

    spec = AgentSpec(model=ScriptedModel([tool_call("double", n=1), "done"]), tools=(double,), skills=())
    conversation = await AsyncConversation.create(
        spec, workspace=tmp_path, store=store, settings=settings, security_analyzer=Asking()
    )
    await conversation.send_message("go")
    await conversation.run()
    assert durable.seen == ["ModelResponded"]


async def test_nothing_is_left_to_be_written_when_a_run_returns(store: Any, settings: Any, tmp_path: Path) -> None:
    spec = AgentSpec(model=ScriptedModel(["answered"]), skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
    await conversation.send_message("go")
    await conversation.run()
    assert (await store.get(conversation.id)).head == conversation.state.head


async def test_what_nobody_waits_for_is_written_all_the_same(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 0.001)
    journal = Journal(store, (await store.create()).id)
    heard = asyncio.Event()
    journal.listeners.append(lambda _: heard.set())
    journal.stage(UserMessage.text("hello"))
    async with asyncio.timeout(5):
        await heard.wait()
    assert journal.durable == 1


# Others append in between.


async def folded(store: Any, cid: UUID) -> Journal:
    journal = Journal(store, cid)
    await journal.catch_up()
    return journal


async def same(a: Journal, b: Journal) -> bool:
    return (a.state, (await a.render()).messages()) == (b.state, (await b.render()).messages())


STEPS: list[Callable[[int], list[Event]]] = [
    lambda n: [UserMessage.text(f"message {n}")],
    lambda n: [called(n), ToolCalled(tool_call_id=f"c{n}", tool="double", arguments={"n": n})],
    lambda n: [ToolReturned(tool_call_id=f"c{n - 1}", tool="double", result=2 * n)],
    lambda n: [ModelResponded(response=encode_response(ModelResponse(parts=[TextPart(f"text {n}")])))],
    lambda n: [StateChanged(changes={"title": f"title {n}", "tags": {"n": str(n)}})],
]


@given(st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.sampled_from(["here", "run", "there", "settle"]))))
async def test_the_fold_is_that_of_the_log_whoever_appends_when(plan: list[tuple[int, str]]) -> None:
    store = await open_store("memory:")
    cid = (await store.create()).id
    here, there = Journal(store, cid), Journal(store, cid)
    lease = await store.acquire(cid, "run", 15)
    leased = here.use_lease(lease.generation)
    for n, (step, who) in enumerate(plan):
        if who == "here":
            here.stage(*STEPS[step](n))
        elif who == "run":
            leased.stage(*STEPS[step](n))
        elif who == "there":
            await there.append(*STEPS[step](n))
        else:
            await leased.settle()
    await here.catch_up()
    await there.catch_up()
    again = await folded(store, cid)
    assert await same(here, again)
    assert await same(there, again)
    assert here.durable == here.state.head == (await store.get(cid)).head
    await store.aclose()


async def test_a_message_from_elsewhere_that_comes_before_a_result_is_answered(
    store: Any, settings: Any, tmp_path: Path
) -> None:
    """The result was staged as event number N and became N+1; the request did not show what is now at N."""

    def meanwhile(_: Any) -> str:
        sent.append(asyncio.ensure_future(store.append(conversation.id, [UserMessage.text("and this")])))
        return "done"

    sent: list[Any] = []
    model = ScriptedModel([tool_call("double", n=1), meanwhile, "answered"])
    spec = AgentSpec(model=model, tools=(double,), skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
    await conversation.send_message("go")
    result = await conversation.run()
    await asyncio.gather(*sent)
    assert (result.output, model.requests) == ("answered", 3)
    assert await same(await folded(store, conversation.id), conversation._journal)


# What cannot be written.


async def test_after_a_failure_the_fold_is_what_is_durable(recording: Recording) -> None:
    cid = (await recording.create()).id
    lease = await recording.acquire(cid, "run", 15)
    base = Journal(recording, cid)
    leased = base.use_lease(lease.generation)
    await leased.append(UserMessage.text("kept"))
    recording.fails = True
    leased.stage(UserMessage.text("lost"))
    with pytest.raises(StoreError):
        await leased.settle()
    recording.fails = False
    assert await same(base, await folded(recording, cid))
    with pytest.raises(StoreError):
        leased.stage(UserMessage.text("depends on what was lost"))
    await base.append(UserMessage.text("does not"))
    said = [part.content for message in (await base.render()).messages() for part in message.parts]
    assert said == ["kept", "does not"]
    assert await same(base, await folded(recording, cid))


async def test_a_fenced_run_fails_alone(store: Any) -> None:
    """A message that waits behind what a fenced run staged is appended, and its fold does not hold the run's."""
    cid = (await store.create()).id
    lease = await store.acquire(cid, "old", 15)
    base = Journal(store, cid)
    leased = base.use_lease(lease.generation)
    leased.stage(called(1))
    await store.acquire(cid, "old", 15)
    message = asyncio.create_task(base.append(UserMessage.text("hello")))
    with pytest.raises(Conflict):
        await leased.settle()
    await message
    assert [stored.kind async for stored in store.read(cid)] == ["UserMessage"]
    assert await same(base, await folded(store, cid))


async def test_an_event_that_does_not_fit_is_not_staged(store: Any) -> None:
    cid = (await store.create()).id
    journal = Journal(store, cid)
    journal.stage(UserMessage.text("before"))
    with pytest.raises(CorruptLog):
        response = {"kind": "response", "parts": [{"part_kind": "text"}]}
        journal.stage(StateChanged(changes={"title": "new"}), ModelResponded(response=response, model="m", seen=0))
    assert journal.state.title is None
    await journal.append(UserMessage.text("after"))
    assert [stored.kind async for stored in store.read(cid)] == ["UserMessage", "UserMessage"]
    assert await same(journal, await folded(store, cid))
