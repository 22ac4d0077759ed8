"""What a task costs beside its agent's own conversation, on SQLite: a delegation, ten at once, tasks a second, claims.

The floors are run in turns with the work: the same agent's `AsyncConversation` alone, and for the rate the same writes
by a bare writer thread beside it. Models here answer from memory, after a latency where one is said. `--small` runs
everything once over little, to see that it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from append import BareWriter, make_row, open_raw_database
from bough import AgentSpec, AsyncConversation, Settings
from bough.agents.delegation_protocol import Asking
from bough.events.owner import owner
from bough.tasks import Task, TaskBroker, TaskState, TaskStoreSqlite
from bough.types import new_id
from harness import MIN_ROUNDS, Figure, compare_async, in_turns_async, measure_seconds_async, print_note

COMMITS = 4
"""What a trivial task commits: submission, claim, response, end."""

_FINISHED = """
with recursive n (i) as (select 1 union all select i + 1 from n where i < :count)
insert into task (id, cid, format, state, version, attempts, max_attempts, priority, queue, first, last)
select randomblob(16), (select min(cid) from task), 1, 3, 2, 1, 3, 0, 'default', 2, 2 from n
"""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 21
    latency_seconds: float = 1.0
    slow_rounds: int = MIN_ROUNDS
    tasks: int = 100
    finished: tuple[int, ...] = (10, 1_000, 100_000)
    waiting: int = 10_000


SMALL = Sizes(rounds=5, latency_seconds=0.01, tasks=4, finished=(10, 100), waiting=50)


def make_agent(latency_seconds: float = 0.0) -> AgentSpec:
    """Return an agent that answers at once, or after a while."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if latency_seconds:
            await asyncio.sleep(latency_seconds)
        return ModelResponse([TextPart("done")])

    return AgentSpec(name="trivial", model=FunctionModel(respond), skills=())


