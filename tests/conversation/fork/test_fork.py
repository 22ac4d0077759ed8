"""Forks of conversations: what they share, what they close, what they never do."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from bough.conversation import AsyncConversation, Turn
from bough.errors import Conflict, InvalidInput, NotFound
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


async def rows(conversation: AsyncConversation, stop: int | None = None) -> list[Any]:
    return [
        (stored.seq, stored.id, stored.ts, stored.raw)
        async for stored in conversation.store.read(conversation.id, 0, stop)
    ]


async def first_response(conversation: AsyncConversation) -> int:
    async for stored in conversation.events:
        if stored.kind == "ModelResponded":
            return stored.seq
    raise AssertionError("the model has not responded")


async def ask(conversation: AsyncConversation, text: str) -> str:
    await conversation.send_message(text)
    return (await conversation.run()).output


async def test_a_fork_shares_the_rows_and_goes_its_own_way(start: Any, scripted: Any) -> None:
    source = await start(scripted("one", "two", "other two"), title="root", tags={"kind": "test"})
    await ask(source, "first")
    cut = source.state.head
    fork = await source.fork(reason="try another way")
    assert (fork.status, fork.title, fork.tags) == ("idle", "root", {"kind": "test"})
    assert await rows(fork, cut) == await rows(source, cut), "the same rows, ids and times"
    assert await ask(source, "second") == "two"
    assert await ask(fork, "second") == "other two"
    assert await rows(fork, cut) == await rows(source, cut)
    assert (await fork.store.get(fork.id)).forked_at == cut


async def test_forks_of_every_cut_render_the_same_prefix(start: Any, scripted: Any) -> None:
    def tell() -> str:
        """Tell."""
        return "told"

    spec = scripted(tool_call("tell"), "one", [tool_call("tell"), tool_call("tell")], "two", tools=(tell,))
    source = await start(spec)
    await ask(source, "first")
    await ask(source, "second")
    for at in range(source.state.head + 1):
        fork = await source.fork(at=at)
        assert (await fork.messages()) == (await (await reopened(fork, spec)).messages())
        assert not fork.state.open_calls, f"cut at {at} leaves no call open"
        await assert_every_call_is_answered(fork)


async def reopened(fork: AsyncConversation, spec: Any) -> AsyncConversation:
    return await AsyncConversation.open(fork.id, store=fork.store, agent=spec, settings=fork._environment.settings)


async def assert_every_call_is_answered(conversation: AsyncConversation) -> None:
    waiting: list[str] = []
    for message in await conversation.messages():
        for part in message.parts:
            if part.part_kind == "tool-call":
                waiting.append(part.tool_call_id)
            elif part.part_kind == "tool-return":
                assert waiting.pop(0) == part.tool_call_id
    assert waiting == []


async def test_open_calls_are_closed_in_the_fork_alone(start: Any, scripted: Any) -> None:
    ran: list[str] = []
    started, release = asyncio.Event(), asyncio.Event()

    async def act() -> str:
        """Act."""
        ran.append("ran")
        started.set()
        await release.wait()
        return "acted"

    spec = scripted(tool_call("act"), "fork: it was not executed", "source: done", tools=(act,))
    source = await start(spec)
    await source.send_message("go")
    run = asyncio.create_task(source.run())
    await started.wait()
    fork = await source.fork()
    assert (await fork.run()).output == "fork: it was not executed"
    assert "not executed in this fork" in str(spec.model.asked[1].messages[-1].parts[0].content)
    release.set()
    assert (await run).output == "source: done", "the source is not stopped by being forked"
    assert ran == ["ran"]


async def test_calls_that_were_never_started_do_not_run_in_a_fork(start: Any, scripted: Any) -> None:
    ran: list[str] = []

    def act() -> str:
        """Act."""
        ran.append("ran")
        return "acted"

    source = await start(scripted(tool_call("act"), "done", "in the fork", tools=(act,)))
    await ask(source, "go")
    responded = await first_response(source)
    fork = await source.fork(at=responded + 1)
    assert (await fork.run()).output == "in the fork"
    assert ran == ["ran"], "only the source ran it"


async def test_drop_moves_the_cut_before_the_response(start: Any, scripted: Any) -> None:
    def act() -> str:
        """Act."""
        return "acted"

    spec = scripted(tool_call("act"), "done", "another way", tools=(act,))
    source = await start(spec)
    await ask(source, "go")
    responded = await first_response(source)
    fork = await source.fork(at=responded + 1, pending="drop")
    assert (await fork.store.get(fork.id)).forked_at == responded
    assert (await fork.run()).output == "another way"


async def test_usage_is_split_at_the_cut(start: Any, scripted: Any) -> None:
    source = await start(scripted("one", "two"))
    await ask(source, "first")
    fork = await source.fork()
    assert (fork.usage.requests, fork.state.inherited.requests) == (0, 1)
    await ask(fork, "second")
    assert (fork.usage.requests, source.usage.requests) == (1, 1), "nothing is counted twice"
    kept = await source.fork(reset_metrics=False)
    assert kept.usage.requests == 1


async def test_cuts_that_are_none(start: Any, scripted: Any) -> None:
    source = await start(scripted("one"))
    sibling = await start(scripted())
    foreign = (await sibling.store.tail(sibling.id, 1))[0].id
    for at, error in ((-1, InvalidInput), (99, InvalidInput), (uuid4(), NotFound), (foreign, NotFound)):
        with pytest.raises(error):
            await source.fork(at=at)
    assert await source.store.children(source.id) == []


async def test_wrong_types_are_refused_before_anything_is_written(start: Any, scripted: Any) -> None:
    source = await start(scripted("one"))
    other = await start(scripted())
    wrong: tuple[dict[str, Any], ...] = (
        {"at": True},
        {"at": 0.5},
        {"at": "7"},
        {"id": "x"},
        {"id": 7},
        {"at": 1 << 70},
    )
    for given in wrong:
        with pytest.raises(InvalidInput):
            await source.fork(**given)
    numbers: tuple[Any, ...] = (True, 0.5, "7")
    for number in numbers:
        with pytest.raises(InvalidInput):
            await source.fork(at=Turn(number))
    with pytest.raises(Conflict):
        await source.fork(id=other.id)
    assert await source.store.children(source.id) == []
    named: Any = str(uuid4())
    assert str((await source.fork(id=named)).id) == named


async def test_the_same_id_gives_the_same_fork_or_a_conflict(start: Any, scripted: Any) -> None:
    source = await start(scripted("one"))
    wanted = uuid4()
    first = await source.fork(id=wanted)
    again = await source.fork(id=wanted)
    assert first.id == again.id == wanted
    assert len(await source.store.children(source.id)) == 1
    await ask(source, "more")
    with pytest.raises(Conflict):
        await source.fork(id=wanted, at=0)


async def test_forks_of_forks(start: Any, scripted: Any) -> None:
    source = await start(scripted("one", "two"))
    await ask(source, "first")
    cut = source.state.head
    middle = await source.fork()
    await ask(middle, "second")
    leaf = await middle.fork(at=cut)
    direct = await source.fork(at=cut)
    assert await rows(leaf, cut) == await rows(direct, cut)
    assert (await leaf.store.get(leaf.id)).root == source.id


async def test_a_fork_outlives_the_object_it_came_from(start: Any, scripted: Any, settings: Any, tmp_path: Any) -> None:
    source = await AsyncConversation.create(
        scripted("one"), workspace=tmp_path, store=f"sqlite:///{tmp_path / 'own.db'}", settings=settings
    )
    fork = await source.fork()
    await source.aclose()
    assert await ask(fork, "still there?") == "one"
    await fork.aclose()


async def test_another_agent_takes_over(start: Any, scripted: Any) -> None:
    source = await start(scripted("one"))
    await ask(source, "first")
    other = scripted("from the other")
    fork = await source.fork(agent=other.model_copy(update={"name": "other", "system_prompt": "Be other."}))
    assert await ask(fork, "second") == "from the other"
    assert "Be other." in other.model.asked[0].instructions
    assert fork.state.agent["name"] == "other"
    assert source.state.agent["name"] == "tester"
