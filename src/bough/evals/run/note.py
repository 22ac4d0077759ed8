"""The result of an attempt as an event of its own log: appended after the run ends; the last one counts."""

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


async def write_note(
    store: EventStore, conversation: UUID, data: JsonObject, *, tags: Mapping[str, str] | None = None
) -> None:
    """Append a result to a log. One event.

    If the conversation was never started, it is created with `tags`, so that every attempt has a result.
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
    """Return the last result of a run in a log; None if missing."""
    note: JsonObject | None = None
    for stored in events:
        if stored.kind == "TaskNoted" and isinstance(event := stored.event, TaskNoted) and event.name == NAME:
            note = event.data if event.data.get("run") == run else note
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
    usage, judge = _usage(data.get("usage")), _usage(data.get("judge_usage"))
    scores: dict[str, JsonObject] = data.get("scores") or {}
    data_fields = {"outputs", "assertions", "verdicts", "isolation", "harbor", "replaced"}
    return AttemptResult(
        case=str(data["case"]),
        attempt=int(data.get("attempt", 1)),
        side=str(data.get("side", "")),
        status=str(data.get("status", "error")),
        reason=str(data.get("reason", "")),
        scores={name: Score.of(name, score) for name, score in scores.items()},
        conversation=data.get("conversation"),
        cost_usd=_cost(usage),
        tokens=usage.input_tokens + usage.output_tokens,
        judge_cost_usd=_cost(judge),
        seconds=float(data.get("seconds", 0.0)),
        steps=int(data.get("steps", 0)),
        judge=tuple(data.get("judge") or ()),
        error=data.get("error"),
        data={key: value for key, value in data.items() if key in data_fields},
    )


def _usage(data: Any) -> Usage:
    return Usage.model_validate(data) if data else Usage(requests=0)


def _cost(usage: Usage) -> float | None:
    """Return the cost in dollars; None if tokens were used and their price is unknown."""
    if usage.cost_usd is None:
        return None if usage.input_tokens + usage.output_tokens else 0.0
    return usage.cost_usd
