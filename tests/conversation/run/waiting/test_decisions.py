"""Decisions on waiting calls: edited arguments, answers, deferred tools of PydanticAI, messages instead of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.tools import Tool, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from tests.conversation.places import OF_TASKS, here_and_served, name_of

from bough.conversation import AsyncConversation
from bough.errors import Conflict, InvalidInput
from bough.events import open_store
from bough.events.store import EventStore
from bough.guard import AllowList, AlwaysConfirm
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[EventStore]:
    opened = await open_store("memory:")
    yield opened
    await opened.aclose()


class Notes:
    """A tool that notes what it was called with."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def tool(self) -> Any:
        def write(name: str, count: int = 1) -> str:
            """Write a note."""
            self.written.append(f"{name}*{count}")
            return f"wrote {name}"

        return write


@pytest.fixture
def notes() -> Notes:
    return Notes()


async def waiting(start: Any, spec: Any, **rules: Any) -> AsyncConversation:
    conversation = await start(spec, **rules)
    await conversation.send_message("go")
    result = await conversation.run()
    assert result.status == "waiting_for_confirmation"
    return conversation


async def kinds(conversation: AsyncConversation, kind: str) -> list[Any]:
    return [stored.event async for stored in conversation.events if stored.kind == kind]


def results(request: ModelRequest) -> list[str]:
    return [str(part.content) for part in request.parts if isinstance(part, ToolReturnPart)]


