"""Makes long conversations for the benchmarks."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.models.test import TestModel

from bough import AgentSpec, AsyncConversation
from bough.events import EventStore
from bough.events.model import Event, ModelResponded, StateChanged, Usage, UserMessage
from bough.settings import Settings


async def talk(store: EventStore, size: int, settings: Settings, folder: Path) -> AsyncConversation:
    """Return an open conversation with about `size` events, in turns of three events. Its folded states are stored."""
    spec = AgentSpec(name="talker", model=TestModel(), skills=())
    conversation = await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings)
    for start in range(0, size // 3, 300):
        turns = range(start, min(start + 300, size // 3))
        await store.append(conversation.id, [event for number in turns for event in make_turn(number)])
    await conversation._journal.catch_up()
    await conversation._journal.aclose()
    return conversation


def make_turn(number: int) -> list[Event]:
    """Return a turn: a message, its answer, and the end of the run."""
    part = {"part_kind": "text", "content": f"{number} " + "x" * 200}
    response = {"kind": "response", "model_name": "m", "parts": [part], "timestamp": "2026-01-01T00:00:00Z"}
    return [
        UserMessage.text("x" * 200),
        ModelResponded(response=response, usage=Usage(requests=1, input_tokens=9), model="m"),
        StateChanged(changes={"status": "finished"}),
    ]
