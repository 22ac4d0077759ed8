"""The result of an attempt as an event of its log: appended after the attempt ends; the last result counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from bough.errors import NotFound
from bough.evals.run.summary import AttemptResult
from bough.evals.score import Score
from bough.events.model import ConversationStarted, TaskNoted, Usage
from bough.events.record import ConversationRecord, StoredEvent
from bough.events.store import EventStore
from bough.types import JsonObject

SCHEMA_VERSION = 1
NAME = "eval.result"
_DATA_FIELDS = frozenset({"outputs", "assertions", "verdicts", "isolation", "harbor", "replaced"})
"""Fields of a note that become `AttemptResult.data`."""


async def write_note(
    store: EventStore, conversation: UUID, data: JsonObject, *, tags: Mapping[str, str] | None = None
) -> None:
    """Append a result to a log as one event.

    A conversation that does not exist is created with `tags`, so that every attempt has a result.
    """
    note = TaskNoted(task_id=str(conversation), name=NAME, data=data)
    try:
        await store.append(conversation, [note])
    except NotFound:
        title = f"eval {data['case']}"
        started = ConversationStarted(title=title, tags=dict(tags or {}))
        record = ConversationRecord(
            id=conversation,
            root=conversation,
            title=title,
            tags=dict(tags or {}),
            created=started.ts,
            updated=started.ts,
        )
        await store.create(record, events=[started, note])


def last_note(events: Iterable[StoredEvent], run: str) -> JsonObject | None:
    """Return the content of a run's last result note in a log; None if there is none."""
    note: JsonObject | None = None
    for stored in events:
        if stored.kind != "TaskNoted" or not isinstance(event := stored.event, TaskNoted):
            continue
        if event.name == NAME and event.data.get("run") == run:
            note = event.data
    return note


def as_note(run: str, result: AttemptResult, *, usage: Usage, judge_usage: Usage, scored_with: str) -> JsonObject:
    """Return the content of a result note."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "case": result.case,
        "attempt": result.attempt,
        "side": result.side,
        "status": result.status,
        "passed": result.passed,
        "reason": result.reason,
        "scores": {name: score.as_dict() for name, score in result.scores.items()},
        "usage": usage.model_dump(mode="json"),
        "judge_usage": judge_usage.model_dump(mode="json"),
        "seconds": round(result.seconds, 6),
        "steps": result.steps,
        "judge": list(result.judge),
        "error": result.error,
        "conversation": result.conversation,
        "scored_with": scored_with,
        **result.data,
    }


def result_from_note(data: JsonObject) -> AttemptResult:
    """Return the result stored in a note."""
    usage = _read_usage(data.get("usage"))
    judge_usage = _read_usage(data.get("judge_usage"))
    scores: dict[str, JsonObject] = data.get("scores") or {}
    return AttemptResult(
        case=str(data["case"]),
        attempt=int(data.get("attempt", 1)),
        side=str(data.get("side", "")),
        status=str(data.get("status", "error")),
        reason=str(data.get("reason", "")),
        scores={name: Score.of(name, score) for name, score in scores.items()},
        conversation=data.get("conversation"),
        cost_usd=_cost_usd(usage),
        tokens=usage.input_tokens + usage.output_tokens,
        judge_cost_usd=_cost_usd(judge_usage),
        seconds=float(data.get("seconds", 0.0)),
        steps=int(data.get("steps", 0)),
        judge=tuple(data.get("judge") or ()),
        error=data.get("error"),
        data={key: value for key, value in data.items() if key in _DATA_FIELDS},
    )


def _read_usage(data: Any) -> Usage:
    return Usage.model_validate(data) if data else Usage(requests=0)


def _cost_usd(usage: Usage) -> float | None:
    """Return the cost in dollars; None if tokens were used and their price is unknown."""
    if usage.cost_usd is None:
        return None if usage.input_tokens + usage.output_tokens else 0.0
    return usage.cost_usd
