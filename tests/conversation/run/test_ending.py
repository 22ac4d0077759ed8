"""A run that is handed a lease and an ending: its last events and the ending's change are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai.messages import ToolCallPart

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.log.staged_write import Ending
from bough.conversation.log.state import State
from bough.conversation.run.run import Runner
from bough.conversation.run.stop import StopReason
from bough.errors import BoughError, Conflict
from bough.events.model import StateChanged
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.settings import Settings

pytestmark = pytest.mark.anyio


async def _asked(store: EventStore, settings: Settings) -> AsyncConversation:
    conversation = await AsyncConversation.create(store=store, settings=settings)
    await conversation.send_message("say something")
    return conversation


def _runner(conversation: AsyncConversation) -> Runner:
    return conversation._make_runner()  # pyright: ignore[reportPrivateUsage]


def _note(cid: UUID, seen: list[str]) -> Ending:
    def change(tables: Tables, state: State, error: BoughError | None) -> None:
        seen.append(f"{state.status} {None if error is None else error.code}")
        tables.append(cid, [StateChanged(changes={"title": "ended"})])

    return Ending((), change)


async def test_the_ending_is_made_with_the_last_events_of_the_run(store: EventStore, settings: Settings) -> None:
    """Last event and change are in the log behind each other, under the lease that was handed in."""
    conversation = await _asked(store, settings)
    lease, seen = await store.acquire(conversation.id, "worker", 60), list[str]()
    result = await _runner(conversation).run(lease=lease, ending=_note(conversation.id, seen))
    assert result.status == "finished"
    assert seen == ["finished None"]
    last = [stored.event for stored in await store.tail(conversation.id, 2)]
    assert [event.changes for event in last if isinstance(event, StateChanged)] == [
        {"status": "finished"}, {"title": "ended"},
    ]  # fmt: skip
    await store.renew(lease, 60)  # it is the giver's to end
    await conversation.aclose()


async def test_a_run_without_work_makes_its_ending_too(store: EventStore, settings: Settings) -> None:
    """A conversation in which nothing is to be done ends as finished, with no step."""
    conversation = await AsyncConversation.create(store=store, settings=settings)
    lease, seen = await store.acquire(conversation.id, "worker", 60), list[str]()
    result = await _runner(conversation).run(lease=lease, ending=_note(conversation.id, seen))
    assert (result.steps, seen) == (0, ["finished None"])
    await conversation.aclose()


async def test_a_lost_lease_makes_no_ending(store: EventStore, settings: Settings) -> None:
    """Whoever lost the lease writes neither its last events nor the change."""
    conversation = await _asked(store, settings)
    lease, seen = await store.acquire(conversation.id, "worker", 0), list[str]()
    await store.acquire(conversation.id, "taker", 60)
    with pytest.raises(Conflict):
        await _runner(conversation).run(lease=lease, ending=_note(conversation.id, seen))
    assert seen == []
    await conversation.aclose()


@pytest.mark.parametrize("reason", ["interrupt", "hand_back"])
async def test_a_stopped_run_makes_its_ending(
    store: EventStore, start: Callable[..., Any], scripted: Callable[..., AgentSpec], reason: StopReason
) -> None:
    """Last words and change are one transaction as well; a call is closed, or left to the process that continues."""
    begun = asyncio.Event()

    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    conversation = await start(scripted([ToolCallPart("hang", {})], tools=(hang,)))
    await conversation.send_message("hang")
    lease, seen = await store.acquire(conversation.id, "worker", 60), list[str]()
    runner = _runner(conversation)
    run = asyncio.create_task(runner.run(lease=lease, ending=_note(conversation.id, seen)))
    await begun.wait()
    runner.stop(reason)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert seen == ["paused None"]
    kinds = [stored.kind async for stored in store.read(conversation.id)]
    assert kinds.count("ToolInterrupted") == (reason == "interrupt")
    await conversation.aclose()


async def test_a_run_that_is_stopped_at_its_end_has_ended(store: EventStore, settings: Settings) -> None:
    """A cancellation that comes while the last write is made changes nothing: the ending is made once."""
    conversation = await _asked(store, settings)
    lease, seen = await store.acquire(conversation.id, "worker", 60), list[str]()
    runner = _runner(conversation)
    loop = asyncio.get_running_loop()
    note = _note(conversation.id, seen)

    def change(tables: Tables, state: State, error: BoughError | None) -> None:
        note.change(tables, state, error)
        loop.call_soon_threadsafe(runner.stop, "interrupt")

    with pytest.raises(asyncio.CancelledError):
        await runner.run(lease=lease, ending=Ending((), change))
    assert seen == ["finished None"]
    await conversation.aclose()