@here_and_served
async def test_edited_arguments_run_are_on_record_and_the_model_is_told(
    start: Any, scripted: Any, notes: Notes
) -> None:
    spec = scripted(tool_call("write", name="a"), "done", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    (id,) = conversation.state.waiting
    await conversation.approve(id, arguments={"name": "b", "count": 3}, by="ann")
    assert (await conversation.run()).output == "done"
    assert notes.written == ["b*3"]
    edits = [
        event.changes["edited"] for event in await kinds(conversation, "StateChanged") if "edited" in event.changes
    ]
    ann = name_of(conversation, "ann")
    assert edits == [{id: {"by": ann, "before": {"name": "a"}, "after": {"name": "b", "count": 3}}}]
    (called,) = await kinds(conversation, "ToolCalled")
    assert (called.arguments, called.edited_by) == ({"name": "b", "count": 3}, ann)
    request = spec.model.asked[1].messages[-1]
    assert results(request) == ["wrote b"]
    assert any(f"{ann} changed the arguments" in str(part.content) for part in request.parts)
    assert spec.model.asked[1].messages[1].tool_calls[0].args_as_dict() == {"name": "a"}, "its response is as it was"


async def test_edited_arguments_are_reviewed_anew(start: Any, scripted: Any) -> None:
    ran: list[str] = []

    def run_command(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ok"

    spec = scripted(tool_call("run_command", command="git status"), "I may not", tools=(run_command,))
    allowed = AllowList.of("run_command(git:*)")
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm(), allow_list=allowed)
    (id,) = conversation.state.waiting
    await conversation.approve(id, arguments={"command": "rm -rf notes"})
    assert (await conversation.run()).output == "I may not"
    assert ran == []
    assert [event.by for event in await kinds(conversation, "ToolRejected")] == ["allow-list"]


@here_and_served
async def test_edited_arguments_that_do_not_fit_are_told_to_the_model_and_nothing_runs(
    start: Any, scripted: Any, notes: Notes
) -> None:
    spec = scripted(tool_call("write", name="a"), "sorry", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    (id,) = conversation.state.waiting
    await conversation.approve(id, arguments={"count": "many"})
    assert (await conversation.run()).output == "sorry"
    assert notes.written == []
    assert len(await kinds(conversation, "ToolFailed")) == 1


@here_and_served
@pytest.mark.parametrize(
    ("calls", "arguments"),
    [((), {"name": "b"}), (("a", "b"), {}), (("a",), ["name"]), (("a",), "name")],
)
async def test_arguments_need_one_call_and_an_object(
    start: Any, scripted: Any, notes: Notes, calls: Any, arguments: Any
) -> None:
    spec = scripted([tool_call("write", name="a"), tool_call("write", name="b")], "done", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    ids = dict(zip("ab", conversation.state.waiting, strict=True))
    with pytest.raises(InvalidInput):
        await conversation.approve(*(ids[call] for call in calls), arguments=arguments)
    assert len(conversation.state.waiting) == 2


@here_and_served
async def test_a_text_that_names_no_call_rejects_nothing(start: Any, scripted: Any, notes: Notes) -> None:
    spec = scripted([tool_call("write", name="a"), tool_call("write", name="b")], "done", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    with pytest.raises(Conflict, match="does not wait"):
        await conversation.reject("too dangerous")
    assert len(conversation.state.waiting) == 2
    assert await kinds(conversation, "ToolRejected") == []


@here_and_served
async def test_a_message_instead_of_an_answer_rejects_what_waits(
    start: Any, scripted: Any, notes: Notes, store: Any
) -> None:
    spec = scripted(tool_call("write", name="a"), "as you wish", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    head = conversation.state.head
    await conversation.send_message("write nothing today")
    assert not conversation.state.waiting
    events = [stored.kind async for stored in store.read(conversation.id, head) if stored.kind not in OF_TASKS]
    assert events[:3] == ["ToolRejected", "StateChanged", "UserMessage"]
    assert (await conversation.run()).output == "as you wish"
    assert notes.written == []
    assert "write nothing today" in results(spec.model.asked[1].messages[-1])[0]


async def test_a_tool_that_requires_an_approval_waits_whatever_the_policy(
    start: Any, scripted: Any, notes: Notes, store: Any, settings: Any
) -> None:
    tool = Tool(notes.tool(), requires_approval=True)
    spec = scripted([tool_call("write", name="a"), tool_call("look")], "done", tools=(tool, look))
    conversation = await waiting(start, spec)
    ((id, call),) = conversation.state.waiting.items()
    assert (call["kind"], call["tool"], call["arguments"]) == ("approval", "write", {"name": "a"})
    assert notes.written == []
    assert [event.tool for event in await kinds(conversation, "ToolReturned")] == ["look"], "the other one has run"
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as again:
        await again.approve(id)
        result = await again.run()
        assert result.output == "done", [
            result,
            again.state.waiting,
            await kinds(again, "ErrorRaised"),
            [c async for c in again.events][-6:],
        ]
    assert notes.written == ["a*1"]


@here_and_served
async def test_a_tool_that_asks_for_an_approval_runs_once_it_has_it(start: Any, scripted: Any, reopen: Any) -> None:
    ran: list[str] = []

    def remove(ctx: RunContext[Any], path: str) -> str:
        """Remove a file."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "it is the last copy"})
        ran.append(path)
        return "gone"

    spec = scripted(tool_call("remove", path="a"), "done", tools=(remove,))
    conversation = await waiting(start, spec)
    ((id, call),) = conversation.state.waiting.items()
    assert (call["kind"], call["request"]) == ("approval", {"why": "it is the last copy"})
    async with await reopen(conversation.id, spec) as again:
        assert (await again.run()).status == "waiting_for_confirmation"
        await again.approve(id)
        assert (await again.run()).output == "done"
    assert ran == ["a"]


async def test_a_tool_whose_arguments_ask_for_an_approval(start: Any, scripted: Any, notes: Notes) -> None:
    def check(ctx: RunContext[Any], name: str, count: int = 1) -> None:
        if count > 1 and not ctx.tool_call_approved:
            raise ApprovalRequired

    spec = scripted(tool_call("write", name="a", count=2), "done", tools=(Tool(notes.tool(), args_validator=check),))
    conversation = await waiting(start, spec)
    assert notes.written == []
    await conversation.approve()
    assert (await conversation.run()).output == "done"
    assert notes.written == ["a*2"]


@here_and_served
async def test_a_call_that_is_done_elsewhere_is_answered(start: Any, scripted: Any, reopen: Any) -> None:
    def book(room: str) -> str:
        """Book a room."""
        raise CallDeferred(metadata={"ticket": 7})

    spec = scripted(tool_call("book", room="blue"), "booked", tools=(book,))
    conversation = await waiting(start, spec)
    ((id, call),) = conversation.state.waiting.items()
    assert (call["kind"], call["request"]) == ("external", {"ticket": 7})
    with pytest.raises(InvalidInput, match="waits for an answer"):
        await conversation.approve(id)
    with pytest.raises(Conflict, match="no call waits for an approval"):
        await conversation.approve()
    async with await reopen(conversation.id, spec) as again:
        await again.answer(id, {"room": "blue", "hour": 9}, by="desk")
        assert (await again.run()).output == "booked"
    (returned,) = await kinds(conversation, "ToolReturned")
    assert (returned.result, returned.by) == ({"room": "blue", "hour": 9}, name_of(conversation, "desk"))
    with pytest.raises(Conflict, match="does not wait"):
        await conversation.answer(id, "again")


@here_and_served
async def test_tools_of_the_client_wait_for_their_results(start: Any, scripted: Any) -> None:
    schema = {"type": "object", "properties": {"selector": {"type": "string"}}}
    toolset = ExternalToolset[Any]([ToolDefinition(name="click", parameters_json_schema=schema)])
    spec = scripted([tool_call("click", selector="#a"), tool_call("click", selector="#b")], "done", toolsets=(toolset,))
    conversation = await waiting(start, spec)
    assert [call["kind"] for call in conversation.state.waiting.values()] == ["external", "external"]
    assert "click" in spec.model.asked[0].tools
    first, second = conversation.state.waiting
    await conversation.answer(first, "clicked a")
    assert (await conversation.run()).status == "waiting_for_confirmation"
    await conversation.answer(second, "clicked b")
    assert (await conversation.run()).output == "done"
    assert results(spec.model.asked[1].messages[-1]) == ["clicked a", "clicked b"]


@here_and_served
async def test_a_question_is_answered_with_one_of_its_choices(start: Any, scripted: Any) -> None:
    asks = tool_call("ask", question="Which one?", choices=["a", "b"])
    spec = scripted(asks, "a it is", ask=True)
    conversation = await waiting(start, spec)
    (id,) = conversation.state.waiting
    with pytest.raises(InvalidInput, match="not one of the choices"):
        await conversation.answer(id, "c")
    await conversation.answer(id, "a")
    assert (await conversation.run()).output == "a it is"


@here_and_served
async def test_a_long_answer_is_shown_at_its_ends(start: Any, scripted: Any) -> None:
    spec = scripted(tool_call("ask", question="What?"), "long", ask=True, result_tokens=100)
    conversation = await waiting(start, spec)
    (id,) = conversation.state.waiting
    await conversation.answer(id, "x" * 10_000)
    await conversation.run()
    assert len(results(spec.model.asked[1].messages[-1])[0]) < 1_000
    (returned,) = await kinds(conversation, "ToolReturned")
    assert len(returned.result) == 10_000


@here_and_served
async def test_an_edit_reaches_a_process_that_only_has_the_log(
    start: Any, scripted: Any, notes: Notes, reopen: Any
) -> None:
    spec = scripted(tool_call("write", name="a"), "done", tools=(notes.tool(),))
    conversation = await waiting(start, spec, confirmation_policy=AlwaysConfirm())
    (id,) = conversation.state.waiting
    await conversation.approve(id, arguments={"name": "b"})
    async with await reopen(conversation.id, spec) as again:
        assert again.state.calls[id].parsed_arguments == {"name": "b"}
        assert (await again.run()).output == "done"
    assert notes.written == ["b*1"]


def look() -> str:
    """Look."""
    return "seen"
