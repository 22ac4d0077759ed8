"""Steps of a conversation: whatever pieces a client misses, it gets the whole text of a response, and once."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bough.conversation.log.listeners import Delta
from bough.events.codec import encode
from bough.events.model import ErrorRaised, LimitReached, ModelResponded, Usage
from bough.events.record import StoredEvent
from bough.server.live.broadcast import CaughtUp, Fragment
from bough.server.live.steps import (
    CallStep,
    FailedStep,
    LimitStep,
    RespondedStep,
    StepReader,
    TextStep,
    ThinkingStep,
)
from bough.types import new_id


def stored(event: ModelResponded | ErrorRaised | LimitReached, id: UUID) -> StoredEvent:
    return StoredEvent(seq=0, id=id, kind=event.kind, ts=datetime.now(UTC), raw=encode(event))


def respond(*parts: dict[str, str], finish: str = "stop") -> ModelResponded:
    return ModelResponded(
        response={"kind": "response", "parts": list(parts)},
        model="m",
        usage=Usage(input_tokens=3, output_tokens=2),
        finish_reason=finish,
    )


@given(
    texts=st.lists(st.tuples(st.sampled_from(["text", "thinking"]), st.text(min_size=1, max_size=3)), max_size=8),
    data=st.data(),
)
def test_a_client_gets_each_text_whole_whichever_pieces_it_misses(
    texts: list[tuple[str, str]], data: st.DataObject
) -> None:
    id, lengths, pieces = new_id(), {"text": 0, "thinking": 0}, list[Delta]()
    for kind, text in texts:
        pieces.append(Delta(text=text, kind=kind, response=id, offset=lengths[kind]))  # type: ignore[arg-type]
        lengths[kind] += len(text)
    whole = {kind: "".join(piece.text for piece in pieces if piece.kind == kind) for kind in lengths}
    received = [piece for piece in pieces if data.draw(st.booleans())]
    event = respond(
        {"part_kind": "thinking", "content": whole["thinking"]}, {"part_kind": "text", "content": whole["text"]}
    )
    reader = StepReader()
    steps = [step for order, piece in enumerate(received) for step in reader.read(Fragment(order=order, piece=piece))]
    steps += reader.read(stored(event, id))
    assert "".join(step.text for step in steps if isinstance(step, TextStep)) == whole["text"]
    assert "".join(step.text for step in steps if isinstance(step, ThinkingStep)) == whole["thinking"]
    assert steps[-1] == RespondedStep(str(id), "m", event.usage, "stop")


def test_a_response_that_is_repeated_has_an_id_of_its_own() -> None:
    reader, cut, repeated = StepReader(), new_id(), new_id()
    first = list(reader.read(Delta(text="Hel", response=cut)))
    again = [*reader.read(Delta(text="Hello", response=repeated))]
    again += reader.read(stored(respond({"part_kind": "text", "content": "Hello"}), repeated))
    assert first == [TextStep(str(cut), "Hel")]
    assert again[0] == TextStep(str(repeated), "Hello")
    assert len(again) == 2


def test_calls_follow_the_text_and_their_arguments_are_objects() -> None:
    event = respond(
        {"part_kind": "text", "content": "I look."},
        {"part_kind": "tool-call", "tool_call_id": "1", "tool_name": "look", "args": '{"a": 1}'},
        {"part_kind": "tool-call", "tool_call_id": "2", "tool_name": "look", "args": "no object"},
        finish="length",
    )
    reader, id = StepReader(), new_id()
    assert list(reader.read(Delta(text='{"a', kind="tool_arguments", response=id))) == []
    assert list(reader.read(CaughtUp(0))) == []
    assert list(reader.read(stored(event, id))) == [
        TextStep(str(id), "I look."),
        CallStep("1", "look", {"a": 1}, response=str(id)),
        CallStep("2", "look", {"_": "no object"}, response=str(id)),
        RespondedStep(str(id), "m", event.usage, "length"),
    ]


def test_a_limit_and_an_error_are_steps() -> None:
    reader = StepReader()
    limit, error = LimitReached(limit="steps", value=3, bound=3), ErrorRaised(code="unavailable", message="m", hint="h")
    assert list(reader.read(stored(limit, new_id()))) == [LimitStep("steps")]
    assert list(reader.read(stored(error, new_id()))) == [FailedStep("unavailable", "m", "h")]
