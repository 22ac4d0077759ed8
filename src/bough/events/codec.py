"""Encode events as bytes and decode them. Old events load for ever: each change of a shape adds an upcaster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args
from uuid import UUID

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from bough.errors import CorruptLog, StoreError
from bough.events.model import BaseEvent, Event, FinishReason
from bough.types import Json, JsonObject

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_IN_COLUMNS = {"id", "kind", "ts"}

_VERSIONS: Mapping[str, int] = {
    event.model_fields["kind"].default: event.VERSION for event in get_args(get_args(Event)[0])
}

Upcaster = Callable[[JsonObject], JsonObject]


def _lift(payload: JsonObject) -> JsonObject:
    """Raise the version of a payload whose new fields have defaults with the old meaning."""
    return payload | {"schema_version": payload.get("schema_version", 1) + 1}


def _lift_response(payload: JsonObject) -> JsonObject:
    """Add the provider's finish reason to a response of version 1, `stop` if it has none."""
    response: JsonObject = payload.get("response") or {}
    reason: Json = response.get("finish_reason")
    finish_reason = reason if reason in get_args(FinishReason) else "stop"
    return _lift(payload) | {"finish_reason": finish_reason, "partial": False}


UPCASTERS: Mapping[tuple[str, int], Upcaster] = {
    ("UserMessage", 1): _lift,
    ("ModelResponded", 1): _lift_response,
    ("ToolCalled", 1): _lift,
    ("ToolCalled", 2): _lift,
    ("ToolReturned", 1): _lift,
    ("ToolReturned", 2): _lift,
    ("ToolFailed", 1): _lift,
    ("SkillActivated", 1): _lift,
    ("TaskLinked", 1): _lift,
    ("PauseRequested", 1): _lift,
}
"""Functions that convert a payload to the next version, by (kind, version)."""


def describe_versions() -> str:
    """Return all versions and upcasters as text. Decoding of old rows depends on nothing else."""
    upcasters = (f"{kind} {version} {lift.__qualname__}" for (kind, version), lift in UPCASTERS.items())
    return "\n".join(sorted([*(f"{kind} {version}" for kind, version in _VERSIONS.items()), *upcasters]))


def encode(event: BaseEvent) -> bytes:
    """Return the payload as JSON: every field except id, kind and time, which the store has in columns.

    Lone surrogates (invalid text from a tool) are written as U+FFFD, so that they never make an append fail.
    """
    try:
        return event.__pydantic_serializer__.to_json(event, exclude=_IN_COLUMNS)
    except pydantic_core.PydanticSerializationError:
        plain = event.model_dump(mode="python", exclude=_IN_COLUMNS)
        return pydantic_core.to_json(_without_surrogates(plain), inf_nan_mode="constants")


def decode(seq: int, id: UUID, kind: str, ts: datetime, raw: bytes) -> Event:
    """Return the typed event of a row.

    Raises:
        StoreError: A newer version of bough wrote the event.
        CorruptLog: The payload is not JSON, or does not match its kind.
    """
    place = {"event": str(id), "seq": seq, "kind": kind}
    try:
        payload = pydantic_core.from_json(raw)
        version = payload.get("schema_version", 1)
        newest = _VERSIONS.get(kind)
        if newest is None or version > newest:
            raise StoreError(
                f"event {id} (seq {seq}, {kind}, version {version}) was written by a newer bough",
                hint="upgrade bough",
                details=place | {"version": version, "known": newest},
            )
        while (upcaster := UPCASTERS.get((kind, version))) is not None:
            payload = upcaster(payload)
            version = payload["schema_version"]
        payload |= {"id": id, "kind": kind, "ts": ts}
        return _EVENT.validate_python(payload)
    except (ValueError, ValidationError, AttributeError, TypeError) as error:
        raise CorruptLog(
            f"event {id} (seq {seq}, {kind}) cannot be read: {error}",
            hint="`bough doctor` checks the whole store",
            details=place,
        ) from error


