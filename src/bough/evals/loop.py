"""Runs a set: plans the attempts, runs them with pydantic-evals, writes reports, and resumes after a crash."""

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
from bough.evals.metrics.thresholds import count_judge_statements
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
"""Value of `judge` that skips everything that needs a judge."""

_DEFINING_FIELDS = ("kind", "cases", "agent", "metrics", "repeat", "sides", "judge", "prompt_sha256", "seed", "skill")
"""Fields of `run.json` that must not change when a run is resumed."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """The options of a run.

    Attributes:
        jobs: Maximum number of attempts at once.
        repeat: Attempts per case.
        judge: Decides rubrics; `none` skips them; None is an error if something needs a judge.
        votes: Number of votes of the judge.
        metrics: Thresholds by metric, which add to or replace those of the cases.
        threshold: The required pass rate.
        seed: Base of the seeds of the attempts.
        filter: Pattern for the ids of the cases to run.
        limit: Maximum number of cases to run.
        max_cost_usd: No attempt starts after agent and judge have cost this much.
        retry_errors: Repeat attempts that ended in errors, when a run is resumed.
        limits: Limits of each turn.
        keep: Keep the workspaces of attempts that passed too.
        kind: Kind of the run, for `run.json`.
        sides: Names of the compared sides; `agent_for` returns the agent of each.
        begin: Called with the folder of the run before its first attempt.
        record: Additional fields of `run.json`.
        record_to: Folder for bundles of the first attempt at each case and of its judge.
        recorded: Folder of such bundles, whose responses replace model and judge; tools and scripts still run.
        prepare: Sets up each attempt, see `Prepare`.
        findings: Returns further results of each attempt, see `Findings`.
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
        """Raise an error if an option is invalid.

        Raises:
            InvalidInput: An option is invalid.
        """
        for name, value in (("jobs", self.jobs), ("repeat", self.repeat)):
            if value < 1:
                raise InvalidInput(f"{name} cannot be {value}", hint="give 1 or more")
        if not 0 <= self.threshold <= 1:
            raise InvalidInput(f"threshold cannot be {self.threshold}", hint="give a number from 0 to 1")
        for name in self.metrics:
            if name not in METRICS:
                raise InvalidInput(f"invalid metric {name!r}", hint=f"one of: {', '.join(sorted(METRICS))}")


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
        agent: The agent to evaluate; None for the default agent.
        executor: Runs scripts; None for the executor of the settings.
        folder: Folder of runs; None for `evals` below the home folder.
        resume: Continue this run (an id, a part of an id, or `-`); attempts with a result are not repeated.
        options: The options of the run.
        overrides: Single fields of `options`, by name.

    Raises:
        InvalidInput: The set has no cases, an option is invalid, or the cases need a judge and none is given.
        NotFound: The run to resume does not exist.
        Conflict: The run is in use, or belongs to another set or agent.
    """
    options = replace(options or EvalOptions(), **overrides)
    options.check()
    settings = settings or Settings.load()
    spec = settle_spec(agent, settings)
    cases = choose_cases(eval_set.cases, filter=options.filter, limit=options.limit)
    if not cases:
        raise InvalidInput(
            f"{eval_set.name} has no cases to run", hint="see its faults, or change --filter and --limit"
        )
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
            return await _run_unfinished(
                eval_set, cases, spec, run, broker, host, judge, options, is_new=resume is None
            )


def make_judge(options: EvalOptions, cases: Sequence[SetCase], settings: Settings) -> Judge | None:
    """Return the judge; None if nothing is judged.

    Raises:
        InvalidInput: A case needs a judge and the options name none.
    """
    if options.recorded is not None and options.judge is None:
        from bough.agents.models.replay import ReplayModel

        return Judge(ReplayModel([]), options.votes)
    if isinstance(options.judge, Judge):
        return options.judge
    if options.judge is not None and options.judge != NO_JUDGE:
        return Judge(options.judge, options.votes, base_url=settings.base_url)
    statement_counts = [count_judge_statements(case.input, options.metrics) for case in cases]
    if options.judge is None and any(statement_counts):
        case_count = sum(count > 0 for count in statement_counts)
        raise InvalidInput(
            f"{sum(statement_counts)} rubrics in {case_count} cases need a judge",
            hint="give --judge MODEL, or --judge none to skip them",
        )
    return None


async def _run_unfinished(
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
    """Run the attempts that have no result, and write the reports, even if the run is interrupted."""
    unfinished = list(plan_attempts(folder.run, cases, repeat=options.repeat, sides=options.sides))
    spent_usd = 0.0
    if not is_new:
        async with RunReader.open(folder, host.store) as reader:
            unfinished, spent_usd = await _find_unfinished(reader, unfinished, options)
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
        spent_usd=spent_usd,
    )
    try:
        if unfinished:
            await run_attempts(eval_set, unfinished, runner, options, has_judge=judge is not None)
    finally:
        # An interrupted run also gets reports, of its finished attempts.
        run, notes = await read_run(folder, host.store)
        await write_reports(folder, run, notes, host.store)
    return replace(run, is_over_budget=not runner.has_budget)


async def run_attempts(
    eval_set: EvalSet,
    attempts: Sequence[PlannedAttempt],
    runner: AttemptRunner,
    options: EvalOptions,
    *,
    has_judge: bool,
) -> None:
    """Run attempts with pydantic-evals, `jobs` at once; each result is written to the log of its attempt."""
    from pydantic_evals import Dataset

    attempts_by_name = {planned.name: planned for planned in attempts}
    dataset = Dataset[Any, str, Any](
        name=eval_set.name,
        cases=[
            eval_set.pydantic_case(planned.case, planned.name, options.metrics, judged=has_judge)
            for planned in attempts
        ],
    )
    await dataset.evaluate(
        attempt,
        max_concurrency=options.jobs,
        progress=False,
        lifecycle=lambda case: Attempt(case, runner, attempts_by_name[case.name or ""]),
    )


async def _find_unfinished(
    reader: RunReader, plan: Sequence[PlannedAttempt], options: EvalOptions
) -> tuple[list[PlannedAttempt], float]:
    """Return the attempts to run, and the cost in dollars of the finished ones.

    With `retry_errors`, an attempt that ended in an error is run again with an unused number.
    """
    planned_by_key = {(planned.case.id, planned.number, planned.side): planned for planned in plan}
    unfinished: list[PlannedAttempt] = []
    reserved_numbers: dict[tuple[str, str], set[int]] = {}
    spent_usd = 0.0
    for slot in await reader.read_slots():
        planned = planned_by_key.get((slot.case, slot.number, slot.side))
        if planned is None:
            continue
        if slot.note is None:
            unfinished.append(planned)
            continue
        spent_usd += sum(_note_cost_usd(note) for note in (*slot.replaced, slot.note))
        if options.retry_errors and slot.is_error:
            reserved = reserved_numbers.setdefault((slot.case, slot.side), set())
            number = await reader.next_number(slot, reserved)
            reserved.add(number)
            unfinished.append(replace(planned, number=number))
    return unfinished, spent_usd


def _note_cost_usd(note: JsonObject) -> float:
    """Return the cost of agent and judge in dollars; unknown costs count as 0."""
    result = result_from_note(note)
    return (result.cost_usd or 0.0) + (result.judge_cost_usd or 0.0)


@asynccontextmanager
async def _open_broker(
    folder: RunFolder, settings: Settings, executor: CodeExecutor | None, options: EvalOptions
) -> AsyncGenerator[tuple[TaskBroker, ConversationHost]]:
    """Open the store and broker that attempts share; the caller's executor remains open."""
    store = await open_store(folder.store_url)
    active_executor = executor or executor_named(settings.executor, packages=settings.packages)
    secrets = options.secrets

    async def find_credentials(record: ConversationRecord, state: State) -> Credentials:
        return Credentials(secrets=secrets)

    broker = TaskBroker(
        TaskStoreSqlite(store),
        settings=replace(settings, policy="allow"),  # no person answers approval prompts
        queues=(),
        concurrency=options.jobs,
        credentials=find_credentials,
        executor=active_executor,
    )
    try:
        async with broker:
            host = ConversationHost(
                store=store,
                settings=settings,
                executor=active_executor,
                limits=options.limits or Limits(steps=100, wall_seconds=600),
                secrets=secrets,
                delegation=broker.delegation,
            )
            yield broker, host
    finally:
        if executor is None:
            await active_executor.aclose()
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
    """Return the content of `run.json`."""
    judge_record: JsonObject | None = None
    if judge is not None:
        from bough.evals.judge.prompt import PROMPT_SHA256

        judge_record = {"model": judge.model_name, "votes": judge.votes, "prompt_sha256": PROMPT_SHA256}
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
        "not_judged": 0
        if judge is not None
        else sum(count_judge_statements(case.input, options.metrics) for case in cases),
    }
    return describe_run(
        folder.run,
        options.kind,
        eval_set,
        cases,
        spec,
        settings=settings,
        plan=plan,
        judge=judge_record,
        executor=host.executor.name,
        isolation=host.executor.isolation.name.lower(),
        argv=options.argv,
    )


def _check_unchanged(recorded: JsonObject, current: JsonObject) -> None:
    """Check that a resumed run has the configuration with which it was started.

    Raises:
        Conflict: A field that defines the run changed, such as the cases or the agent.
    """
    for name in _DEFINING_FIELDS:
        if json.dumps(recorded.get(name), sort_keys=True) != json.dumps(current.get(name), sort_keys=True):
            raise Conflict(
                f"`{name}` has changed since the run was started",
                hint="start a new run, or resume the run with its original arguments",
            )
