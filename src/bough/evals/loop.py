"""Running a set: the plan, the attempts over pydantic-evals, the reports at the end; and continuing after a crash."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, settle_spec
from bough.errors import Conflict, InvalidInput
from bough.evals.case import SetCase
from bough.evals.converse import ConversationHost
from bough.evals.eval_set import EvalSet
from bough.evals.judge.judge import Judge
from bough.evals.metrics.thresholds import needs_judge
from bough.evals.report.write import write_reports
from bough.evals.run.attempt import AgentFor, Attempt, AttemptRunner, Findings, OnResult, Prepare, attempt
from bough.evals.run.folder import RunFolder, find_run
from bough.evals.run.note import result_of_note
from bough.evals.run.plan import PlannedAttempt, choose_cases, plan_attempts
from bough.evals.run.provenance import describe_run
from bough.evals.run.read import RunReader, read_run
from bough.evals.run.recorded import Recordings, recording_name
from bough.evals.run.result import EvalRun
from bough.evals.run.turns import TaskAttemptRunner
from bough.evals.score import METRICS
from bough.events import open_store
from bough.execution.named import executor_named
from bough.guard import Limits, NeverConfirm
from bough.settings import Settings
from bough.tasks.agents import Credentials
from bough.tasks.broker import TaskBroker
from bough.tasks.stores.sqlite import TaskStoreSqlite
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from bough.conversation import State
    from bough.events.record import ConversationRecord
    from bough.execution.base import CodeExecutor
    from bough.guard import Secrets

NO_JUDGE = "none"
"""As a judge: leave out what needs one."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How a set is run.

    Attributes:
        repeat: Attempts per case.
        judge: Decides rubrics; `none` leaves them out; None is refused where something needs a judge.
        metrics: Thresholds to add or replace, by metric.
        threshold: The pass rate that is demanded.
        max_cost_usd: No attempt starts once that much is spent, judge included.
        limits: Bounds of each turn.
        keep: Keep the workspaces of attempts that passed, too.
        sides: What is compared; `agent_for` gives each its agent.
        begin: Called with the folder of the run before its first attempt.
        record: More fields of `run.json`.
        record_to: Where the first attempt at each case, and its judge, are written as bundles.
        recorded: Where such bundles answer instead of model and judge; tools and scripts really run.
        prepare: What an attempt needs around it, see `Prepare`; `findings`: what that found out.
    """

    jobs: int = 4
    repeat: int = 1
    judge: Judge | str | None = None
    votes: int = 1
    metrics: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    threshold: float = 1.0
    seed: int = 0
    filter: str | None = None
    limit: int | None = None
    max_cost_usd: float | None = None
    retry_errors: bool = False
    limits: Limits | None = None
    secrets: Secrets | None = None
    keep: bool = False
    kind: str = "set"
    sides: Sequence[str] = ("",)
    agent_for: AgentFor | None = None
    begin: Callable[[RunFolder], None] | None = None
    record: Mapping[str, Json] = field(default_factory=dict[str, Any])
    prepare: Prepare | None = None
    findings: Findings | None = None
    record_to: Path | None = None
    recorded: Path | None = None
    skill_folder: Path | None = None
    on_result: OnResult | None = None
    argv: Sequence[str] = ()

    def check(self) -> None:
        """Check the numbers.

        Raises:
            InvalidInput: One makes no sense.
        """
        for name, value in (("jobs", self.jobs), ("repeat", self.repeat)):
            if value < 1:
                raise InvalidInput(f"{name} cannot be {value}", hint="give 1 or more")
        if not 0 <= self.threshold <= 1:
            raise InvalidInput(f"a threshold of {self.threshold} is not a share", hint="give a number from 0 to 1")
        if unknown := [name for name in self.metrics if name not in METRICS]:
            raise InvalidInput(f"invalid metric {unknown[0]!r}", hint=f"one of: {', '.join(sorted(METRICS))}")


async def evaluate(
    eval_set: EvalSet,
    agent: AgentLike | None = None,
    *,
    settings: Settings | None = None,
    executor: CodeExecutor | None = None,
    folder: Path | None = None,
    resume: str | None = None,
    options: EvalOptions | None = None,
    **given: Any,
) -> EvalRun:
    """Run a set and return what was found out; results are events of the attempts' logs.

    Args:
        agent: Whose work is tried; None takes the default agent.
        executor: Runs scripts; None takes the settings' one.
        folder: Where runs are kept; None: `evals` below the home folder.
        resume: Continue with that run (an id, a part of one, or `-`): what has a result is not run again.
        options: How; single options may be given by name instead.

    Raises:
        InvalidInput: The set has no cases, an option makes no sense, or something needs a judge and there is none.
        NotFound: There is no run to resume.
        Conflict: The run is in use, or was made from another set or for another agent.
    """
    options = replace(options or EvalOptions(), **given)
    options.check()
    settings = settings or Settings.load()
    spec = settle_spec(agent, settings)
    cases = choose_cases(eval_set.cases, filter=options.filter, limit=options.limit)
    if not cases:
        raise InvalidInput(f"{eval_set.name} has no cases to run", hint="see the faults, or --filter and --limit")
    judge = make_judge(options, cases, settings)
    root = settings.home / "evals" if folder is None else folder
    run = RunFolder.new(root) if resume is None else find_run(root, resume)
    with run.hold():
        if options.begin is not None:
            await anyio.to_thread.run_sync(options.begin, run)
        async with _open_broker(run, settings, executor, options) as (broker, host):
            record = _make_record(run, eval_set, cases, spec, settings, host, judge, options)
            if resume is not None:
                _check_same(run.read_record(), record)
            else:
                run.write_record(record)
            return await _drive(eval_set, cases, spec, run, broker, host, judge, options, is_new=resume is None)


def make_judge(options: EvalOptions, cases: Sequence[SetCase], settings: Settings) -> Judge | None:
    """Return the judge; None where nothing is judged.

    Raises:
        InvalidInput: Something needs a judge and none was named.
    """
    if options.recorded is not None and options.judge is None:
        from bough.agents.models.replay import ReplayModel

        return Judge(ReplayModel([]), options.votes)
    if isinstance(options.judge, Judge):
        return options.judge
    if options.judge is not None and options.judge != NO_JUDGE:
        return Judge(options.judge, options.votes, base_url=settings.base_url)
    wanting = [needs_judge(case.input, options.metrics) for case in cases]
    if options.judge is None and any(wanting):
        raise InvalidInput(
            f"{sum(wanting)} rubrics in {sum(map(bool, wanting))} cases need a judge",
            hint="--judge MODEL, or --judge none to leave them out",
        )
    return None


async def _drive(
    eval_set: EvalSet,
    cases: Sequence[SetCase],
    spec: AgentSpec,
    folder: RunFolder,
    broker: TaskBroker,
    host: ConversationHost,
    judge: Judge | None,
    options: EvalOptions,
    *,
    is_new: bool,
) -> EvalRun:
    """Run what has no result yet, and write the reports, those of an interrupted run too."""
    todo, spent = list(plan_attempts(folder.run, cases, repeat=options.repeat, sides=options.sides)), 0.0
    if not is_new:
        async with RunReader.open(folder, host.store) as reader:
            todo, spent = await _find_unfinished(reader, todo, options)
    recordings = None
    if options.recorded is not None:
        names = [recording_name(case.id, side) for case in cases for side in options.sides]
        recordings = await Recordings.load(options.recorded, names)
    runner = TaskAttemptRunner(
        broker=broker,
        host=host,
        folder=folder,
        agent=spec,
        judge=judge,
        metrics=options.metrics,
        agent_for=options.agent_for,
        prepare=options.prepare,
        findings=options.findings,
        recordings=recordings,
        record_to=options.record_to,
        skill_folder=options.skill_folder,
        max_cost_usd=options.max_cost_usd,
        keep=options.keep,
        seed=options.seed,
        on_result=options.on_result,
        spent_usd=spent,
    )
    try:
        if todo:
            await drive_attempts(eval_set, todo, runner, options, judged=judge is not None)
    finally:
        # What is there is worth a report whatever ended the run; it only reads the logs.
        run, notes = await read_run(folder, host.store)
        await write_reports(folder, run, notes, host.store)
    return replace(run, is_over_budget=not runner.has_budget)


async def drive_attempts(
    eval_set: EvalSet, todo: Sequence[PlannedAttempt], runner: AttemptRunner, options: EvalOptions, *, judged: bool
) -> None:
    """Run attempts over pydantic-evals, `jobs` at once; their results are notes in the logs."""
    from pydantic_evals import Dataset

    planned = {planned_attempt.name: planned_attempt for planned_attempt in todo}
    dataset = Dataset[Any, str, Any](
        name=eval_set.name,
        cases=[
            eval_set.pydantic_case(planned_attempt.case, planned_attempt.name, options.metrics, judged=judged)
            for planned_attempt in todo
        ],
    )
    await dataset.evaluate(
        attempt,
        max_concurrency=options.jobs,
        progress=False,
        lifecycle=lambda case: Attempt(case, runner, planned[case.name or ""]),
    )


async def _find_unfinished(
    reader: RunReader, plan: Sequence[PlannedAttempt], options: EvalOptions
) -> tuple[list[PlannedAttempt], float]:
    """Return the attempts without a result, and the dollars that those with one cost."""
    by_key = {(each.case.id, each.number, each.side): each for each in plan}
    todo: list[PlannedAttempt] = []
    taken: dict[tuple[str, str], set[int]] = {}
    spent = 0.0
    for slot in await reader.slots():
        planned = by_key.get((slot.case, slot.number, slot.side))
        if planned is None:
            continue
        if slot.note is None:
            todo.append(planned)
            continue
        spent += sum(map(_cost_of, (*slot.replaced, slot.note)))
        if options.retry_errors and slot.is_error:
            numbers = taken.setdefault((slot.case, slot.side), set())
            numbers.add(number := await reader.next_number(slot, numbers))
            todo.append(replace(planned, number=number))
    return todo, spent


def _cost_of(note: JsonObject) -> float:
    result = result_of_note(note)
    return (result.cost_usd or 0.0) + (result.judge_cost_usd or 0.0)


@asynccontextmanager
async def _open_broker(
    folder: RunFolder, settings: Settings, executor: CodeExecutor | None, options: EvalOptions
) -> AsyncGenerator[tuple[TaskBroker, ConversationHost]]:
    """Open what the run's attempts share; an executor that was given stays open."""
    store = await open_store(folder.store_url)
    used = executor or executor_named(settings.executor)
    secrets = options.secrets

    async def find_credentials(record: ConversationRecord, state: State) -> Credentials:
        return Credentials(secrets=secrets)

    broker = TaskBroker(
        TaskStoreSqlite(store),
        settings=replace(settings, policy="allow"),  # there is nobody to ask
        queues=(),
        concurrency=options.jobs,
        credentials=find_credentials,
        executor=used,
    )
    try:
        async with broker:
            host = ConversationHost(
                store=store,
                settings=settings,
                executor=used,
                limits=options.limits or Limits(steps=100, wall_seconds=600),
                secrets=secrets,
                delegation=broker.delegation,
            )
            yield broker, host
    finally:
        if executor is None:
            await used.aclose()
        await store.aclose()


