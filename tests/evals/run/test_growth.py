"""What an eval reads and writes is counted: logs read, transactions, notes; never times."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.evals import EvalRun, EvalSet, SetCase, evaluate, score_logs
from bough.evals.case import CaseInput
from bough.evals.score import METRICS
from bough.events import open_store
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


class CountedStore:
    """A store that counts which logs are read, and how many of their events."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self.reads = Counter[UUID]()
        self.events = 0

    async def read(self, cid: UUID, *args: Any, **given: Any) -> AsyncIterator[StoredEvent]:
        """Read a log and count its events."""
        self.reads[cid] += 1
        async for stored in self._store.read(cid, *args, **given):
            self.events += 1
            yield stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def look() -> str:
    """Look around."""
    return "nothing"


def agent(*steps: Any) -> AgentSpec:
    return AgentSpec(name="a", model=ScriptedModel(steps), tools=(look,), skills=())


def set_of(count: int) -> EvalSet:
    return EvalSet(name="s", cases=tuple(SetCase(id=f"c{n}", input=CaseInput.of("x")) for n in range(count)))


async def test_twelve_metrics_read_a_log_as_often_as_one(settings: Settings) -> None:
    made = await AsyncConversation.create(agent(tool_call("look"), "done"), settings=settings)
    async with made as conversation:
        await conversation.send_message("x")
        await conversation.run()
    store = await open_store(settings.store)
    seen: list[tuple[int, int]] = []
    try:
        head = (await store.get(made.id)).head
        for metrics in (["steps"], sorted(METRICS - {"assertions", "instruction_adherence_score"})):
            counted: Any = CountedStore(store)
            await score_logs([made.id], metrics=dict.fromkeys(metrics), settings=settings, store=counted)
            seen.append((counted.reads[made.id], counted.events - counted.reads[made.id] * head))
            head += 1  # the result note of this run
    finally:
        await store.aclose()
    (few, _), (many, _) = seen
    assert few == many == 4, "to make the case, to score it, to read the result back, to show it"


async def test_an_attempt_is_two_changes_of_tasks_and_one_note(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[int] = []
    change = RelationalTaskStore.change

    async def count(self: RelationalTaskStore, *args: Any, **given: Any) -> Any:
        changes[-1] += 1
        return await change(self, *args, **given)

    monkeypatch.setattr(RelationalTaskStore, "change", count)

    async def run(cases: int, resume: str | None = None, *steps: Any) -> EvalRun:
        changes.append(0)
        return await evaluate(set_of(cases), agent(*steps), settings=settings, jobs=1, resume=resume)

    await run(2, None, *["done"] * 2)
    made = await run(6, None, *["done"] * 6)
    assert changes == [4, 12], "each is submitted and claimed; its end is written with the run's last events"
    before = await count_events(made)
    resumed = await run(6, made.run)
    assert resumed.passed and changes[-1] == 0, "what is finished is not submitted again"
    assert await count_events(made) == before and before["TaskNoted"] == 6


async def count_events(run: EvalRun) -> Counter[str]:
    store = await open_store(f"sqlite:///{run.folder / 'store.db'}")
    try:
        ids = [UUID(each.conversation) for each in run.cases if each.conversation is not None]
        return Counter([stored.kind for id in ids async for stored in store.read(id)])
    finally:
        await store.aclose()
