"""Forks whose tools are answered from the log of their source: nothing runs, and nothing becomes wider."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.places import everywhere

from bough.conversation import AsyncConversation, Turn
from bough.errors import InvalidInput, NotFound
from bough.events import open_store
from bough.events.model import StateChanged, ToolReturned
from bough.guard import AllowList, AlwaysConfirm, NeverConfirm
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


class Desk:
    """A tool with an effect, which is counted."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def order(self, item: str, amount: int = 1) -> str:
        """Order an item."""
        self.ran.append(item)
        if item == "coal":
            raise ValueError("we have no coal")
        return f"order {len(self.ran)}: {amount} {item}"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def order(item: str, amount: int = 1) -> Any:
    return tool_call("order", item=item, amount=amount)


async def say(conversation: Any, text: str) -> str:
    await conversation.send_message(text)
    return (await conversation.run()).output


@pytest.fixture
async def source(start: Any, scripted: Any, desk: Desk) -> Any:
    """A conversation that orders pens twice, then coal and ink, in its second turn. Its model has more to say."""
    steps = ["hello", order("pens"), order("pens"), [order("coal"), order("ink", 2)], "ordered"]
    conversation = await start(scripted(*steps, tools=(desk.order,)))
    await say(conversation, "hi")
    await say(conversation, "order")
    assert desk.ran == ["pens", "pens", "coal", "ink"]
    desk.ran.clear()
    return conversation


async def fork(source: Any, scripted: Any, desk: Desk, *steps: Any, mode: str = "recorded", **fields: Any) -> Any:
    """Fork after the first turn, with a model that takes these steps."""
    agent = scripted(*steps, tools=(desk.order,))
    overrides = {"tools": mode, **fields.pop("overrides", {})}
    return await source.fork(at=Turn(1), agent=agent, overrides=overrides, **fields)


async def reopen(conversation: Any, scripted: Any, desk: Desk, settings: Any, *steps: Any) -> Any:
    agent = scripted(*steps, tools=(desk.order,))
    await conversation.aclose()
    return await AsyncConversation.open(conversation.id, store=conversation.store, agent=agent, settings=settings)


async def ends(conversation: Any) -> list[tuple[str, Any]]:
    """How the calls after the first turn ended."""
    return [(call.ended, call.result) for turn in (await conversation.turns())[1:] for call in turn.calls]


PENS = [("ToolReturned", "order 1: 1 pens"), ("ToolReturned", "order 2: 1 pens")]
COAL = ("ToolFailed", "ValueError: we have no coal")


async def test_each_recorded_call_answers_once_and_in_order(source: Any, scripted: Any, desk: Desk) -> None:
    branch = await fork(source, scripted, desk, order("pens"), order("coal"), order("pens"), order("pens"), "done")
    assert await say(branch, "order") == "done"
    assert desk.ran == []
    *answered, (ended, reason) = await ends(branch)
    assert answered == [PENS[0], COAL, PENS[1]]
    assert ended == "ToolRejected"
    assert "no further call of order with these arguments" in reason
    told = str(branch.agent.model.asked[-1].messages)
    for text in ("order 2: 1 pens", "we have no coal", "no further call"):
        assert text in told


async def test_equal_calls_of_one_response_are_answered_in_order(source: Any, scripted: Any, desk: Desk) -> None:
    branch = await fork(source, scripted, desk, [order("ink", 2), order("pens"), order("pens")], "done")
    await say(branch, "order")
    assert await ends(branch) == [("ToolReturned", "order 4: 2 ink"), *PENS]
    assert desk.ran == []


