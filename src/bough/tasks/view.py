"""Map events of a log to events of a task. Progress is derived from the log, so that workers write nothing extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.events.model import ModelResponded, TaskChanged, TaskNoted, ToolCalled
from bough.events.record import StoredEvent
from bough.tasks.model import EventType, TaskEvent
from bough.types import Json, JsonObject

SHOWN_KINDS = ("TaskChanged", "TaskNoted", "ToolCalled", "ModelResponded")
"""Kinds of log events that map to events of a task."""

_MESSAGE_CHARACTERS = 2000
_ARGUMENT_CHARACTERS = 200
_ENVELOPE = frozenset({"id", "ts", "schema_version", "kind", "task_id"})
"""Fields that every event has, and the payload omits."""


def task_event(stored: StoredEvent, task_id: str = "") -> TaskEvent | None:
    """Return the task event for an event of the task's conversation; None if it maps to none.

    Args:
        task_id: The task that was live then, for events that do not name one.
    """
    if stored.kind not in SHOWN_KINDS:
        return None
    match event := stored.event:
        case TaskChanged():
            return _event(stored, event.task_id, EventType.STATE_CHANGE, _list_set_fields(event))
        case TaskNoted():
            name = {"name": event.name} if event.name else {}
            return _event(stored, event.task_id or task_id, EventType(event.event_type), {**name, **event.data})
        case ToolCalled():
            arguments = {key: _shorten(value) for key, value in event.arguments.items()}
            payload = {"tool": event.tool, "call": event.tool_call_id, "arguments": arguments}
            return _event(stored, task_id, EventType.PROGRESS, payload)
        case ModelResponded() if text := _join_text(event):
            return _event(stored, task_id, EventType.LOG, {"message": text[:_MESSAGE_CHARACTERS]})
        case _:
            return None


def _event(stored: StoredEvent, task_id: str, type: EventType, payload: JsonObject) -> TaskEvent:
    return TaskEvent(task_id=task_id, event_type=type, payload=payload, timestamp=stored.ts, seq=stored.seq)


def _list_set_fields(event: TaskChanged) -> JsonObject:
    """Return the fields of a transition that are not empty."""
    fields: Mapping[str, Any] = event.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in fields.items() if key not in _ENVELOPE and value not in ({}, [], "", 0)}


def _shorten(value: Json) -> Json:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= _ARGUMENT_CHARACTERS else text[:_ARGUMENT_CHARACTERS] + "…"


def _join_text(event: ModelResponded) -> str:
    parts = event.response.get("parts", [])
    return "".join(part["content"] for part in parts if part.get("part_kind") == "text")
