"""A process may die between any two events: what is recorded is not done again, what is not known is said."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation
from bough.events import open_store
from bough.events.model import Event
from bough.events.sqlite import SqliteEventStore
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


class Died(BaseException):
    """Stands for the end of the process: nothing may catch it and go on."""


class DyingStore(SqliteEventStore):
    """The real store; after `lives` appends every further one fails, as if the process were gone."""

    lives = 10**9

    async def append(self, cid: Any, events: Sequence[Event], **kwargs: Any) -> int:
        if self.lives <= 0:
            raise Died
        self.lives -= 1
        return await super().append(cid, events, **kwargs)


@pytest.fixture
async def dying(tmp_path: Any) -> AsyncIterator[DyingStore]:
    opened = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    assert isinstance(opened, SqliteEventStore)
    opened.__class__ = DyingStore
    yield opened  # type: ignore[misc]
    await opened.aclose()


CALLS = [tool_call("act", n=1), tool_call("act", n=2)]


def agent(ran: list[int], answered: int) -> AgentSpec:
    """An agent that has given `answered` of its two responses already."""

    async def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return f"acted {n}"

    return AgentSpec(name="tester", model=ScriptedModel([CALLS, "done"][answered:]), tools=(act,), skills=())


@pytest.mark.parametrize("lives", range(12))
async def test_every_point_between_two_events(dying: DyingStore, settings: Settings, tmp_path: Any, lives: int) -> None:
    ran: list[int] = []
    first = agent(ran, 0)
    conversation = await AsyncConversation.create(first, workspace=tmp_path, store=dying, settings=settings)
    await conversation.send_message("go")
    dying.lives = lives
    with contextlib.suppress(Died):
        await conversation.run()
    dying.lives = 10**9
    stored = [event async for event in dying.read(conversation.id)]
    kinds = [event.kind for event in stored]
    recorded, started = kinds.count("ModelResponded"), kinds.count("ToolCalled")
    done = kinds.count("ToolReturned")
    ran_before = list(ran)

    second = agent(ran, recorded)
    again = await AsyncConversation.open(conversation.id, store=dying, agent=second, settings=settings)
    result = await again.run()

    assert result.status == "finished"
    assert second.model.requests == 2 - recorded, "a recorded response is never asked for again"
    finished = [event.event async for event in dying.read(conversation.id) if event.kind == "ToolReturned"]
    interrupted = [event async for event in dying.read(conversation.id) if event.kind == "ToolInterrupted"]
    assert len(finished) + len(interrupted) == 2, "each call ends exactly once"
    assert len(interrupted) == started - done, "what had started and not ended is closed"
    assert len(ran) - len(ran_before) == (2 - started if recorded else 2), "only what had not started runs"
    seqs = [event.seq async for event in dying.read(conversation.id)]
    assert seqs == list(range(len(seqs)))