async def test_each_answer_names_the_event_that_it_comes_from(source: Any, scripted: Any, desk: Desk) -> None:
    branch = await fork(source, scripted, desk, order("pens"), order("coal"), "done")
    await say(branch, "order")
    originals = [
        stored.id
        async for stored in source.store.read(source.id, kinds=("ToolReturned", "ToolFailed"))
        if stored.event.tool == "order"
    ]
    own = [stored.event async for stored in branch.store.read(branch.id, branch.state.base)]
    (returned,) = [event for event in own if isinstance(event, ToolReturned)]
    assert (returned.by, returned.usage, returned.duration_seconds) == (f"recorded:{originals[0]}", None, None)
    marks = [
        event.changes["recorded"] for event in own if isinstance(event, StateChanged) and "recorded" in event.changes
    ]
    assert [list(mark.values()) for mark in marks] == [[str(originals[2])]]
    assert [call.by for call in (await branch.turns())[1].calls] == [
        f"recorded:{originals[0]}",
        f"recorded:{originals[2]}",
    ]
    assert not [event for event in own if event.kind == "ToolCalled"], "no tool was started"


@pytest.mark.parametrize("changed", [order("pens", 2), order("paper"), tool_call("order", item="pens")])
async def test_other_arguments_are_refused(source: Any, scripted: Any, desk: Desk, changed: Any) -> None:
    branch = await fork(source, scripted, desk, changed, "done")
    await say(branch, "order")
    assert [ended for ended, _ in await ends(branch)] == ["ToolRejected"]
    assert desk.ran == []


async def test_calls_before_the_cut_are_no_answers(source: Any, scripted: Any, desk: Desk) -> None:
    branch = await source.fork(
        agent=scripted(order("pens"), "done", tools=(desk.order,)), overrides={"tools": "recorded"}
    )
    await say(branch, "order")
    (*_, turn) = await branch.turns()
    assert [call.ended for call in turn.calls] == ["ToolRejected"]


async def test_what_the_source_does_after_the_fork_is_not_of_the_record(start: Any, scripted: Any, desk: Desk) -> None:
    source = await start(scripted("hello", order("pens"), "ordered", tools=(desk.order,)))
    await say(source, "hi")
    branch = await fork(source, scripted, desk, order("pens"), "done")
    await say(source, "order")
    await say(branch, "order")
    assert [ended for ended, _ in await ends(branch)] == ["ToolRejected"]


class TestRecordedOrRun:
    async def test_other_calls_run(self, source: Any, scripted: Any, desk: Desk) -> None:
        branch = await fork(source, scripted, desk, order("pens"), order("paper"), "done", mode="recorded-or-run")
        await say(branch, "order")
        assert await ends(branch) == [PENS[0], ("ToolReturned", "order 1: 1 paper")]
        assert desk.ran == ["paper"]

    async def test_under_the_usual_rules(self, source: Any, scripted: Any, desk: Desk) -> None:
        steps = [order("pens"), order("paper"), "done"]
        confirm = {"confirmation_policy": AlwaysConfirm()}
        branch = await fork(source, scripted, desk, *steps, mode="recorded-or-run", overrides=confirm)
        await say(branch, "order")
        assert [call.arguments["item"] for call in branch.waiting] == ["paper"], "a recorded answer has no effect"
        assert desk.ran == []
        await branch.approve()
        await branch.run()
        assert desk.ran == ["paper"]


