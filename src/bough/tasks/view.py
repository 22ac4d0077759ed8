"""From events of a log to events of a task: a worker's progress is a view of what is in the log anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.events.model import ModelResponded, TaskChanged, TaskNoted, ToolCalled
from bough.events.record import StoredEvent
from bough.tasks.model import EventType, TaskEvent
from bough.types import Json, JsonObject

SHOWN_KINDS = ("TaskChanged", "TaskNoted", "ToolCalled", "ModelResponded")
"""Kinds of log events that can be events of a task."""

_MESSAGE_CHARACTERS = 2000
_ARGUMENT_CHARACTERS = 200
_ENVELOPE = frozenset({"id", "ts", "schema_version", "kind", "task_id"})
"""What every event has."""


def task_event(stored: StoredEvent, task_id: str = "") -> TaskEvent | None:
    """Return what an event of a task's conversation is to the task; None where it is nothing.

    Args:
        task_id: The task that was live then, for events which do not name one.
    """
    if stored.kind not in SHOWN_KINDS:
        return None
    match event := stored.event:
        case TaskChanged():
            return _event(stored, event.task_id, EventType.STATE_CHANGE, _set_fields(event))
        case TaskNoted():
            named = {"name": event.name} if event.name else {}
            return _event(stored, event.task_id or task_id, EventType(event.event_type), {**named, **event.data})
        case ToolCalled():
            arguments = {key: _shorten(value) for key, value in event.arguments.items()}
            payload = {"tool": event.tool, "call": event.tool_call_id, "arguments": arguments}
            return _event(stored, task_id, EventType.PROGRESS, payload)
        case ModelResponded() if text := _text_of(event):
            return _event(stored, task_id, EventType.LOG, {"message": text[:_MESSAGE_CHARACTERS]})
        case _:
            return None


def _event(stored: StoredEvent, task_id: str, type: EventType, payload: JsonObject) -> TaskEvent:
    return TaskEvent(task_id=task_id, event_type=type, payload=payload, timestamp=stored.ts, seq=stored.seq)


def _set_fields(event: TaskChanged) -> JsonObject:
    """Return the fields that say something; an empty one says nothing."""
    said: Mapping[str, Any] = event.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in said.items() if key not in _ENVELOPE and value not in ({}, [], "", 0)}


def _shorten(value: Json) -> Json:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= _ARGUMENT_CHARACTERS else text[:_ARGUMENT_CHARACTERS] + "…"


def _text_of(event: ModelResponded) -> str:
    parts = event.response.get("parts", [])
    return "".join(part["content"] for part in parts if part.get("part_kind") == "text")