def _make_record(
    folder: RunFolder,
    eval_set: EvalSet,
    cases: Sequence[SetCase],
    spec: AgentSpec,
    settings: Settings,
    host: ConversationHost,
    judge: Judge | None,
    options: EvalOptions,
) -> JsonObject:
    judged: JsonObject | None = None
    if judge is not None:
        from bough.evals.judge.prompt import PROMPT_SHA256

        judged = {"model": judge.model_name, "votes": judge.votes, "prompt_sha256": PROMPT_SHA256}
    plan: JsonObject = {
        **options.record,
        "recorded": options.recorded is not None,
        "repeat": options.repeat,
        "seed": options.seed,
        "jobs": options.jobs,
        "threshold": options.threshold,
        "metrics": dict(options.metrics),
        "sides": list(options.sides),
        "policy": NeverConfirm().to_json(),
        "limits": host.limits.to_json(),
        "not_judged": 0 if judge is not None else sum(needs_judge(case.input, options.metrics) for case in cases),
    }
    return describe_run(
        folder.run,
        options.kind,
        eval_set,
        cases,
        spec,
        settings=settings,
        plan=plan,
        judge=judged,
        executor=host.executor.name,
        isolation=host.executor.isolation.name.lower(),
        argv=options.argv,
    )


def _check_same(before: JsonObject, now: JsonObject) -> None:
    """Check that a run continues with what it was begun with.

    Raises:
        Conflict: The cases, the agent, the metrics or the judge are others.
    """
    for name in ("kind", "cases", "agent", "metrics", "repeat", "sides", "judge", "prompt_sha256", "seed", "skill"):
        if json.dumps(before.get(name), sort_keys=True) != json.dumps(now.get(name), sort_keys=True):
            raise Conflict(
                f"the run was started with other {name}", hint="start a new run, or resume it as it was started"
            )
