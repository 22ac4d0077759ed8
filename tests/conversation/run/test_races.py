"""Two processes, two wishes, a lost lease, a cancellation at any moment: nothing is done twice, swallowed or left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.log import write_buffer
from bough.errors import Conflict, StoreError
from bough.events.lease import hold_lease
from bough.events.model import Event, PauseRequested, StateChanged, UserMessage
from bough.events.stores.sqlite import SqliteEventStore
from bough.guard import AlwaysConfirm
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


async def kinds(conversation: AsyncConversation) -> list[str]:
    return [stored.kind async for stored in conversation.events]


async def other(conversation: AsyncConversation) -> AsyncConversation:
    """The same conversation as another process has it."""
    return await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=conversation.agent, settings=conversation.settings
    )


class Gate:
    """A tool that says when it runs, waits, and says how it ended."""

    def __init__(self) -> None:
        self.started, self.open, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def gate() -> str:
            """Wait at the gate."""
            self.started.set()
            try:
                await self.open.wait()
            finally:
                self.ended.set()
            return "passed"

        self.gate = gate


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def at_the_gate(start: Any, scripted: Any, gate: Gate, *answers: str) -> tuple[Any, asyncio.Task[Any]]:
    conversation = await start(scripted(tool_call("gate"), *(answers or ("done",)), tools=(gate.gate,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await gate.started.wait()
    return conversation, run


# Leases.


async def take_over(conversation: AsyncConversation) -> None:
    """Take the lease as another process does that finds the owner gone."""
    store = conversation.store
    with pytest.raises(Conflict) as held:
        await store.acquire(conversation.id, "new", 15)
    await store.acquire(conversation.id, held.value.details["owner"], 15)


async def test_a_fenced_runner_appends_nothing_and_stops(start: Any, scripted: Any, gate: Gate) -> None:
    conversation, run = await at_the_gate(start, scripted, gate)
    await take_over(conversation)
    head = (await conversation.store.get(conversation.id)).head
    gate.open.set()
    with pytest.raises(Conflict):
        await run
    assert (await conversation.store.get(conversation.id)).head == head, "not even its error"
    assert conversation.agent.model.requests <= 2, "its last result was on its way while the model was asked"


async def test_messages_are_taken_while_the_lease_is_elsewhere(start: Any, scripted: Any, gate: Gate) -> None:
    conversation, run = await at_the_gate(start, scripted, gate)
    await take_over(conversation)
    await conversation.send_message("still there?")
    await conversation.pause()
    assert (await kinds(conversation))[-2:] == ["UserMessage", "PauseRequested"]
    gate.open.set()
    with pytest.raises(Conflict):
        await run


async def test_a_lost_lease_ends_the_work_that_is_under_way(store: Any) -> None:
    cid = (await store.create()).id
    ended = asyncio.Event()

    async def work() -> None:
        async with hold_lease(store, cid, ttl_seconds=0.3) as lease:
            await store.acquire(cid, lease.owner, 15)
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    with pytest.raises(Conflict, match="took over"):
        await work()
    assert ended.is_set()


async def test_a_lease_is_given_back_whatever_ends_the_work(store: Any) -> None:
    cid = (await store.create()).id
    started = asyncio.Event()

    async def work() -> None:
        async with hold_lease(store, cid):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.acquire(cid, "next", 15)


async def test_only_one_of_two_runners_runs(start: Any, scripted: Any, gate: Gate) -> None:
    conversation, run = await at_the_gate(start, scripted, gate)
    with pytest.raises(Conflict, match="already running"):
        await (await other(conversation)).run()
    with pytest.raises(Conflict, match="already"):
        await conversation.run()
    gate.open.set()
    assert (await run).output == "done"


# Decisions and messages from elsewhere.


async def test_of_two_decisions_on_one_call_the_first_counts(start: Any, scripted: Any) -> None:
    ran: list[str] = []

    def act() -> str:
        """Act."""
        ran.append("ran")
        return "acted"

    conversation = await start(scripted(tool_call("act"), "done", tools=(act,)), confirmation_policy=AlwaysConfirm())
    await conversation.send_message("go")
    await conversation.run()
    here, there = await other(conversation), await other(conversation)
    results = await asyncio.gather(here.approve(), there.reject(reason="no"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "NoneType"]
    await conversation.run()
    ends = [kind for kind in await kinds(conversation) if kind in ("ToolReturned", "ToolRejected")]
    assert ends == (["ToolReturned"] if results[0] is None else ["ToolRejected"])
    assert len(ran) == (results[0] is None)


async def test_a_late_second_end_of_a_call_changes_nothing(start: Any, scripted: Any) -> None:
    from bough.events.model import ToolReturned

    def act() -> str:
        """Act."""
        return "acted"

    conversation = await start(scripted(tool_call("act"), "one", "two", tools=(act,)))
    await conversation.send_message("go")
    await conversation.run()
    call = next(iter(conversation.state.calls), None)
    assert call is None, "the answer has no calls"
    before = await conversation.messages()
    for id in ("unknown", ""):
        late = ToolReturned(tool_call_id=id, tool="act", result="late")
        await conversation.store.append(conversation.id, [late])
    again = await other(conversation)
    assert (await again.messages()) == before
    assert not again.state.has_work


@pytest.mark.parametrize("moment", ["ToolCalled", "ToolReturned", "ModelResponded"])
async def test_a_message_from_elsewhere_is_seen_at_the_next_step(start: Any, scripted: Any, moment: str) -> None:
    def act() -> str:
        """Act."""
        return "acted"

    spec = scripted(tool_call("act"), "done", "to the late one", tools=(act,))
    conversation = await start(spec)
    elsewhere = await other(conversation)
    await conversation.send_message("go")
    sent: list[asyncio.Task[None]] = []
    async for update in conversation.run_stream():
        if getattr(update, "kind", "") == moment and not sent:
            sent.append(asyncio.create_task(elsewhere.send_message("and this")))
            await sent[0]
    result = await conversation.run()
    assert result.status == "finished"
    texts = [p.content for asked in spec.model.asked for p in asked.messages[-1].parts if p.part_kind == "user-prompt"]
    assert texts.count("and this") >= 1, "it was answered"
    log = [stored.event.plain async for stored in conversation.events if stored.kind == "UserMessage"]
    assert sorted(log) == ["and this", "go"]
    seqs = [stored.seq async for stored in conversation.events]
    assert seqs == list(range(len(seqs)))


# Cancellation.


class Counting(SqliteEventStore):
    """The real store, which calls `at(n)` when append number n begins."""

    appends = 0
    cancel_at: int | None = None
    target: asyncio.Task[Any] | None = None

    async def append(self, cid: UUID, events: Sequence[Event], **kwargs: Any) -> int:
        number, self.appends = self.appends, self.appends + 1
        if number == self.cancel_at and self.target is not None:
            self.target.cancel()
        return await super().append(cid, events, **kwargs)


@pytest.fixture
async def counting(tmp_path: Path) -> AsyncIterator[Counting]:
    opened = await Counting.open(tmp_path / "log.db")
    assert isinstance(opened, Counting)
    yield opened
    await opened.aclose()


async def test_a_cancellation_during_any_append_ends_in_order(
    counting: Counting, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running, response and 2 calls; 2 results; answer and end: cancelled during each, nothing is done twice."""
    tasks = asyncio.all_tasks()
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)
    for point in range(3):
        ran: list[int] = []

        async def act(n: int, ran: list[int] = ran) -> str:
            """Act."""
            ran.append(n)
            return f"acted {n}"

        steps = [[tool_call("act", n=1), tool_call("act", n=2)], "done"]
        model = ScriptedModel(steps)
        spec = AgentSpec(model=model, tools=(act,), skills=())
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=counting, settings=settings)
        await conversation.send_message("go")
        counting.appends, counting.cancel_at = 0, point
        counting.target = asyncio.create_task(conversation.run())
        with pytest.raises(asyncio.CancelledError):
            await counting.target
        counting.cancel_at = None
        head = (await counting.get(conversation.id)).head
        assert conversation.state.head == head, f"cancelled at append {point}: all that is durable is known"
        result = await conversation.run()
        assert (result.status, conversation.state.output) == ("finished", "done"), point
        assert model.requests == 2, f"cancelled at append {point}: a recorded response was asked for again"
        assert sorted(ran) == sorted(set(ran)), f"cancelled at append {point}: a call ran twice"
        ends = [k for k in await kinds(conversation) if k in ("ToolReturned", "ToolInterrupted")]
        assert len(ends) == 2, point
        assert asyncio.all_tasks() == tasks, "nothing continues in the background"


