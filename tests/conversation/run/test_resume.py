"""A process may die at any append: what is recorded is not done again, what is not known is said.

Three rounds of two parallel tool calls each, a condensation by a model, and an answer; on SQLite and Postgres. The
process dies at every append of the run there is, before the append is durable and after it is; both when events wait to
be written together, and when each is written as soon as may be.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.log import write_buffer
from bough.conversation.log.condenser import SummarizingCondenser
from bough.events.model import Condensed, Event, ModelResponded
from bough.events.record import StoredEvent
from bough.events.stores.postgres import PostgresEventStore
from bough.events.stores.sqlite import SqliteEventStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.testing.postgres import drop_schema
from bough.types import new_id

pytestmark = pytest.mark.anyio


class Died(BaseException):
    """Stands for the end of the process: nothing may catch it and continue."""


class Mortal:
    """Makes a real store die with append number `death`, and refuse every later one, as if the process were gone.

    Attributes:
        lands: Whether the fatal append is durable all the same, so that only its acknowledgement is lost.
    """

    appends = 0
    death: int | None = None
    lands = False

    async def append(self, cid: UUID, events: Sequence[Event], **kwargs: Any) -> int:
        number, self.appends = self.appends, self.appends + 1
        if self.death is not None and number >= self.death:
            if number == self.death and self.lands:
                await super().append(cid, events, **kwargs)  # type: ignore[misc]
            raise Died
        return await super().append(cid, events, **kwargs)  # type: ignore[misc]


class MortalSqlite(Mortal, SqliteEventStore):
    """SQLite."""


class MortalPostgres(Mortal, PostgresEventStore):
    """Postgres."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        opened: Any = await MortalSqlite.open(tmp_path / "log.db")
        yield opened
        await opened.aclose()
        return
    url, schema = request.getfixturevalue("postgres"), f"resume_{new_id().hex}"
    opened = await MortalPostgres.open(url, schema=schema)
    yield opened
    await opened.aclose()
    drop_schema(url, schema)


ROUNDS = [
    [tool_call("act", n=1), tool_call("act", n=2)],
    [tool_call("act", n=3), tool_call("act", n=4)],
    [tool_call("act", n=5), tool_call("act", n=6)],
    "done",
]
APPENDS = 3 * 2 + 1 + 1
"""Three times a response with its two calls, and two results; a condensation; the answer; finished."""


@pytest.fixture(params=[60, 0], ids=["written together", "written soon"])
def linger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How long staged events wait: until something needs them durable, or not at all."""
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", request.param)
    return request.param


class World:
    """What is outside the process and outlives it: the tools' effects, and who was asked what how often."""

    def __init__(self, store: Any, settings: Settings, workspace: Path) -> None:
        self.store, self.settings, self.workspace = store, settings, workspace
        self.ran: Counter[int] = Counter()
        self.asked = self.summarized = 0

    def agent(self, recorded: int) -> AgentSpec:
        """The agent as a new process has it, whose model has answered `recorded` times already."""

        async def act(n: int) -> str:
            """Act."""
            self.ran[n] += 1
            return f"acted {n}"

        def counted(step: Any) -> Any:
            def answer(_: Any) -> Any:
                self.asked += 1
                return step

            return answer

        model = ScriptedModel([counted(step) for step in ROUNDS[recorded:]])
        return AgentSpec(name="tester", model=model, tools=(act,), skills=())

    def condenser(self) -> SummarizingCondenser:
        def summary(_: Any) -> str:
            self.summarized += 1
            return "acted so far"

        return SummarizingCondenser(model=ScriptedModel([summary] * 9), max_events=5, keep_first=1)

    async def start(self) -> AsyncConversation:
        rules = {"condenser": self.condenser(), "workspace": self.workspace, "settings": self.settings}
        conversation = await AsyncConversation.create(self.agent(0), store=self.store, **rules)  # type: ignore[arg-type]
        await conversation.send_message("go")
        return conversation

    async def reopen(self, cid: UUID) -> AsyncConversation:
        recorded = sum(stored.kind == "ModelResponded" for stored in await self.log(cid))
        return await AsyncConversation.open(
            cid, store=self.store, agent=self.agent(recorded), settings=self.settings, condenser=self.condenser()
        )

    async def log(self, cid: UUID) -> list[StoredEvent]:
        return [stored async for stored in self.store.read(cid)]

    async def die(self, conversation: AsyncConversation, at: int, *, lands: bool) -> bool:
        """Run until append number `at`, and say whether the run came as far as that."""
        self.store.death, self.store.appends, self.store.lands = at, 0, lands
        with contextlib.suppress(Died):
            await conversation.run()
        self.store.death = None
        return self.store.appends > at


@pytest.fixture
def world(mortal: Any, settings: Settings, tmp_path: Path) -> World:
    return World(mortal, settings, tmp_path)


