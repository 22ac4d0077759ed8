"""What an eval costs: a case compared with its conversation, many cases at once, a resumed run, a report, a query.

`python benchmarks/evals.py [CASES]`: CASES is the number of cases in the set whose run, report and resumption are
measured.
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
from bough.evals.data.public_data import PROJECT, ensure_datasets
from bough.evals.data.tools import DataTools
from bough.evals.report.write import write_reports
from bough.evals.run.folder import RunFolder
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.events.model import Event, ModelResponded, ToolCalled, ToolReturned, UserMessage
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from harness import MIN_ROUNDS, Figure, in_turns_async, measure_seconds, measure_seconds_async

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
"""Has twelve metrics together with those in `METRICS`."""

METRICS = {"trigger_score": 0.0, "output_correctness_score": 1.0}


def make_agent(latency_seconds: float = 0.0) -> AgentSpec:
    """Return an agent that takes three steps: two calls and an answer."""

    async def step(request: Any) -> Any:
        if latency_seconds:
            await asyncio.sleep(latency_seconds)
        done = sum(part.part_kind == "tool-return" for message in request.messages for part in message.parts)
        return "3" if done == 2 else tool_call("add", a=1, b=2)

    return AgentSpec(name="adder", model=ScriptedModel([step] * 100_000), tools=(add,), skills=())


def make_cases(count: int) -> EvalSet:
    return EvalSet(name="bench", cases=tuple(SetCase(id=f"c{n}", input=CASE) for n in range(count)))


async def measure_overhead(settings: Settings, count: int) -> None:
    """Report a case of twelve metrics, less the cost of a run of one case, compared with its conversation alone."""

    def run(cases: int) -> Any:
        return measure_seconds_async(
            lambda: evaluate(make_cases(cases), make_agent(), settings=settings, jobs=1, metrics=METRICS)
        )

    async def measure() -> float:
        return await run(count + 1) - await run(1)

    async def bare() -> None:
        store = await open_store(f"sqlite:///{settings.home / f'{perf_counter()}.db'}")
        spec = make_agent()
        for number in range(count):
            folder = settings.home / "work" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            async with await AsyncConversation.create(
                spec, workspace=folder, store=store, settings=settings
            ) as conversation:
                await conversation.send_message("add")
                await conversation.run()
        await store.aclose()

    durations, floors = await in_turns_async(measure, lambda: measure_seconds_async(bare), rounds=MIN_ROUNDS)
    durations, floors = [1e3 * duration / count for duration in durations], [1e3 * floor / count for floor in floors]
    Figure.of("evals: a case, to its conversation", durations, floors, unit="ms").report()
    overheads = [duration - floor for duration, floor in zip(durations, floors, strict=True)]
    Figure.of("evals: overhead of a case", overheads, unit="ms").report()


async def measure_at_once(settings: Settings, count: int) -> None:
    """Report cases with 200 ms a response, eight at once. The floor is one at a time."""

    def run(jobs: int, cases: int) -> Any:
        return measure_seconds_async(
            lambda: evaluate(
                make_cases(cases), make_agent(LATENCY_SECONDS), settings=settings, jobs=jobs, metrics=METRICS
            )
        )

    durations, floors = await in_turns_async(
        lambda: run(AT_ONCE, AT_ONCE * count), lambda: run(1, count), rounds=MIN_ROUNDS
    )
    per_case = [duration / (AT_ONCE * count) for duration in durations]
    Figure.of(f"evals: a case, {AT_ONCE} at once", per_case, [floor / count for floor in floors], unit="s").report()


async def measure_many(settings: Settings, count: int) -> None:
    """Report a whole run: its memory, its resumption when every case is finished, and its report."""
    await evaluate(make_cases(count // 10), make_agent(), settings=settings, jobs=AT_ONCE, metrics=METRICS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = await evaluate(make_cases(count), make_agent(), settings=settings, jobs=AT_ONCE, metrics=METRICS)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    Figure(f"evals: memory from {count // 10} to {count} cases", round(growth, 1), "MB", None, None, 1).report()
    resumed = [
        await measure_seconds_async(
            lambda: evaluate(make_cases(count), make_agent(), settings=settings, metrics=METRICS, resume=run.run)
        )
        for _ in range(MIN_ROUNDS)
    ]
    Figure.of(f"evals: resuming {count} finished cases", resumed, unit="s").report()
    folder = RunFolder(run.folder)
    results, notes = await read_run(folder)
    written = [await measure_seconds_async(lambda: write_reports(folder, results, notes)) for _ in range(MIN_ROUNDS)]
    Figure.of(f"evals: report of {count} cases", written, unit="s").report()
    shutil.rmtree(run.folder)


async def measure_query(settings: Settings) -> None:
    """Report a query in a process that can be killed, compared with a query in this process."""
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
        first_seconds = round(perf_counter() - started, 4)
        Figure("evals: a first query, with its process", first_seconds, "s", None, None, 1).report()
        durations, floors = await in_turns_async(
            lambda: measure_seconds_async(ask), lambda: measure_seconds_async(bare), rounds=MIN_ROUNDS
        )
    await tools.aclose()
    overheads = [1e3 * (duration - floor) / QUERIES for duration, floor in zip(durations, floors, strict=True)]
    Figure.of("evals: overhead of a query", overheads, unit="ms").report()


def measure_scoring() -> None:
    """Report all metrics of a trace with ten thousand events."""
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

    def read_kinds() -> None:
        for event in events:
            _ = event.kind

    score()
    durations, floors = (
        [1e3 * measure_seconds(score) for _ in range(7)],
        [1e3 * measure_seconds(read_kinds) for _ in range(7)],
    )
    Figure.of(f"evals: twelve metrics of {EVENTS} events", durations, floors, unit="ms").report()


async def main(count: int) -> None:
    """Measure and print every figure."""
    measure_scoring()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(home=folder, env={}, cwd=Path(folder))
        await measure_query(settings)
        await measure_overhead(settings, max(count // 20, 5))
        await measure_at_once(settings, max(count // 100, 1))
        await measure_many(settings, count)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else MANY))
