"""Long conversations to be measured."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.models.test import TestModel

from bough import AgentSpec, AsyncConversation
from bough.events import EventStore
from bough.events.model import Event, ModelResponded, StateChanged, Usage, UserMessage
from bough.settings import Settings


async def talk(store: EventStore, size: int, settings: Settings, folder: Path) -> AsyncConversation:
    """Return an open conversation of about so many events, in turns of three, whose states are kept."""
    spec = AgentSpec(name="talker", model=TestModel(), skills=())
    made = await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings)
    for start in range(0, size // 3, 300):
        turns = range(start, min(start + 300, size // 3))
        await store.append(made.id, [event for number in turns for event in say(number)])
    await made._journal.catch_up()
    await made._journal.aclose()
    return made


def say(number: int) -> list[Event]:
    """Return a turn: a message, its answer, and the end of the run."""
    part = {"part_kind": "text", "content": f"{number} " + "x" * 200}
    response = {"kind": "response", "model_name": "m", "parts": [part], "timestamp": "2026-01-01T00:00:00Z"}
    return [
        UserMessage.text("x" * 200),
        ModelResponded(response=response, usage=Usage(requests=1, input_tokens=9), model="m"),
        StateChanged(changes={"status": "finished"}),
    ]
