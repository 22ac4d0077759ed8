"""Scores existing conversations: metrics and judge read their logs; nothing is run again."""

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

_MATERIAL = {"tool_uses": (), "reference": None}


@dataclass(frozen=True, kw_only=True)
class LoggedAttempt(PlannedAttempt):
    """An existing conversation in place of an attempt.

    Attributes:
        log: Id of the conversation.
    """

    log: UUID

    @property
    def conversation(self) -> UUID:
        """The conversation itself."""
        return self.log


class LogScorer(AttemptRunner):
    """Takes the existing log as the attempt; calls no model and runs no tool."""

    async def run(self, planned: PlannedAttempt) -> AttemptEnd:
        """Return how the conversation ended."""
        return AttemptEnd(status=(await self.host.store.get(planned.conversation)).status)


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
    """Score existing conversations. Appends a result note to each log, and changes nothing else.

    Args:
        case: The expectations; None scores by metrics without expectations, and `metrics`.
        judge: Decides the rubrics of the case; its calls are in the folder of the run. `none` skips them.
        store: The store of the conversations; None opens the settings' store.
        folder: Folder of runs; None: `evals` below the home folder.

    Raises:
        NotFound: A conversation does not exist.
        InvalidInput: No conversation is named, one has no message, or a judge is needed and missing.
    """
    if not conversations:
        raise InvalidInput("no conversation is named", hint="`bough conv list` names them")
    settings = settings or Settings.load()
    options = EvalOptions(judge=judge, votes=votes, metrics=metrics or {}, threshold=threshold, kind="score")
    options.check()
    logs = store or await open_store(settings.store)
    try:
        cases = [await _case_for_log(logs, id, case) for id in dict.fromkeys(conversations)]
        run = RunFolder.new(settings.home / "evals" if folder is None else folder)
        with run.hold():
            chosen_judge = make_judge(options, [logged for logged, _ in cases], settings)
            run.write_record(_describe(run, cases, chosen_judge, options, settings))
            return await _score(logs, run, cases, chosen_judge, options, settings)
    finally:
        if store is None:
            await logs.aclose()


async def _case_for_log(store: EventStore, id: UUID, expected: SetCase | None) -> tuple[SetCase, UUID]:
    """Return the case to score a conversation against, with the conversation's id as its name."""
    events = [stored async for stored in store.read(id)]
    if expected is not None:
        return replace(expected, id=str(id)), id
    logged_case = case_from_log(events, str(id))
    # Its own calls and answer must not become the expectation: every log would pass.
    turns = tuple(turn.model_copy(update=_MATERIAL) for turn in logged_case.input.turns)
    return replace(logged_case, input=logged_case.input.model_copy(update={"turns": turns})), id


async def _score(
    logs: EventStore,
    run: RunFolder,
    cases: Sequence[tuple[SetCase, UUID]],
    judge: Judge | None,
    options: EvalOptions,
    settings: Settings,
) -> EvalRun:
    own = await open_store(run.store_url)
    executor = executor_named(settings.executor)
    try:
        scorer = LogScorer(
            host=ConversationHost(store=logs, settings=settings, executor=executor),
            judge_host=ConversationHost(store=own, settings=settings, executor=executor),
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
        await own.aclose()


def _describe(
    run: RunFolder,
    cases: Sequence[tuple[SetCase, UUID]],
    judge: Judge | None,
    options: EvalOptions,
    settings: Settings,
) -> JsonObject:
    judged: JsonObject | None = None
    if judge is not None:
        judged = {"model": judge.model_name, "votes": judge.votes, "prompt_sha256": PROMPT_SHA256}
    return {
        "schema_version": 1,
        "run": run.run,
        "kind": "score",
        "set": {"name": "conversations", "path": None, "sha256": "", "cases": len(cases)},
        "cases": [{"id": case.id, "sha256": case.sha256} for case, _ in cases],
        "conversations": {case.id: str(id) for case, id in cases},
        "store": settings.store,
        "model": "as recorded",
        "judge": judged,
        "repeat": 1,
        "threshold": options.threshold,
        "metrics": dict(options.metrics),
        "started": datetime.now(UTC).isoformat(),
    }
