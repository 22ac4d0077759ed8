"""Scores the attempts of a run again: applies the current metrics to existing logs, without agent or judge.

Scores that depend only on the trace are computed again. Verdicts, assertions, rewards and scores of other evaluators
remain, since they depend on answers and files that are not in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

from bough.errors import InvalidInput
from bough.evals.case import SetCase
from bough.evals.context import TraceContext
from bough.evals.eval_set import EvalSet
from bough.evals.metrics.evaluators import TraceEvaluator, evaluators_for
from bough.evals.report.write import write_reports
from bough.evals.run.attempt import decide_by_scores
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import result_from_note, write_note
from bough.evals.run.read import RunReader, read_run, read_trace
from bough.evals.run.summary import AttemptResult
from bough.evals.score import METRICS, Score
from bough.evals.trace import Trace
from bough.events import open_store
from bough.events.store import EventStore
from bough.types import JsonObject

_VERDICT_METRICS = frozenset({"assertions", "instruction_adherence_score"})
"""Metrics that are decided at the end of an attempt, with its files and a judge."""

_TRACE_METRICS = METRICS - _VERDICT_METRICS


@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """The result of scoring a run again.

    Attributes:
        attempts: Number of scored attempts.
        changed: Number of attempts whose result changed.
        left_out: Ids of cases that were changed or removed since the run; their attempts are not scored again.
    """

    attempts: int
    changed: int
    left_out: tuple[str, ...]

    def as_dict(self) -> JsonObject:
        """Return the counts as JSON."""
        return {"attempts": self.attempts, "changed": self.changed, "left_out": list(self.left_out)}


async def rescore_run(folder: RunFolder, eval_set: EvalSet | None = None) -> Rescoring:
    """Score the attempts of a run with the current metrics, and rewrite its reports.

    A changed result is appended to the log of its attempt as a new note; nothing else of the logs changes.
    O(events of the run).

    Args:
        eval_set: The set of the run; None reads the set from its recorded path.

    Raises:
        NotFound: The folder contains no run, or the set no longer exists.
        InvalidInput: The set is not in a file, or the run scored existing conversations.
        Conflict: Another process uses the run.
    """
    record = folder.read_record()
    current_set = read_recorded_set(record) if eval_set is None else eval_set
    digests = {str(case["id"]): case["sha256"] for case in record["cases"]}
    cases = {case.id: case for case in current_set.cases if digests.get(case.id) == case.sha256}
    with folder.hold():
        store = await open_store(folder.store_url)
        try:
            async with RunReader.open(folder, store) as reader:
                notes = await reader.read_notes()
            attempts = changed = 0
            for note in notes:
                case = cases.get(str(note["case"]))
                if case is None or note["status"] == "skipped" or note["conversation"] is None:
                    continue
                attempts += 1
                changed += await _rescore_attempt(store, note, case, current_set, record["metrics"])
            run, notes = await read_run(folder, store)
            await write_reports(folder, run, notes, store)
        finally:
            await store.aclose()
    left_out = tuple(id for id in digests if id not in cases)
    return Rescoring(attempts=attempts, changed=changed, left_out=left_out)


def read_recorded_set(record: JsonObject) -> EvalSet:
    """Return the set of a run as it is in its file now.

    Raises:
        NotFound: The file no longer exists.
        InvalidInput: The set was not read from a file, or the run scored existing conversations.
    """
    path = record["set"]["path"]
    if record["kind"] == "score":
        raise InvalidInput("the run scored existing conversations", hint="`bough eval score` scores them again")
    if path is None:
        raise InvalidInput(
            "the set of the run was created in Python", hint="pass the set: rescore_run(folder, eval_set)"
        )
    file = Path(path)
    match record["kind"]:
        case "data":
            from bough.evals.data.evaluate import read_data_set

            return read_data_set(file)
        case "triggers":
            from bough.evals.formats.skill import read_trigger_set

            return read_trigger_set(file)
        case "harbor":
            from bough.evals.harbor.evaluate import read_harbor_set

            return read_harbor_set(file, sandbox=record.get("engine") == "sandbox")
        case _:
            from bough.evals.formats.read import read_set

            return read_set(file)


async def score_trace(
    trace: Trace, case: SetCase, eval_set: EvalSet, metrics: Mapping[str, float | None]
) -> dict[str, Score]:
    """Return the scores that depend only on the trace, by metric."""
    context = TraceContext.of(trace, inputs=case.input, expected_output=case.input.reference, name=case.id)
    for evaluator in evaluators_for(case, eval_set.evaluators, metrics, judged=False):
        if isinstance(evaluator, TraceEvaluator) and evaluator.metric in _TRACE_METRICS:
            await evaluator.evaluate(context)
    return context.scores


async def _rescore_attempt(
    store: EventStore, note: JsonObject, case: SetCase, eval_set: EvalSet, metrics: Mapping[str, float | None]
) -> bool:
    """Score one attempt again and append a new note if its result changed; return whether it changed."""
    previous = result_from_note(note)
    conversation = UUID(str(note["conversation"]))
    trace = await read_trace(store, conversation)
    remaining_scores = {name: score for name, score in previous.scores.items() if name not in _TRACE_METRICS}
    scores = remaining_scores | await score_trace(trace, case, eval_set, metrics)
    status, reason = previous.status, previous.reason
    if _is_decided_by_scores(previous):
        status, reason = decide_by_scores(scores)
    if (status, scores) == (previous.status, previous.scores):
        return False
    data: JsonObject = {
        **note,
        "status": status,
        "passed": status == "passed",
        "reason": reason,
        "scores": {name: score.as_dict() for name, score in scores.items()},
        "scored_with": version("bough"),
    }
    await write_note(store, conversation, data)
    return True


def _is_decided_by_scores(result: AttemptResult) -> bool:
    """Return whether the scores decide the status of an attempt, and not, for example, a limit or an error."""
    scores = result.scores.values()
    score_reasons = {f"{score.name}: {score.reason}" for score in scores if score.error or not score.passed}
    return result.passed or result.reason in score_reasons
