"""What an eval costs: a case over its conversation, many at once, a resumed run, a long trace, a report, a query.

`python benchmarks/evals.py [CASES]`: how many cases the set has whose run, report and resumption are measured.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.evals import CaseInput, EvalSet, SetCase, ToolUse, Trace, TurnInput, evaluate, metrics
from bough.evals.data.made import PROJECT, ensure_datasets
from bough.evals.data.tools import DataTools
from bough.evals.report.write import write_reports
from bough.evals.run.folder import RunFolder
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.events.model import Event, ModelResponded, ToolCalled, ToolReturned, UserMessage
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from harness import MIN_ROUNDS, Figure, in_turns_async, seconds, seconds_async

MANY = 1000
LATENCY_SECONDS = 0.2
AT_ONCE = 8
EVENTS = 10_000
QUERIES = 20


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CASE = CaseInput(
    turns=(TurnInput(user="add", tool_uses=(ToolUse("add", {"a": 1}),), reference="3"),),
    expect={"order": 1.0, "schema_discovery_score": 0.0, "skill_discovery_score": 0.0},
)
"""Asks for twelve metrics with what `METRICS` adds."""

METRICS = {"trigger_score": 0.0, "output_correctness_score": 1.0}


def agent(latency_seconds: float = 0.0) -> AgentSpec:
    """An agent of three steps: two calls and an answer."""

    async def step(asked: Any) -> Any:
        if latency_seconds:
            await asyncio.sleep(latency_seconds)
        done = sum(part.part_kind == "tool-return" for message in asked.messages for part in message.parts)
        return "3" if done == 2 else tool_call("add", a=1, b=2)

    return AgentSpec(name="adder", model=ScriptedModel([step] * 100_000), tools=(add,), skills=())


def cases(count: int) -> EvalSet:
    return EvalSet(name="bench", cases=tuple(SetCase(id=f"c{n}", input=CASE) for n in range(count)))


async def overhead(settings: Settings, count: int) -> None:
    """A case of twelve metrics, to its conversation alone, one at a time; less what a run of one case costs."""

    def run(some: int) -> Any:
        return seconds_async(lambda: evaluate(cases(some), agent(), settings=settings, jobs=1, metrics=METRICS))

    async def measure() -> float:
        return await run(count + 1) - await run(1)

    async def bare() -> None:
        store = await open_store(f"sqlite:///{settings.home / f'{perf_counter()}.db'}")
        spec = agent()
        for number in range(count):
            folder = settings.home / "work" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            async with await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings) as each:
                await each.send_message("add")
                await each.run()
        await store.aclose()

    took, floors = await in_turns_async(measure, lambda: seconds_async(bare), rounds=MIN_ROUNDS)
    took, floors = [1e3 * each / count for each in took], [1e3 * each / count for each in floors]
    Figure.of("evals: a case, to its conversation", took, floors, unit="ms").report()
    over = [each - floor for each, floor in zip(took, floors, strict=True)]
    Figure.of("evals: overhead of a case", over, unit="ms").report()


async def at_once(settings: Settings, count: int) -> None:
    """Cases at 200 ms a response, eight at once; the floor is one at once."""

    def run(jobs: int, some: int) -> Any:
        return seconds_async(
            lambda: evaluate(cases(some), agent(LATENCY_SECONDS), settings=settings, jobs=jobs, metrics=METRICS)
        )

    took, floors = await in_turns_async(lambda: run(AT_ONCE, AT_ONCE * count), lambda: run(1, count), rounds=MIN_ROUNDS)
    each = [some / (AT_ONCE * count) for some in took]
    Figure.of(f"evals: a case, {AT_ONCE} at once", each, [some / count for some in floors], unit="s").report()


async def many(settings: Settings, count: int) -> None:
    """A whole run: its memory, its resumption when all is done, its report."""
    await evaluate(cases(count // 10), agent(), settings=settings, jobs=AT_ONCE, metrics=METRICS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = await evaluate(cases(count), agent(), settings=settings, jobs=AT_ONCE, metrics=METRICS)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    Figure(f"evals: memory from {count // 10} to {count} cases", round(grown, 1), "MB", None, None, 1).report()
    resumed = [
        await seconds_async(lambda: evaluate(cases(count), agent(), settings=settings, metrics=METRICS, resume=run.run))
        for _ in range(MIN_ROUNDS)
    ]
    Figure.of(f"evals: resuming {count} finished cases", resumed, unit="s").report()
    folder = RunFolder(run.folder)
    again, notes = await read_run(folder)
    written = [await seconds_async(lambda: write_reports(folder, again, notes)) for _ in range(MIN_ROUNDS)]
    Figure.of(f"evals: report of {count} cases", written, unit="s").report()
    shutil.rmtree(run.folder)


async def query(settings: Settings) -> None:
    """A query in the process that can be killed, to one in this process."""
    file = ensure_datasets(settings.home / "data")
    tools = DataTools.duckdb({PROJECT: file})
    with duckdb.connect(str(file), read_only=True) as connection:

        async def ask() -> None:
            for _ in range(QUERIES):
                answer: Any = await tools.execute_sql(PROJECT, "select 1 as one")
                assert answer["rows"] == [{"one": 1}], answer

        async def bare() -> None:
            for _ in range(QUERIES):
                connection.execute("select 1 as one").fetchall()

        started = perf_counter()
        await ask()
        begun = round(perf_counter() - started, 4)
        Figure("evals: a first query, with its process", begun, "s", None, None, 1).report()
        took, floors = await in_turns_async(lambda: seconds_async(ask), lambda: seconds_async(bare), rounds=MIN_ROUNDS)
    await tools.aclose()
    over = [1e3 * (each - floor) / QUERIES for each, floor in zip(took, floors, strict=True)]
    Figure.of("evals: overhead of a query", over, unit="ms").report()


def scoring() -> None:
    """A trace of ten thousand events and all metrics of it."""
    events: list[Event] = [UserMessage.text("go")]
    for n in range(EVENTS // 3):
        part = {"part_kind": "tool-call", "tool_call_id": f"{n}", "tool_name": f"t{n % 20}", "args": {"path": f"p{n}"}}
        events.append(ModelResponded(response={"parts": [part]}))
        events.append(ToolCalled(tool_call_id=f"{n}", tool=f"t{n % 20}", arguments={"path": f"p{n}"}))
        events.append(ToolReturned(tool_call_id=f"{n}", tool=f"t{n % 20}", result="ok"))
    expected = [ToolUse(f"t{n % 20}", {"path": f"p{n}"}) for n in range(256)]

    def score() -> None:
        trace = Trace.of(events)
        metrics.tool_invocation_score(trace, expected)
        metrics.tool_args_score(trace, expected)
        metrics.tool_usage_score(trace, expected)
        metrics.order(trace, expected)
        metrics.schema_discovery_score(trace)
        metrics.skill_discovery_score(trace)
        metrics.output_correctness_score(trace, "a\nb\nc")
        metrics.trigger_score([trace], "s", True)
        metrics.no_tool_errors(trace)
        metrics.steps(trace)
        metrics.cost_usd(trace)
        metrics.duration_seconds(trace)

    def look() -> None:
        for event in events:
            _ = event.kind

    score()
    took, floors = [1e3 * seconds(score) for _ in range(7)], [1e3 * seconds(look) for _ in range(7)]
    Figure.of(f"evals: twelve metrics of {EVENTS} events", took, floors, unit="ms").report()


async def main(count: int) -> None:
    """Take every figure."""
    scoring()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(home=folder, env={}, cwd=Path(folder))
        await query(settings)
        await overhead(settings, max(count // 20, 5))
        await at_once(settings, max(count // 100, 1))
        await many(settings, count)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else MANY))