class TestNothingBecomesWider:
    async def test_a_tool_that_the_fork_may_not_use_is_refused(self, source: Any, scripted: Any, desk: Desk) -> None:
        for mode in ("recorded", "recorded-or-run"):
            denied = {"allow_list": AllowList.of("read_file")}
            branch = await fork(source, scripted, desk, order("pens"), "done", mode=mode, overrides=denied)
            await say(branch, "order")
            (rejected,) = (await branch.turns())[1].calls
            assert (rejected.ended, rejected.by) == ("ToolRejected", "allow-list")

    async def test_a_tool_that_the_fork_does_not_have_is_an_error(self, source: Any, scripted: Any) -> None:
        branch = await source.fork(at=Turn(1), agent=scripted(order("pens"), "done"), overrides={"tools": "recorded"})
        await say(branch, "order")
        (failed,) = (await branch.turns())[1].calls
        assert (failed.ended, failed.by) == ("ToolFailed", None)
        assert "Unknown tool" in failed.result

    async def test_a_fork_of_a_fork_cannot_run_what_the_fork_refuses(
        self, source: Any, scripted: Any, desk: Desk
    ) -> None:
        branch = await fork(source, scripted, desk, order("pens"), "done")
        with pytest.raises(InvalidInput, match="recorded tools of a fork can only be stricter"):
            await branch.fork(overrides={"tools": "recorded-or-run"})
        wide = await fork(source, scripted, desk, mode="recorded-or-run")
        await wide.fork(overrides={"tools": "recorded"})

    async def test_policies_set_later_run_nothing(self, source: Any, scripted: Any, desk: Desk) -> None:
        branch = await fork(source, scripted, desk, order("paper"), "done")
        await branch.set_confirmation_policy(NeverConfirm())
        await say(branch, "order")
        assert desk.ran == []

    @pytest.mark.parametrize("mode", ["run", "", None, True, ["recorded"]])
    async def test_another_mode_is_invalid(self, source: Any, mode: Any) -> None:
        with pytest.raises(InvalidInput, match="invalid value of tools") as refused:
            await source.fork(overrides={"tools": mode})
        assert "recorded or recorded-or-run" in refused.value.hint


class TestItLasts:
    async def test_close_and_resume(self, source: Any, scripted: Any, desk: Desk, settings: Any) -> None:
        branch = await fork(source, scripted, desk, order("pens"), order("coal"), "done")
        await say(branch, "order")
        again = await reopen(branch, scripted, desk, settings, order("pens"), order("coal"), order("pens"), "done")
        await say(again, "more")
        assert [end for end, _ in await ends(again)] == [
            "ToolReturned", "ToolFailed", "ToolReturned", "ToolRejected", "ToolRejected",
        ]  # fmt: skip
        assert (await ends(again))[2] == PENS[1], "the first answer is used up"
        assert desk.ran == []

    async def test_a_further_fork_goes_on_with_the_answers_that_are_left(
        self, source: Any, scripted: Any, desk: Desk
    ) -> None:
        branch = await fork(source, scripted, desk, order("pens"), "done", "unused")
        await say(branch, "order")
        further = await branch.fork(agent=scripted(order("pens"), order("pens"), "done", tools=(desk.order,)))
        await say(further, "more")
        assert [end for end, _ in await ends(further)] == ["ToolReturned", "ToolReturned", "ToolRejected"]
        earlier = await branch.fork(at=Turn(1), agent=scripted(order("pens"), "done", tools=(desk.order,)))
        await say(earlier, "again")
        assert await ends(earlier) == [PENS[0]], "its log has used none"
        assert desk.ran == []

    async def test_a_fork_before_the_cut_of_a_fork_has_the_calls_in_between(
        self, source: Any, scripted: Any, desk: Desk
    ) -> None:
        branch = await source.fork(overrides={"tools": "recorded"})
        early = await branch.fork(at=Turn(1), agent=scripted(order("ink", 2), "done", tools=(desk.order,)))
        await say(early, "order")
        assert await ends(early) == [("ToolReturned", "order 4: 2 ink")]

    async def test_a_fork_of_a_fork_can_have_the_fork_as_its_record(
        self, source: Any, scripted: Any, desk: Desk
    ) -> None:
        branch = await fork(source, scripted, desk, order("paper"), order("pens"), "done", mode="recorded-or-run")
        await say(branch, "order")
        assert desk.ran == ["paper"]
        second = await fork(branch, scripted, desk, order("paper"), order("pens"), order("coal"), "done")
        await say(second, "order")
        assert [end for end, _ in await ends(second)] == ["ToolReturned", "ToolReturned", "ToolRejected"]
        assert desk.ran == ["paper"]

    async def test_the_fork_records_what_was_asked_for(self, source: Any) -> None:
        branch = await source.fork(at=Turn(1), overrides={"tools": "recorded"})
        (forked,) = [stored.event async for stored in branch.events if stored.kind == "ForkedFrom"]
        assert forked.overrides == {"tools": "recorded"}
        assert (await branch.store.get(branch.id)).lineage["overrides"] == ["tools"]

    @pytest.mark.parametrize("mode", ["recorded", "recorded-or-run"])
    async def test_a_deleted_source_is_an_error_and_runs_nothing(
        self, source: Any, scripted: Any, desk: Desk, mode: str
    ) -> None:
        branch = await fork(source, scripted, desk, order("pens"), "done", mode=mode)
        further = await branch.fork(agent=scripted(order("paper"), "done", tools=(desk.order,)))
        await source.store.delete(source.id)
        for conversation in (branch, further):
            with pytest.raises(NotFound, match=str(source.id)) as missing:
                await say(conversation, "order")
            assert missing.value.hint
            assert conversation.status == "error"
        assert desk.ran == []

    async def test_production_logs_that_were_imported(
        self, source: Any, scripted: Any, desk: Desk, settings: Any, tmp_path: Path
    ) -> None:
        bundle = io.BytesIO()
        await source.store.export(source.id, bundle)
        bundle.seek(0)
        elsewhere = await open_store(f"sqlite:///{tmp_path / 'elsewhere.db'}")
        await elsewhere.import_(bundle)
        agent = scripted(tools=(desk.order,))
        imported = await AsyncConversation.open(source.id, store=elsewhere, agent=agent, settings=settings)
        branch = await fork(imported, scripted, desk, order("pens"), order("paper"), "done")
        assert await say(branch, "order") == "done", "nobody has to be asked: nothing runs"
        assert [end for end, _ in await ends(branch)] == ["ToolReturned", "ToolRejected"]
        assert desk.ran == []
        for conversation in (branch, imported):
            await conversation.aclose()
        await elsewhere.aclose()