async def test_a_second_cancellation_during_the_clean_up_loses_nothing(start: Any, scripted: Any) -> None:
    started = asyncio.Event()

    async def stubborn() -> str:
        """Take long to end."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
        return "never"

    conversation = await start(scripted(tool_call("stubborn"), "continued", tools=(stubborn,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    for _ in range(10):
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert conversation.status == "paused"
    assert (await kinds(conversation))[-1] == "StateChanged"
    assert (await conversation.run()).output == "continued", "the lease was given back"


async def test_cancelling_the_caller_while_it_is_interrupted_is_not_swallowed(
    start: Any, scripted: Any, gate: Gate
) -> None:
    conversation, run = await at_the_gate(start, scripted, gate)
    interrupt = asyncio.create_task(conversation.interrupt())
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await interrupt
    assert conversation.status == "paused"


async def test_a_tool_may_interrupt_its_own_conversation(start: Any, scripted: Any) -> None:
    async def stop() -> str:
        """Stop it all."""
        await conversation.interrupt()
        return "never"

    conversation = await start(scripted(tool_call("stop"), "continued", tools=(stop,)))
    await conversation.send_message("go")
    async with asyncio.timeout(5):
        assert (await conversation.run()).status == "paused"
    assert (await conversation.run()).output == "continued"


async def test_an_interrupt_ends_all_parallel_tools(start: Any, scripted: Any) -> None:
    running, ended = asyncio.Semaphore(0), []

    async def hang(n: int) -> str:
        """Hang."""
        running.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)
        return "never"

    spec = scripted([tool_call("hang", n=n) for n in range(5)], "continued", tools=(hang,))
    conversation = await start(spec)
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    for _ in range(5):
        await running.acquire()
    await conversation.interrupt()
    assert (await run).status == "paused"
    assert sorted(ended) == list(range(5))
    assert (await kinds(conversation)).count("ToolInterrupted") == 5


# Listeners and stores that fail.


async def test_a_listener_that_raises_disturbs_nobody(start: Any, scripted: Any) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    conversation = await start(scripted("one"))

    def broken(_: Any) -> None:
        raise LookupError("broken listener")

    heard: list[Any] = []
    conversation._journal.listeners += [broken, heard.append]
    await conversation.send_message("go")
    assert (await conversation.run()).output == "one"
    assert [str(error) for error in reported] == ["broken listener"], "once, and then it is not told again"
    assert "ModelResponded" in [getattr(update, "kind", "") for update in heard]


class Failing(SqliteEventStore):
    """The real store with a disk that fails for a while."""

    fails = False

    async def append(self, cid: UUID, events: Sequence[Event], **kwargs: Any) -> int:
        if self.fails:
            raise StoreError("the disk is gone", hint="put it back")
        return await super().append(cid, events, **kwargs)


async def test_a_store_that_fails_in_the_middle_of_a_stream(settings: Any, tmp_path: Path) -> None:
    store = await Failing.open(tmp_path / "log.db")
    assert isinstance(store, Failing)

    def lose(_: Any) -> str:
        store.fails = True
        return "nobody will read this"

    spec = AgentSpec(model=ScriptedModel([lose, "again"]), skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
    await conversation.send_message("go")
    with pytest.raises(StoreError, match="disk is gone"):
        async for _ in conversation.run_stream():
            pass
    store.fails = False
    assert "ModelResponded" not in await kinds(conversation), "what is not durable did not happen"
    assert (await conversation.run()).output == "again"
    await store.aclose()


async def test_a_store_that_fails_while_tools_run_ends_them(settings: Any, tmp_path: Path) -> None:
    store = await Failing.open(tmp_path / "log.db")
    assert isinstance(store, Failing)
    ended: list[str] = []
    hanging = asyncio.Event()

    async def hang() -> str:
        """Hang."""
        hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")
        return "never"

    async def lose() -> str:
        """Lose the store."""
        await hanging.wait()
        store.fails = True
        return "lost"

    steps = [[tool_call("hang"), tool_call("lose")], "continued"]
    spec = AgentSpec(model=ScriptedModel(steps), tools=(hang, lose), skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
    await conversation.send_message("go")
    with pytest.raises(StoreError):
        await conversation.run()
    assert ended == ["hang"]
    store.fails = False
    assert (await conversation.run()).output == "continued"
    interrupted = [k for k in await kinds(conversation) if k == "ToolInterrupted"]
    assert len(interrupted) == 2
    await store.aclose()


# What a review knew, and what others wrote before the call could start.


class Intruder(SqliteEventStore):
    """The real store; once `intrude` is set, the next append that starts a call or ends a run finds others first."""

    intrude: Callable[[UUID], Awaitable[None]] | None = None

    async def append(self, cid: UUID, events: Sequence[Event], **kwargs: Any) -> int:
        if self.intrude is not None and {event.kind for event in events} & {"ToolCalled", "ModelResponded"}:
            intrude, self.intrude = self.intrude, None
            await intrude(cid)
        return await super().append(cid, events, **kwargs)


@pytest.fixture
async def intruder(tmp_path: Path) -> AsyncIterator[Intruder]:
    opened = await Intruder.open(tmp_path / "log.db")
    assert isinstance(opened, Intruder)
    yield opened
    await opened.aclose()


async def intruded(
    intruder: Intruder, settings: Any, workspace: Path, *events: Event, calls: int = 1
) -> tuple[AsyncConversation, list[int]]:
    """A conversation whose second step makes calls; the events land between their review and their start."""
    ran: list[int] = []

    async def intrude(cid: UUID) -> None:
        await SqliteEventStore.append(intruder, cid, events)

    async def begin() -> str:
        """Begin."""
        intruder.intrude = intrude
        return "begun"

    async def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return f"acted {n}"

    model = ScriptedModel([tool_call("begin"), [tool_call("act", n=n) for n in range(calls)], "done"])
    spec = AgentSpec(model=model, tools=(begin, act), skills=())
    conversation = await AsyncConversation.create(spec, workspace=workspace, store=intruder, settings=settings)
    await conversation.send_message("go")
    return conversation, ran


async def test_a_policy_that_comes_between_review_and_start_is_obeyed(
    intruder: Intruder, settings: Any, tmp_path: Path
) -> None:
    stricter = StateChanged(changes={"policies": {"policy": AlwaysConfirm().to_json()}})
    conversation, ran = await intruded(intruder, settings, tmp_path, stricter, calls=3)
    result = await conversation.run()
    assert (result.status, ran) == ("waiting_for_confirmation", [])
    assert len(conversation.state.waiting) == 3
    recorded = await kinds(conversation)
    assert recorded.count("ToolCalled") == 1
    assert recorded.count("ModelResponded") == 2, "the response is kept"
    await conversation.approve()
    assert (await conversation.run()).status == "finished"
    assert sorted(ran) == [0, 1, 2]


async def test_a_pause_that_comes_between_review_and_start_is_obeyed(
    intruder: Intruder, settings: Any, tmp_path: Path
) -> None:
    conversation, ran = await intruded(intruder, settings, tmp_path, PauseRequested(by="another"), calls=2)
    assert (await conversation.run()).status == "paused"
    assert ran == []
    assert (await kinds(conversation)).count("ToolCalled") == 1
    assert (await conversation.run()).status == "finished"
    assert sorted(ran) == [0, 1]


async def test_what_controls_nothing_costs_no_second_review(intruder: Intruder, settings: Any, tmp_path: Path) -> None:
    conversation, ran = await intruded(intruder, settings, tmp_path, StateChanged(changes={"tags": {"a": "b"}}))
    assert (await conversation.run()).status == "finished"
    assert ran == [0]
    assert conversation.tags == {"a": "b"}
    recorded = await kinds(conversation)
    assert recorded.count("ToolCalled") == recorded.count("ModelResponded") - 1 == 2


async def test_a_message_at_the_very_end_is_answered_by_the_run(
    intruder: Intruder, settings: Any, tmp_path: Path
) -> None:
    model = ScriptedModel(["one", "two"])
    spec = AgentSpec(model=model, skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=intruder, settings=settings)
    await conversation.send_message("go")

    async def intrude(cid: UUID) -> None:
        await SqliteEventStore.append(intruder, cid, [UserMessage.text("and this?")])

    intruder.intrude = intrude
    result = await conversation.run()
    assert (result.status, result.output, model.requests) == ("finished", "two", 2)
    assert (await kinds(conversation))[-1] == "StateChanged"