def stub(kind: str, raw: bytes) -> bytes:
    """Return an erased payload of the same kind, which keeps the ids, names and numbers that the log needs.

    Tool calls keep id and tool, so that a rendered history still pairs each call with its result.
    """
    payload = _parse_object(raw)
    retained = _RETAINED | _RETAINED_BY_KIND.get(kind, set())
    # In the order of the payload: the stub of a stub must be equal to it, or it would seem to have content.
    remaining = {key: value for key, value in payload.items() if key in retained}
    return pydantic_core.to_json(_ERASED.get(kind, {}) | remaining | _erase_message(kind, payload))


ERASED = "[erased]"
_RETAINED = {
    "schema_version",
    "tool_call_id",
    "tool",
    "source",
    "at",
    "event_id",
    "source_head",
    "pending",
    "workspace",
    "usage",
    "model",
    "latency_seconds",
    "duration_seconds",
    "risk",
    "idempotent",
    "retry",
    "by",
    "trigger",
    "status",
    "exit_code",
    "isolation",
    "verdict",
    "events",
    "task_id",
    "conversation",
    "code",
    "limit",
    "value",
    "bound",
    "reset_metrics",
    "hook",
    "sender",
    "seen",
    "parent",
    "start",
    "stop",
}
_RETAINED_BY_KIND: Mapping[str, set[str]] = {
    "UserMessage": {"tasks"},
    "ModelResponded": {"finish_reason", "partial"},
    "ToolReturned": {"shown", "tasks"},
    "ToolFailed": {"shown", "tasks"},
    "TaskLinked": {"background"},
    "PauseRequested": {"now"},
    "TaskChanged": {"state", "attempt", "result_bytes", "message"},
    "TaskNoted": {"event_type"},
    "TaskEnded": {"state", "result_bytes"},
    "Imported": {"count", "signer", "trusted", "bundle"},
    "UsageAdded": {"purpose"},
    "RequestRetried": {"attempt", "attempts", "wait_seconds"},
    "FilesKept": {"files", "bytes", "added", "changed", "removed", "skipped_count", "unsettled", "seconds"},
    "CheckRan": {"passed", "timed_out", "seconds"},
}
_ERASED: Mapping[str, JsonObject] = {
    "UserMessage": {"content": [{"type": "text", "text": ERASED}]},
    "ToolReturned": {"result": ERASED},
    "ToolFailed": {"error": ERASED},
    "SkillActivated": {"name": ERASED, "content_hash": ERASED},
    "ScriptRan": {"skill": ERASED, "script": ERASED},
    "Condensed": {"summary": ERASED},
    "StateChanged": {"changes": {}},
    "ErrorRaised": {"message": ERASED},
    "SkillSkipped": {"name": ERASED, "message": ERASED},
    "StuckDetected": {"pattern": ERASED},
    "OutputGiven": {"data": ERASED, "output_type": ERASED},
    "RequestRetried": {"error": ERASED, "model": ERASED},
    "RulesChanged": {"paths": [], "hashes": []},
    "FilesKept": {"tree": None, "before": None},
    "CheckRan": {"command": ERASED, "exit_code": None},
}


def _erase_message(kind: str, payload: JsonObject) -> JsonObject:
    match kind:
        case "ModelResponded":
            return {"response": _erase_response(payload.get("response") or {})}
        case "MessageStored":
            message: JsonObject = payload.get("message") or {}
            request = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ERASED}]}
            return {"message": _erase_response(message) if message.get("kind") == "response" else request}
        case _:
            return {}


def _erase_response(response: JsonObject) -> JsonObject:
    calls = [
        {key: part[key] for key in ("part_kind", "tool_name", "tool_call_id") if key in part} | {"args": "{}"}
        for part in response.get("parts", ())
        if part.get("part_kind") == "tool-call"
    ]
    remaining = {
        key: response[key] for key in ("kind", "model_name", "timestamp", "usage", "finish_reason") if key in response
    }
    return remaining | {"parts": [{"part_kind": "text", "content": ERASED}, *calls]}


def _parse_object(raw: bytes) -> JsonObject:
    try:
        payload = pydantic_core.from_json(raw)
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}  # pyright: ignore
        case list() | tuple():
            return [_without_surrogates(item) for item in value]  # pyright: ignore
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return value
