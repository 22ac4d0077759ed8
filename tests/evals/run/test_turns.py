"""Attempts are tasks of a broker: keys, take-over, what asks, what fails, what is handed back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import Conflict, Unavailable
from bough.evals import CaseInput, EvalSet, SetCase, TurnInput, evaluate
from bough.evals.run.folder import list_runs
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.guard import AlwaysConfirm, Limits, Secrets
from bough.settings import Settings
from bough.tasks import Task, TaskState, TaskStoreSqlite
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


def set_of(*cases: CaseInput | str) -> EvalSet:
    made = (SetCase(id=f"c{n}", input=CaseInput.of(each)) for n, each in enumerate(cases, 1))
    return EvalSet(name="made", cases=tuple(made))


async def list_tasks(url: str) -> list[Task]:
    store = TaskStoreSqlite(url)
    try:
        return sorted((await store.list()).items, key=lambda task: task.created_at)
    finally:
        await store.aclose()


async def test_each_turn_is_a_task_with_a_key_of_its_own(settings: Settings) -> None:
    turns = (TurnInput(user="one"), TurnInput(user="two"))
    model = ScriptedModel(["first", "second"])
    run = await evaluate(
        set_of(CaseInput(turns=turns)), AgentSpec(name="a", model=model, skills=()), settings=settings, seed=40
    )
    tasks = await list_tasks(f"sqlite:///{run.folder / 'store.db'}")
    assert [(task.state, task.input, task.result, task.idempotency_key) for task in tasks] == [
        (TaskState.COMPLETED, "one", "first", f"{run.run}/c1/1//1"),
        (TaskState.COMPLETED, "two", "second", f"{run.run}/c1/1//2"),
    ]
    assert {str(task.conversation) for task in tasks} == {run.cases[0].conversation}
    assert [dict(asked.settings or {}).get("seed") for asked in model.asked] == [41, 41], "the seed and the attempt"


async def test_a_turn_that_does_not_end_well_is_the_last_one(settings: Settings) -> None:
    turns = (TurnInput(user="one"), TurnInput(user="two"))
    loop = ScriptedModel([tool_call("look")] * 5)
    agent = AgentSpec(name="a", model=loop, tools=(look,), skills=())
    run = await evaluate(set_of(CaseInput(turns=turns)), agent, settings=settings, limits=Limits(steps=2))
    assert (run.cases[0].status, run.cases[0].reason) == ("failed", "the limit steps was reached")
    assert (len(await list_tasks(f"sqlite:///{run.folder / 'store.db'}")), loop.requests) == (1, 2)


def look() -> str:
    """Look around."""
    return "nothing"


async def test_what_asks_a_person_is_cancelled_and_a_policy_of_the_settings_asks_nobody(tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path, policy="ask")
    steps = (tool_call("look"), "done")
    free = AgentSpec(name="a", model=ScriptedModel(steps), tools=(look,), skills=())
    assert (await evaluate(set_of("x"), free, settings=settings)).passed
    careful = AgentSpec(
        name="a", model=ScriptedModel(steps), tools=(look,), skills=(), confirmation_policy=AlwaysConfirm()
    )
    run = await evaluate(set_of("x"), careful, settings=settings)
    assert (run.cases[0].status, run.cases[0].reason) == ("failed", "the agent asked for confirmation")
    (task,) = await list_tasks(f"sqlite:///{run.folder / 'store.db'}")
    assert task.state is TaskState.CANCELLED


async def test_what_is_not_there_is_an_error_and_is_not_tried_again(settings: Settings) -> None:
    """A broker tries such a task again; an eval does not, for what failed once would be asked more often."""
    model = ScriptedModel([Unavailable("the database is away"), "there again"])
    run = await evaluate(set_of("x"), AgentSpec(name="a", model=model, skills=()), settings=settings)
    (result,) = run.cases
    assert (result.status, model.requests) == ("error", 1)
    assert result.error is not None and result.error["code"] == "unavailable"


async def test_secrets_of_the_run_are_masked_in_its_logs(settings: Settings) -> None:
    secrets = Secrets({"KEY": lambda: "s3cret-value-1"})
    model = ScriptedModel(["it is s3cret-value-1", "again s3cret-value-1"])
    case = CaseInput(turns=(TurnInput(user="say s3cret-value-1"), TurnInput(user="again")))
    run = await evaluate(set_of(case), AgentSpec(name="a", model=model, skills=()), settings=settings, secrets=secrets)
    store = await open_store(f"sqlite:///{run.folder / 'store.db'}")
    try:
        events = [each.event async for each in store.read(UUID(run.cases[0].conversation))]
    finally:
        await store.aclose()
    texts = [each.model_dump_json() for each in events]
    assert '"secrets":["KEY"]' in texts[0] and not any("s3cret-value-1" in text for text in texts)


async def test_the_work_of_sub_agents_is_in_the_trace(settings: Settings) -> None:
    below = AgentSpec(name="below", model=ScriptedModel([tool_call("look"), "found"]), tools=(look,), skills=())
    model = ScriptedModel([tool_call("delegate", agent_name="below", prompt="look"), "done"])
    agent = AgentSpec(name="above", model=model, skills=(), sub_agents=(below,))
    case = CaseInput(turns=(TurnInput(user="x"),), checks=("tool: look", "tool: delegate"))
    run = await evaluate(set_of(case), agent, settings=settings, jobs=1)
    assert run.passed, run.cases[0].reason


async def test_at_most_so_many_attempts_run_at_once(settings: Settings) -> None:
    running, most = 0, 0

    async def step(asked: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    agent = AgentSpec(name="a", model=ScriptedModel([step] * 12), skills=())
    run = await evaluate(set_of(*(["x"] * 12)), agent, settings=settings, jobs=3)
    assert run.passed and most <= 3


async def test_a_run_that_is_cancelled_hands_its_attempts_back_and_goes_on(settings: Settings) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        await never.wait()
        return "never"

    def agent(*steps: Any) -> AgentSpec:
        return AgentSpec(name="a", model=ScriptedModel(steps), tools=(wait,), skills=())

    first = asyncio.create_task(evaluate(set_of("a", "b"), agent("done", tool_call("wait")), settings=settings, jobs=1))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (folder,) = list_runs(settings.home / "evals")
    run, _ = await read_run(folder)
    assert [each.status for each in run.cases] == ["passed", "skipped"]
    assert (folder.path / "report.html").exists(), "what is there is reported"
    assert [task.state for task in await list_tasks(folder.store_url)] == [TaskState.COMPLETED, TaskState.PENDING]
    rest = agent("after the call was cut off")
    again = await evaluate(set_of("a", "b"), rest, settings=settings, resume="-")
    assert [each.status for each in again.cases] == ["passed", "passed"]
    store = await open_store(folder.store_url)
    try:
        kinds = [each.kind async for each in store.read(UUID(again.cases[1].conversation))]
    finally:
        await store.aclose()
    assert (kinds.count("UserMessage"), kinds.count("ToolInterrupted")) == (1, 1)


async def test_the_task_of_an_attempt_that_cannot_be_continued_is_cancelled(settings: Settings) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(_: Any) -> str:
        begun.set()
        await never.wait()
        return "never"

    @asynccontextmanager
    async def refuse(planned: Any, spec: AgentSpec, workspace: Path) -> AsyncGenerator[AgentSpec]:
        raise Conflict("its place is gone")
        yield spec

    def agent(*steps: Any) -> AgentSpec:
        return AgentSpec(name="a", model=ScriptedModel(steps), skills=())

    first = asyncio.create_task(evaluate(set_of("a"), agent(hang), settings=settings))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    run = await evaluate(set_of("a"), agent(), settings=settings, resume="-", prepare=refuse)
    assert (run.cases[0].status, run.cases[0].reason) == ("error", "its place is gone")
    (task,) = await list_tasks(f"sqlite:///{run.folder / 'store.db'}")
    assert task.state is TaskState.CANCELLED