async def test_rules_that_name_a_stranger_answer_nothing(source: Any, start: Any, scripted: Any, desk: Desk) -> None:
    """As those of an imported log may."""
    stranger = await start(scripted(order("pens"), "done", tools=(desk.order,)))
    record = {"mode": "recorded", "source": str(source.id), "start": 0, "stop": 100}
    await stranger.append(StateChanged(changes={"policies": {"recorded_tools": record}}))
    with pytest.raises(NotFound, match=str(source.id)):
        await say(stranger, "order")
    assert desk.ran == []


@everywhere
async def test_over_a_server_too(start: Any, scripted: Any, desk: Desk) -> None:
    steps = ["hello", order("pens"), "ordered", order("pens"), order("pens"), "done"]
    source = await start(scripted(*steps, tools=(desk.order,)))
    await say(source, "hi")
    await say(source, "order")
    async with await source.fork(at=Turn(1), overrides={"tools": "recorded"}) as branch:
        await branch.repeat((await source.turns())[1])
        assert (await branch.run()).output == "done"
        assert [end for end, _ in await ends(branch)] == ["ToolReturned", "ToolRejected"]
    assert desk.ran == ["pens"]


async def test_answers_are_read_one_at_a_time(source: Any, scripted: Any, desk: Desk) -> None:
    """The record is read once a run, and again one row an answer."""
    branch = await fork(source, scripted, desk, order("pens"), order("coal"), order("pens"), "done")
    reads: list[tuple[int, int | None]] = []
    read = source.store.read

    def counting(cid: Any, start: int = 0, stop: int | None = None, **options: Any) -> Any:
        if cid == source.id and "kinds" not in options:
            reads.append((start, stop))
        return read(cid, start, stop, **options)

    source.store.read = counting
    try:
        await say(branch, "order")
    finally:
        del source.store.read
    whole, *single = reads
    assert whole[1] == source.state.head
    assert [stop - start for start, stop in single if stop is not None] == [1, 1, 1]
