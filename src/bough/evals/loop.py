"""Runs a set: plans the attempts, drives them with pydantic-evals, writes reports, and resumes after a crash."""

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
from bough.evals.run.note import result_from_note
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
from bough.tasks.stores.backends import TaskStoreSqlite
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from bough.conversation import State
    from bough.events.record import ConversationRecord
    from bough.execution.base import CodeExecutor
    from bough.guard import Secrets

NO_JUDGE = "none"
"""Value of `judge` that skips everything that needs one."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How a set is run.

    Attributes:
        repeat: Attempts per case.
        judge: Decides rubrics; `none` skips them; None is an error if something needs a judge.
        metrics: Thresholds to add or replace, by metric.
        threshold: The required pass rate.
        max_cost_usd: No attempt starts after this much is spent, judge included.
        limits: Bounds of each turn.
        keep: Also keep the workspaces of attempts that passed.
        sides: Names of the compared sides; `agent_for` returns the agent of each.
        begin: Called with the folder of the run before its first attempt.
        record: Additional fields of `run.json`.
        record_to: Folder for bundles of the first attempt at each case and of its judge.
        recorded: Folder of such bundles, which replace model and judge; tools and scripts still run.
        prepare: Sets up each attempt, see `Prepare`; `findings`: its results, see `Findings`.
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
        """Check the options.

        Raises:
            InvalidInput: An option is invalid.
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
    **overrides: Any,
) -> EvalRun:
    """Run a set and return the results, which are also events in the attempts' logs.

    Args:
        agent: The agent to evaluate; None takes the default agent.
        executor: Runs scripts; None takes the settings' one.
        folder: Folder of runs; None: `evals` below the home folder.
        resume: Continue this run (an id, a part of one, or `-`); attempts with a result are not repeated.
        options: The options of the run.
        overrides: Single fields of `options`, by name.

    Raises:
        InvalidInput: The set has no cases, an option is invalid, or a judge is needed and missing.
        NotFound: The run to resume does not exist.
        Conflict: The run is in use, or belongs to another set or agent.
    """
    options = replace(options or EvalOptions(), **overrides)
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
                _check_unchanged(run.read_record(), record)
            else:
                run.write_record(record)
            return await _drive(eval_set, cases, spec, run, broker, host, judge, options, is_new=resume is None)


def make_judge(options: EvalOptions, cases: Sequence[SetCase], settings: Settings) -> Judge | None:
    """Return the judge; None if nothing is judged.

    Raises:
        InvalidInput: A judge is needed and none is named.
    """
    if options.recorded is not None and options.judge is None:
        from bough.agents.models.replay import ReplayModel

        return Judge(ReplayModel([]), options.votes)
    if isinstance(options.judge, Judge):
        return options.judge
    if options.judge is not None and options.judge != NO_JUDGE:
        return Judge(options.judge, options.votes, base_url=settings.base_url)
    undecided = [needs_judge(case.input, options.metrics) for case in cases]
    if options.judge is None and any(undecided):
        raise InvalidInput(
            f"{sum(undecided)} rubrics in {sum(map(bool, undecided))} cases need a judge",
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
    """Run the attempts without a result, and write the reports, even if the run is interrupted."""
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
        # In finally, so that an interrupted run also has reports of its finished attempts.
        run, notes = await read_run(folder, host.store)
        await write_reports(folder, run, notes, host.store)
    return replace(run, is_over_budget=not runner.has_budget)


async def drive_attempts(
    eval_set: EvalSet, todo: Sequence[PlannedAttempt], runner: AttemptRunner, options: EvalOptions, *, judged: bool
) -> None:
    """Run attempts with pydantic-evals, `jobs` at once; results become notes in the logs."""
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
    """Return the attempts without a result, and the cost in dollars of the others."""
    by_key = {(planned.case.id, planned.number, planned.side): planned for planned in plan}
    todo: list[PlannedAttempt] = []
    reserved: dict[tuple[str, str], set[int]] = {}
    spent = 0.0
    for slot in await reader.read_slots():
        planned = by_key.get((slot.case, slot.number, slot.side))
        if planned is None:
            continue
        if slot.note is None:
            todo.append(planned)
            continue
        spent += sum(map(_note_cost_usd, (*slot.replaced, slot.note)))
        if options.retry_errors and slot.is_error:
            numbers = reserved.setdefault((slot.case, slot.side), set())
            numbers.add(number := await reader.next_number(slot, numbers))
            todo.append(replace(planned, number=number))
    return todo, spent


def _note_cost_usd(note: JsonObject) -> float:
    result = result_from_note(note)
    return (result.cost_usd or 0.0) + (result.judge_cost_usd or 0.0)


@asynccontextmanager
async def _open_broker(
    folder: RunFolder, settings: Settings, executor: CodeExecutor | None, options: EvalOptions
) -> AsyncGenerator[tuple[TaskBroker, ConversationHost]]:
    """Open the store and broker that attempts share; the caller's executor stays open."""
    store = await open_store(folder.store_url)
    used = executor or executor_named(settings.executor)
    secrets = options.secrets

    async def find_credentials(record: ConversationRecord, state: State) -> Credentials:
        return Credentials(secrets=secrets)

    broker = TaskBroker(
        TaskStoreSqlite(store),
        settings=replace(settings, policy="allow"),  # nobody can answer an approval prompt
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


def _check_unchanged(recorded: JsonObject, current: JsonObject) -> None:
    """Check that a resumed run has the configuration it was started with.

    Raises:
        Conflict: The cases, the agent, the metrics or the judge changed.
    """
    for name in ("kind", "cases", "agent", "metrics", "repeat", "sides", "judge", "prompt_sha256", "seed", "skill"):
        if json.dumps(recorded.get(name), sort_keys=True) != json.dumps(current.get(name), sort_keys=True):
            raise Conflict(
                f"the run was started with other {name}", hint="start a new run, or resume it as it was started"
            )
