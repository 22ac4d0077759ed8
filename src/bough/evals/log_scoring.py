"""Scores existing conversations: metrics and judge read their logs; no agent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput
from bough.evals.case import SetCase
from bough.evals.converse import ConversationHost
from bough.evals.eval_set import EvalSet, case_from_log
from bough.evals.judge.judge import Judge
from bough.evals.judge.prompt import PROMPT_SHA256
from bough.evals.loop import EvalOptions, make_judge, run_attempts
from bough.evals.report.write import write_reports
from bough.evals.run.attempt import AttemptEnd, AttemptRunner
from bough.evals.run.folder import RunFolder
from bough.evals.run.plan import PlannedAttempt
from bough.evals.run.read import read_run
from bough.evals.run.result import EvalRun
from bough.events import open_store
from bough.events.store import EventStore
from bough.execution.named import executor_named
from bough.settings import Settings
from bough.types import JsonObject

_NO_EXPECTATIONS = {"tool_uses": (), "reference": None}


@dataclass(frozen=True, kw_only=True)
class LoggedAttempt(PlannedAttempt):
    """An existing conversation that is scored as an attempt.

    Attributes:
        log: Id of the conversation.
    """

    log: UUID

    @property
    def conversation(self) -> UUID:
        """The id of the existing conversation."""
        return self.log


class LogScorer(AttemptRunner):
    """Runs attempts by reading existing logs; calls no model and runs no tool."""

    async def run(self, planned: PlannedAttempt) -> AttemptEnd:
        """Return how the conversation ended."""
        record = await self.host.store.get(planned.conversation)
        return AttemptEnd(status=record.status)


async def score_logs(
    conversations: Sequence[UUID],
    *,
    case: SetCase | None = None,
    metrics: Mapping[str, float | None] | None = None,
    judge: Judge | str | None = None,
    votes: int = 1,
    threshold: float = 1.0,
    store: EventStore | None = None,
    settings: Settings | None = None,
    folder: Path | None = None,
) -> EvalRun:
    """Score existing conversations. A result note is appended to each log; nothing else of the logs changes.

    Args:
        case: The expectations; None scores only by `metrics` and the metrics that need no expectations.
        judge: Decides the rubrics of the case, with conversations in the folder of the run; `none` skips the rubrics.
        votes: Number of votes of the judge.
        store: The store of the conversations; None opens the store of the settings.
        folder: Folder of runs; None for `evals` below the home folder.

    Raises:
        NotFound: A conversation does not exist.
        InvalidInput: No conversation is given, one has no message, or the case needs a judge and none is given.
    """
    if not conversations:
        raise InvalidInput("no conversation is given", hint="`bough conv list` lists the conversations")
    settings = settings or Settings.load()
    options = EvalOptions(judge=judge, votes=votes, metrics=metrics or {}, threshold=threshold, kind="score")
    options.check()
    logs = store or await open_store(settings.store, keep_copy=settings.copy_before_upgrade)
    try:
        cases = [await _make_case(logs, id, case) for id in dict.fromkeys(conversations)]
        run = RunFolder.new(settings.home / "evals" if folder is None else folder)
        with run.hold():
            chosen_judge = make_judge(options, [set_case for set_case, _ in cases], settings)
            run.write_record(_make_record(run, cases, chosen_judge, options, settings))
            return await _score(logs, run, cases, chosen_judge, options, settings)
    finally:
        if store is None:
            await logs.aclose()


async def _make_case(store: EventStore, id: UUID, expected: SetCase | None) -> tuple[SetCase, UUID]:
    """Return (case, id of the conversation) for scoring a conversation; the id is also the id of the case."""
    events = [stored async for stored in store.read(id)]
    if expected is not None:
        return replace(expected, id=str(id)), id
    logged_case = case_from_log(events, str(id))
    # Without expectations, because the conversation's own calls and answers would always meet them.
    turns = tuple(turn.model_copy(update=_NO_EXPECTATIONS) for turn in logged_case.input.turns)
    return replace(logged_case, input=logged_case.input.model_copy(update={"turns": turns})), id


async def _score(
    logs: EventStore,
    run: RunFolder,
    cases: Sequence[tuple[SetCase, UUID]],
    judge: Judge | None,
    options: EvalOptions,
    settings: Settings,
) -> EvalRun:
    """Score the conversations and write the reports.

    Args:
        logs: The store of the conversations.
    """
    run_store = await open_store(run.store_url)
    executor = executor_named(settings.executor, packages=settings.packages)
    try:
        scorer = LogScorer(
            host=ConversationHost(store=logs, settings=settings, executor=executor),
            judge_host=ConversationHost(store=run_store, settings=settings, executor=executor),
            folder=run,
            agent=AgentSpec(name="recorded", skills=()),
            judge=judge,
            metrics=options.metrics,
            keep=True,
        )
        planned = [LoggedAttempt(run=run.run, case=case, log=id) for case, id in cases]
        eval_set = EvalSet(name="conversations", cases=tuple(case for case, _ in cases))
        await run_attempts(eval_set, planned, scorer, options, has_judge=judge is not None)
        result, notes = await read_run(run, logs)
        await write_reports(run, result, notes, logs)
        return result
    finally:
        await executor.aclose()
        await run_store.aclose()


def _make_record(
    run: RunFolder,
    cases: Sequence[tuple[SetCase, UUID]],
    judge: Judge | None,
    options: EvalOptions,
    settings: Settings,
) -> JsonObject:
    """Return the content of `run.json`."""
    judge_record: JsonObject | None = None
    if judge is not None:
        judge_record = {"model": judge.model_name, "votes": judge.votes, "prompt_sha256": PROMPT_SHA256}
    return {
        "schema_version": 1,
        "run": run.run,
        "kind": "score",
        "set": {"name": "conversations", "path": None, "sha256": "", "cases": len(cases)},
        "cases": [{"id": case.id, "sha256": case.sha256} for case, _ in cases],
        "conversations": {case.id: str(id) for case, id in cases},
        "store": settings.store,
        "model": "as recorded",
        "judge": judge_record,
        "repeat": 1,
        "threshold": options.threshold,
        "metrics": dict(options.metrics),
        "started": datetime.now(UTC).isoformat(),
    }
