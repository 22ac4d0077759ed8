"""Overhead of an eval over its conversations, scoring a long trace, a report of a thousand cases."""

from __future__ import annotations

import asyncio
import resource
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation
from bough.evals import CaseInput, EvalSet, SetCase, ToolUse, Trace, TurnInput, evaluate, metrics
from bough.evals.report.write import write_reports
from bough.evals.run.folder import RunFolder
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.events.model import Event, ModelResponded, ToolCalled, ToolReturned, UserMessage
from bough.testing import ScriptedModel, tool_call
from harness import Figure, compare_async, note, seconds

CASES = 100
MANY = 1000
LATENCY_SECONDS = 0.2
EVENTS = 10_000


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CASE = CaseInput(
    turns=(TurnInput(user="add", tool_uses=(ToolUse("add", {"a": 1}),), reference="3"),),
    expect={"order": 1.0, "schema_discovery_score": 0.0, "skill_discovery_score": 0.0},
)


def agent(latency_seconds: float = 0.0) -> AgentSpec:
    """An agent of three steps: two calls and an answer."""

    async def step(asked: Any) -> Any:
        await asyncio.sleep(latency_seconds)
        done = sum(part.part_kind == "tool-return" for message in asked.messages for part in message.parts)
        return "3" if done == 2 else tool_call("add", a=1, b=2)

    return AgentSpec(name="adder", model=ScriptedModel([step] * 100_000), tools=(add,), skills=())


def cases(count: int) -> EvalSet:
    return EvalSet(name="bench", cases=tuple(SetCase(id=f"c{n}", input=CASE) for n in range(count)))


async def overhead(home: Path) -> None:
    """A case of twelve metrics, to its conversation alone; one at a time."""
    settings = Settings.load(home=home, env={}, cwd=home)

    async def run() -> None:
        await evaluate(cases(CASES), agent(), settings=settings, jobs=1)

    async def bare() -> None:
        store = await open_store(f"sqlite:///{home / f'{perf_counter()}.db'}")
        spec = agent()
        for _ in range(CASES):
            async with await AsyncConversation.create(spec, workspace=home, store=store, settings=settings) as each:
                await each.send_message("add")
                await each.run()
        await store.aclose()

    await compare_async("evals: a case beside its conversation", run, bare, unit="ms", per=CASES, rounds=5)


async def at_once(home: Path) -> None:
    """A thousand cases at 200 ms a response: eight at once against one, and the memory of it."""
    settings = Settings.load(home=home, env={}, cwd=home)
    took: dict[int, float] = {}
    for jobs, count in ((1, MANY // 8), (8, MANY)):
        start = perf_counter()
        run = await evaluate(cases(count), agent(LATENCY_SECONDS), settings=settings, jobs=jobs)
        took[jobs] = (perf_counter() - start) / count
        last = run
    note(f"evals: eight at once are {took[1] / took[8]:.2f} times one")
    note(f"evals: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB resident after {MANY} cases")
    folder = RunFolder(last.folder)
    again, notes = await read_run(folder)
    times: list[float] = []
    for _ in range(5):
        start = perf_counter()
        await write_reports(folder, again, notes)
        times.append(perf_counter() - start)
    Figure.of(f"evals: report of {MANY} cases", times, unit="s").report()


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

    score()
    Figure.of(f"evals: twelve metrics of {EVENTS} events", [1e3 * seconds(score) for _ in range(7)], unit="ms").report()


async def main() -> None:
    """Take every figure."""
    scoring()
    with tempfile.TemporaryDirectory() as folder:
        await overhead(Path(folder))
        await at_once(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
