"""Users of PydanticAI move in and out with their histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from bough.conversation.adapters.pydantic_messages import (
    _make_events,
    conversation_store,
    export_messages,
    import_messages,
)
from bough.conversation.log.view import View
from bough.errors import InvalidInput, Unavailable
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_history_moves_in_goes_on_and_moves_out(start: Any, scripted: Any) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=2), "It is 3."]), tools=[add], system_prompt="Be brief.")
    result = await agent.run("What is 1 + 2?")
    spec = scripted("It still is.", tools=(add,))
    conversation = await start(spec)
    await import_messages(conversation, result.all_messages_json())
    assert conversation.status == "finished"
    await conversation.send_message("Sure?")
    assert (await conversation.run()).output == "It still is."
    shown = spec.model.asked[0].messages
    assert [message.kind for message in shown] == ["request", "response"] * 2 + ["request"]
    assert "Be brief." not in str(shown), "the conversation has its agent's own prompt"
    moved_out = ModelMessagesTypeAdapter.validate_json(await export_messages(conversation))
    other = Agent(ScriptedModel(["back outside"]), tools=[add])
    assert (await other.run("And now?", message_history=moved_out)).output == "back outside"


async def test_open_calls_are_closed(start: Any, scripted: Any) -> None:
    history = [
        ModelRequest(parts=[UserPromptPart("go")]),
        ModelResponse(parts=[ToolCallPart("add", {"a": 1}, tool_call_id="x")]),
    ]
    spec = scripted("I see")
    conversation = await start(spec)
    await import_messages(conversation, history)
    assert not conversation.state.open_calls
    await conversation.send_message("and?")
    assert (await conversation.run()).output == "I see"


async def test_what_has_no_place_in_a_log_is_reported(start: Any, scripted: Any) -> None:
    conversation = await start(scripted())
    pdf = BinaryContent(b"%PDF", media_type="application/pdf")
    image = BinaryContent(b"png", media_type="image/png")
    said = ["look", pdf, image, ImageUrl("https://example.org/a.png"), CachePoint(), "and go"]
    history = [
        ModelRequest([SystemPromptPart("be kind"), UserPromptPart(said)], instructions="be brief"),
        ModelResponse([ToolCallPart("add", {"a": 1}, "c1")]),
        ModelRequest([ToolReturnPart("add", 3, "c1", metadata={"kept": "by the application"})]),
    ]
    report = await import_messages(conversation, history)
    assert report.left_out == (
        "message 0: instructions",
        "message 0: a system prompt",
        "message 0: a file, application/pdf, 4 bytes",
        "message 0: ImageUrl https://example.org/a.png",
        "message 0: CachePoint",
        "message 2: metadata of the result of add (c1)",
    )
    log = [stored.event async for stored in conversation.store.read(conversation.id)]
    assert report.count == len(log) - 1
    (message,) = [event for event in log if event.kind == "UserMessage"]
    texts = [part.text for part in message.content if part.type == "text"]
    assert texts == [
        "look",
        "[a file, application/pdf, 4 bytes: not carried over]",
        "[ImageUrl https://example.org/a.png: not carried over]",
        "and go",
    ]
    plain = [ModelRequest([UserPromptPart("hello")])]
    assert (await import_messages(await start(scripted()), plain)).left_out == ()


async def test_what_is_no_history_is_refused(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    for data in (b"{", b"[1]", b'[{"kind": "nonsense"}]'):
        with pytest.raises(InvalidInput, match="not a PydanticAI message history"):
            await import_messages(conversation, data)
    await conversation.send_message("hello")
    with pytest.raises(InvalidInput, match="already"):
        await import_messages(conversation, [])


async def test_a_version_without_conversation_stores_is_refused_with_what_to_do(store: Any) -> None:
    """The version that is pinned here is the oldest one that is supported; it has no such interface."""
    with pytest.raises(Unavailable, match="has no ConversationStore") as refused:
        conversation_store(store)
    assert "import_messages" in refused.value.hint


TEXT = st.text(max_size=20)
CALL = st.builds(lambda n: ToolCallPart("t", {"n": n}, tool_call_id=f"c{n}"), st.integers(0, 99))


@st.composite
def histories(draw: st.DrawFn) -> list[ModelMessage]:
    messages: list[ModelMessage] = [ModelRequest(parts=[SystemPromptPart("s"), UserPromptPart("start")])]
    for _ in range(draw(st.integers(0, 5))):
        calls = draw(st.lists(CALL, max_size=3, unique_by=lambda call: call.tool_call_id))
        parts = [ThinkingPart("hm", signature="sig"), *calls] if calls else [TextPart(draw(TEXT) or "x")]
        messages.append(ModelResponse(parts=parts))
        results = [ToolReturnPart("t", draw(TEXT), tool_call_id=call.tool_call_id) for call in calls]
        image = BinaryContent(b"\x89PNG", media_type="image/png")
        messages.append(ModelRequest(parts=results or [UserPromptPart([draw(TEXT) or "y", image])]))
    return messages


@given(histories())
def test_what_the_model_saw_it_sees_again(messages: list[ModelMessage]) -> None:
    view = View()
    for seq, event in enumerate(_make_events(messages, {})):
        view.apply(seq, event)

    def seen(history: list[ModelMessage]) -> list[Any]:
        kept = [part for message in history for part in message.parts if part.part_kind != "system-prompt"]
        return [
            (
                part.part_kind,
                getattr(part, "content", None),
                getattr(part, "signature", None),
                getattr(part, "args", None),
            )
            for part in kept
        ]

    assert seen(view.messages()) == seen(messages)