async def test_a_step_is_one_append_and_one_for_parallel_results(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)
    conversation = await world.start()
    world.store.appends = 0
    assert (await conversation.run()).output == "done"
    assert world.store.appends == APPENDS
    assert (world.asked, world.summarized, sorted(world.ran.items())) == (4, 1, [(n, 1) for n in range(1, 7)])
    assert [s.kind for s in await world.log(conversation.id)].count("Condensed") == 1


@pytest.mark.parametrize("lands", [False, True], ids=["before it is durable", "before it is acknowledged"])
async def test_dying_at_every_append(world: World, linger: int, lands: bool) -> None:
    for point in itertools.count():
        world.ran.clear()
        world.asked = world.summarized = 0
        conversation = await world.start()
        if not await world.die(conversation, point, lands=lands):
            assert point == APPENDS if linger else point > APPENDS, "all points there are"
            break
        before = await world.log(conversation.id)
        ran_before, asked_before, summarized_before = Counter(world.ran), world.asked, world.summarized
        result = await (await world.reopen(conversation.id)).run()
        after = await world.log(conversation.id)

        where = f"dying at append {point}"
        was_over = bool(before) and getattr(before[-1].event, "changes", {}).get("status") == "finished"
        assert (result.status, result.output) == ("finished", "" if was_over else "done"), where
        assert [stored.seq for stored in after] == list(range(len(after))), f"{where} left a gap"
        assert after[: len(before)] == before, f"{where} changed what was recorded"
        recorded = sum(stored.kind == "ModelResponded" for stored in before)
        lost = asked_before - recorded
        assert lost in (0, 1), where
        assert world.asked == 4 + lost, f"{where} asked a recorded response again"
        assert sum(isinstance(stored.event, ModelResponded) for stored in after) == 4, where
        assert_calls(before, after, ran_before, world.ran, where)
        condensed = sum(isinstance(stored.event, Condensed) for stored in before)
        assert world.summarized == 1 + summarized_before - condensed, f"{where} summarized what was summarized"
        assert sum(isinstance(stored.event, Condensed) for stored in after) == 1, where


def assert_calls(
    before: list[StoredEvent], after: list[StoredEvent], ran_before: Counter[int], ran: Counter[int], where: str
) -> None:
    """Each call ends once; one that had started or ended does not run again, one that had not runs once."""
    ends = Counter(s.event.tool_call_id for s in after if s.kind in ("ToolReturned", "ToolInterrupted"))
    assert sorted(ends.values()) == [1] * 6, where
    started = {s.event.tool_call_id: s.event.arguments["n"] for s in before if s.kind == "ToolCalled"}
    returned = {s.event.tool_call_id for s in before if s.kind == "ToolReturned"}
    interrupted = {s.event.tool_call_id for s in after if s.kind == "ToolInterrupted"}
    assert interrupted == started.keys() - returned, f"{where}: what started and never ended is closed"
    for n in range(1, 7):
        again = ran[n] - ran_before[n]
        assert again == (0 if n in started.values() else 1), f"{where}: call {n} ran {again} times afterwards"
        assert ran[n] <= 1, f"{where}: call {n} ran twice"


async def test_dying_again_and_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process lives for two appends only; together they get there, and do nothing twice."""
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)
    conversation = await world.start()
    for _ in range(APPENDS):
        await world.die(await world.reopen(conversation.id), 2, lands=True)
        if (await world.reopen(conversation.id)).status == "finished":
            break
    log = await world.log(conversation.id)
    assert [stored.seq for stored in log] == list(range(len(log)))
    assert (await world.reopen(conversation.id)).state.output == "done"
    assert world.asked == 4, "each response was recorded, so each was asked for once"
    assert max(world.ran.values()) == 1
    ends = Counter(s.event.tool_call_id for s in log if s.kind in ("ToolReturned", "ToolInterrupted"))
    assert sorted(ends.values()) == [1] * 6


async def test_an_idempotent_call_runs_again(
    mortal: Any, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    steps = [tool_call("read_file", path="a.txt"), "read"]
    spec = AgentSpec(model=ScriptedModel(steps), skills=(), workspace_access="read")
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=mortal, settings=settings)
    await conversation.send_message("go")
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)
    mortal.death, mortal.appends = 1, 0  # response and call | result and answer
    with contextlib.suppress(Died):
        await conversation.run()
    mortal.death = None
    again = await AsyncConversation.open(
        conversation.id,
        store=mortal,
        agent=AgentSpec(model=ScriptedModel(steps[1:]), skills=(), workspace_access="read"),
        settings=settings,
    )
    assert (await again.run()).output == "read"
    kinds = [stored.kind async for stored in mortal.read(conversation.id) if stored.kind.startswith("Tool")]
    assert kinds == ["ToolCalled", "ToolCalled", "ToolReturned"]