class Bench:
    """A log in a folder, and an entered broker on it."""

    def __init__(self, folder: Path, agent: AgentSpec) -> None:
        self.settings = Settings.load(home=folder / "home", env={}, cwd=folder)
        self.agent = agent
        self.folder = folder
        folder.mkdir()
        self.tasks = TaskStoreSqlite(f"sqlite:///{folder / 'log.db'}")
        self.broker = TaskBroker(self.tasks, settings=self.settings)
        top = AgentSpec(name="top", model=agent.model, skills=(), sub_agents=[agent])
        self.broker.register_agents([top])
        self._top = top
        self._parent: AsyncConversation[Any] | None = None

    async def __aenter__(self) -> Bench:
        await self.broker.__aenter__()
        self._parent = await AsyncConversation.create(
            self._top, workspace=self.folder, settings=self.settings, broker=self.broker.delegation
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._parent is not None:
            await self._parent.aclose()
        await self.broker.aclose()
        await self.tasks.aclose()

    async def delegate(self) -> None:
        """Do what the tool `delegate` does, from its call to its result."""
        assert self._parent is not None
        asking = Asking(self._parent.id, str(new_id()), None, {})
        child = await self.broker.delegation.start(asking, "trivial", "do it", background=False)
        (ended,) = await self.broker.delegation.wait(asking, {child.task_id})
        assert ended.state == "completed", ended

    async def converse(self) -> None:
        """Run the agent alone."""
        conversation = await AsyncConversation.create(
            self.agent, workspace=self.folder, store=self.tasks.log, settings=self.settings
        )
        async with conversation:
            await conversation.send_message("do it")
            await conversation.run()

    async def run_tasks(self, count: int) -> None:
        """Submit tasks and wait for all of them."""
        ids = [await self.broker.submit("do it", agent_name="trivial") for _ in range(count)]
        ended = await asyncio.gather(*map(self.broker.wait, ids))
        assert {task.state for task in ended} == {TaskState.COMPLETED}


async def main(sizes: Sizes) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        async with Bench(folder / "one", make_agent()) as bench:
            await measure_delegation(bench, sizes)
            await measure_rate(bench, sizes)
        async with Bench(folder / "ten", make_agent(sizes.latency_seconds)) as bench:
            await compare_async(
                "tasks: ten delegations at once, to the slowest",
                lambda: _gather(bench, 10),
                bench.delegate,
                rounds=sizes.slow_rounds,
            )
        await measure_claims(folder, sizes)
        await measure_waiting(folder, sizes)


async def _gather(bench: Bench, count: int) -> None:
    await asyncio.gather(*(bench.delegate() for _ in range(count)))


async def measure_delegation(bench: Bench, sizes: Sizes) -> None:
    """Report the time of a delegation compared with its agent's own conversation, and the difference."""
    taken, alone = await in_turns_async(
        lambda: measure_seconds_async(bench.delegate),
        lambda: measure_seconds_async(bench.converse),
        rounds=sizes.rounds,
    )
    values, floors = [1e3 * seconds for seconds in taken], [1e3 * seconds for seconds in alone]
    Figure.of("tasks: a delegation, to its agent alone", values, floors, unit="ms").report()
    added = median(values) - median(floors)
    Figure.of("tasks: what a delegation adds to its agent", [added] * len(values), unit="ms").report()


async def measure_rate(bench: Bench, sizes: Sizes) -> None:
    """Report the rate of trivial tasks, compared with the agent's conversations plus the same number of writes."""
    bare_writer = BareWriter(open_raw_database(bench.folder / "bare.db"))
    count, keys = sizes.tasks, iter(range(1 << 40))

    async def floor() -> None:
        slots = asyncio.Semaphore(16)

        async def converse_and_commit() -> None:
            async with slots:
                await bench.converse()
                for _ in range(COMMITS):
                    await bare_writer.insert(make_row(0, 0, next(keys), bytes(300)))

        await asyncio.gather(*(converse_and_commit() for _ in range(count)))

    await compare_async(
        "tasks: tasks a second, to their agent and the same writes",
        lambda: bench.run_tasks(count),
        floor,
        unit="1/s",
        per=count,
        rounds=sizes.slow_rounds,
    )
    bare_writer.stop()


async def measure_claims(folder: Path, sizes: Sizes) -> None:
    """Report a claim and its release at growing numbers of finished tasks, compared with the smallest number."""
    stores: Mapping[int, TaskStoreSqlite] = {
        count: TaskStoreSqlite(f"sqlite:///{folder / f'finished-{count}.db'}") for count in sizes.finished
    }
    for count, store in stores.items():
        await store.create(Task(input="done"))
        first = await store.claim(owner())
        assert first is not None
        await store.release(first, TaskState.COMPLETED)
        await store.change(lambda tables, count=count: tables.connection.execute(_FINISHED, {"count": count}) and None)
        await store.create(Task(input="next"))
    fewest = stores[sizes.finished[0]]
    for count, store in list(stores.items())[1:]:
        name = f"tasks: claim and release behind {count} finished, to behind {sizes.finished[0]}"
        await compare_async(
            name, lambda store=store: _claim(store), lambda: _claim(fewest), unit="us", rounds=sizes.rounds
        )
    for store in stores.values():
        await store.aclose()


async def _claim(store: TaskStoreSqlite) -> None:
    claim = await store.claim(owner())
    assert claim is not None
    await store.release(claim)


async def measure_waiting(folder: Path, sizes: Sizes) -> None:
    """Report how much a process grows when it waits for many tasks."""
    store = TaskStoreSqlite(f"sqlite:///{folder / 'waiting.db'}")
    broker = TaskBroker(store, settings=Settings.load(home=folder / "home", env={}, cwd=folder))
    ids = [(await store.create(Task(input="later"))).id for _ in range(sizes.waiting)]
    first = asyncio.create_task(broker.wait(ids[0]))  # so that what the first wait needs does not count as growth
    await asyncio.sleep(0.1)
    before = _resident_mb()
    waits = [asyncio.create_task(broker.wait(id)) for id in ids]
    watched = broker._watch._watched
    while len(watched) < len(ids) or not all(entry.waiters for entry in watched.values()):
        await asyncio.sleep(0.01)
    grown = _resident_mb() - before
    Figure.of(f"tasks: growth of a process that waits for {sizes.waiting}", [grown] * MIN_ROUNDS, unit="MB").report()
    for wait in (first, *waits):
        wait.cancel()
    await asyncio.gather(first, *waits, return_exceptions=True)
    await broker.aclose()
    await store.aclose()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="see that it runs")
    options = parser.parse_args()
    print_note("tasks: the agent's model answers from memory")
    asyncio.run(main(SMALL if options.small else Sizes()))
