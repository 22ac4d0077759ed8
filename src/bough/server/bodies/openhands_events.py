"""Our events in the form of OpenHands 1.58: each row of the table is one function here.

One of ours may be several of theirs; part 0 has our id, part i our id with the suffix `.i`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast
from uuid import UUID

import pydantic_core

from bough.errors import InvalidInput, hide_places
from bough.events.model import (
    BaseEvent,
    Condensed,
    ErrorRaised,
    HookRan,
    LimitReached,
    ModelResponded,
    PauseRequested,
    StateChanged,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.server.bodies.base import stamp
from bough.server.bodies.openhands_agents import describe_analyzer
from bough.types import JsonObject

_STATE = "state"


class PartId(NamedTuple):
    """An event, and which of its parts is meant."""

    event: UUID
    part: int


def part_id(event: str, part: int) -> str:
    """Return the id of a part of an event; part 0 has the event's own."""
    return event if part == 0 else f"{event}.{part}"


def state_id(event: UUID | None) -> str:
    """Return the id of a `full_state` frame that was sent behind an event."""
    return f"{event or UUID(int=0)}.{_STATE}"


def parse_id(text: str) -> PartId:
    """Return the event and the part that an id names; a state frame's id names its event.

    Raises:
        InvalidInput: It is no such id.
    """
    whole, _, suffix = text.partition(".")
    try:
        return PartId(UUID(whole), int(suffix) if suffix and suffix != _STATE else 0)
    except ValueError as error:
        raise InvalidInput("an event id is not valid", hint="a UUID, as an event has it") from error


Calls = Mapping[str, str]
_Encoder = Callable[[Any, Calls], Sequence[JsonObject]]
_RowEncoder = Callable[[StoredEvent, JsonObject], Sequence[JsonObject]]

_NO_CALL = "00000000-0000-0000-0000-000000000000"
_OWN_KEYS = ("execution_status", "title", "tags", "confirmation_policy", "security_analyzer")


class OpenHandsEvents:
    """Encodes events for OpenHands' client; what it has no name for is a `ConversationStateUpdateEvent`."""

    def encode(self, stored: StoredEvent, calls: Calls) -> Sequence[JsonObject]:
        """Return the parts of an event, in order."""
        if (row_encoder := _ROW_ENCODERS.get(stored.kind)) is not None:
            parts = _encode_row(stored, row_encoder)
        else:
            encoder = _ENCODERS.get(type(stored.event))
            parts = encoder(stored.event, calls) if encoder else [_other(stored)]
        id, timestamp = stored.id_text, stamp(stored.ts)
        return [{"id": part_id(id, i), "timestamp": timestamp, **part} for i, part in enumerate(parts)]

    def calls_made(self, stored: StoredEvent) -> Calls:
        """Return the calls that a response makes, each with the id of its `ActionEvent`."""
        if stored.kind != "ModelResponded":
            return {}
        calls = _encode_row(stored, lambda _, payload: _select_parts(payload, "tool-call"))
        return {call["tool_call_id"]: part_id(stored.id_text, i) for i, call in enumerate(calls)}

    def needs_calls(self, stored: StoredEvent) -> bool:
        """Whether the parts of an event name the part that made a call."""
        return stored.kind in _KINDS_THAT_NAME_CALLS


def _encode_row(stored: StoredEvent, encode: _RowEncoder) -> Sequence[JsonObject]:
    """Encode the payload of a row without its typed event, which takes most of the time of a page.

    The payload is what its version wrote: the upcasters of these kinds change nothing that is encoded.

    Raises:
        StoreError: It was written by a newer version of bough.
        CorruptLog: The payload is not what its kind says.
    """
    try:
        payload = pydantic_core.from_json(stored.raw)
        if payload.get("schema_version", 1) > _NEWEST_VERSIONS[stored.kind]:
            _ = stored.event  # raises the error of a newer version
        return encode(stored, payload)
    except (ValueError, LookupError, TypeError, AttributeError):
        _ = stored.event  # raises the error with its code and hint
        raise


def _select_parts(payload: JsonObject, kind: str) -> list[JsonObject]:
    return [part for part in payload["response"].get("parts", ()) if part.get("part_kind") == kind]


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user_message(stored: StoredEvent, payload: JsonObject) -> list[JsonObject]:
    encoded: JsonObject = {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": [_content(part) for part in payload["content"]]},
        "activated_skills": payload.get("skills", []),
    }
    sender = payload.get("sender", "user")
    return [encoded if sender == "user" else encoded | {"sender": sender}]


def _content(part: JsonObject) -> JsonObject:
    match part:
        case {"type": "text", "text": text}:
            return _text(text)
        case {"type": "image", "data": str(data), "media_type": media_type} if data:
            return {"type": "image", "image_urls": [f"data:{media_type};base64,{data}"]}
        case {"type": "image", "url": str(url)} if part.get("sha256") is None:
            return {"type": "image", "image_urls": [url]}
        case {"type": "image", "media_type": media_type}:
            return _text(f"[image: {part.get('name') or media_type}]")
        case _:
            name = part.get("path") or part.get("name") or part.get("url") or part["media_type"]
            return _text(f"[file: {name}]")


def _thinking(payload: JsonObject) -> JsonObject:
    """Return what the model thought: as text, and in blocks with the provider's signatures."""
    parts = _select_parts(payload, "thinking")
    if not parts:
        return {}
    blocks: list[JsonObject] = [
        {"type": "thinking", "thinking": part.get("content") or "", "signature": part.get("signature")}
        for part in parts
    ]
    return {"reasoning_content": "".join(block["thinking"] for block in blocks), "thinking_blocks": blocks}


def _response(stored: StoredEvent, payload: JsonObject) -> list[JsonObject]:
    texts = [_text(part.get("content") or "") for part in _select_parts(payload, "text")]
    thinking = _thinking(payload)
    actions = [_action(stored, call) for call in _select_parts(payload, "tool-call")]
    if actions:
        actions[0] |= {"thought": texts, **thinking}
        return actions
    blocks = thinking.pop("thinking_blocks", [])
    message: JsonObject = {"role": "assistant", "content": texts, "thinking_blocks": blocks, **thinking}
    return [
        {
            "kind": "MessageEvent",
            "source": "agent",
            "llm_message": message,
            "llm_response_id": stored.id_text,
            "activated_skills": [],
        }
    ]


def _action(stored: StoredEvent, call: JsonObject) -> JsonObject:
    arguments: Any = call.get("args") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "kind": "ActionEvent",
        "source": "agent",
        "thought": [],
        "action": {"kind": "MCPToolAction", "data": _object(arguments)},
        "tool_name": call["tool_name"],
        "tool_call_id": call["tool_call_id"],
        "tool_call": {
            "id": call["tool_call_id"],
            "name": call["tool_name"],
            "arguments": text,
            "origin": "completion",
        },
        "llm_response_id": stored.id_text,
        "security_risk": "UNKNOWN",  # it is judged later: see `waiting`
    }


def _object(arguments: Any) -> JsonObject:
    """Return arguments as an object; what is none is under `_`."""
    value: Any = arguments
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except ValueError:
            return {"_": arguments}
    return cast("JsonObject", value) if isinstance(value, dict) else {"_": value}


def _observation(event: ToolReturned | ToolFailed, calls: Calls, result: Any, *, is_error: bool) -> JsonObject:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return {
        "kind": "ObservationEvent",
        "source": "environment",
        "tool_name": event.tool,
        "tool_call_id": event.tool_call_id,
        "action_id": calls.get(event.tool_call_id, _NO_CALL),
        "observation": {
            "kind": "MCPToolObservation",
            "tool_name": event.tool,
            "content": [_text(text)],
            "is_error": is_error,
        },
    }


def _make_observation(event: ToolReturned, calls: Calls) -> list[JsonObject]:
    return [_observation(event, calls, event.result, is_error=False)]


def _make_failure(event: ToolFailed, calls: Calls) -> list[JsonObject]:
    if not event.retry:
        return [_observation(event, calls, event.error, is_error=True)]
    return [_agent_error(event, event.error)]


def _make_interruption(event: ToolInterrupted, calls: Calls) -> list[JsonObject]:
    return [_agent_error(event, event.reason)]


def _agent_error(event: ToolFailed | ToolInterrupted, error: str) -> JsonObject:
    about = {"tool_name": event.tool, "tool_call_id": event.tool_call_id, "error": error}
    return {"kind": "AgentErrorEvent", "source": "agent", **about}


def _make_rejection(event: ToolRejected, calls: Calls) -> list[JsonObject]:
    return [
        {
            "kind": "UserRejectObservation",
            "source": "environment",
            "tool_name": event.tool,
            "tool_call_id": event.tool_call_id,
            "action_id": calls.get(event.tool_call_id, _NO_CALL),
            "rejection_reason": event.reason,
            "rejection_source": "hook" if event.by == "hook" else "user",
        }
    ]


def _make_condensation(event: Condensed, calls: Calls) -> list[JsonObject]:
    return [
        {
            "kind": "Condensation",
            "source": "environment",
            "forgotten_event_ids": [],
            "summary": event.summary,
            "summary_offset": 0,
            "llm_response_id": str(event.id),
        }
    ]


_EXIT_CODES = {"deny": 2, "error": 1}
_HOOK_TYPES = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SessionEnd", "Stop")


def _hook(event: HookRan, calls: Calls) -> list[JsonObject]:
    hook_type = next(
        (kind for kind in _HOOK_TYPES if kind.lower() == event.hook.replace("_", "").lower()), "PreToolUse"
    )
    encoded: JsonObject = {
        "kind": "HookExecutionEvent",
        "source": "hook",
        "hook_event_type": hook_type,
        "hook_command": event.command or event.hook,
        "success": event.verdict != "error",
        "blocked": event.verdict == "deny",
        "exit_code": _EXIT_CODES.get(event.verdict, 0),
        "stdout": event.output,
    }
    action = calls.get(event.tool_call_id or "")
    return [encoded if action is None else encoded | {"action_id": action}]


def _pause(event: PauseRequested, calls: Calls) -> list[JsonObject]:
    return [{"kind": "PauseEvent", "source": "user"}]


def _error(event: ErrorRaised, calls: Calls) -> list[JsonObject]:
    message = hide_places(event.code, event.message)
    detail = f"{message} ({event.hint})" if event.hint else message
    return [{"kind": "ConversationErrorEvent", "source": "environment", "code": event.code, "detail": detail}]


def _limit(event: LimitReached, calls: Calls) -> list[JsonObject]:
    detail = f"the limit {event.limit} is reached: {event.value:g} of {event.bound:g}"
    return [{"kind": "ConversationErrorEvent", "source": "environment", "code": "limit_exceeded", "detail": detail}]


def _state_changed(event: StateChanged, calls: Calls) -> list[JsonObject]:
    changes = dict(event.changes)
    policies: JsonObject = dict(changes.pop("policies", {}))
    changed: JsonObject = {"execution_status": changes.pop("status", None)}
    changed |= {name: changes.pop(name, None) for name in ("title", "tags")}
    changed |= {"confirmation_policy": policies.pop("policy", None)}
    changed |= {"security_analyzer": describe_analyzer(policies.pop("analyzer", None))}
    parts = [_state_update(key, changed[key]) for key in _OWN_KEYS if changed[key] is not None]
    other_changes = changes | ({"policies": policies} if policies else {})
    return [*parts, *([_state_update("bough.StateChanged", other_changes)] if other_changes or not parts else [])]


def _other(stored: StoredEvent) -> JsonObject:
    return _state_update(f"bough.{stored.kind}", stored.as_json())


def _state_update(key: str, value: Any) -> JsonObject:
    return {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": key, "value": value}


_ROW_ENCODERS: Mapping[str, _RowEncoder] = {"UserMessage": _user_message, "ModelResponded": _response}
_NEWEST_VERSIONS = {"UserMessage": UserMessage.VERSION, "ModelResponded": ModelResponded.VERSION}
_KINDS_THAT_NAME_CALLS = frozenset({"ToolReturned", "ToolFailed", "ToolRejected", "HookRan"})

_ENCODERS: Mapping[type[BaseEvent], _Encoder] = {
    ToolReturned: _make_observation,
    ToolFailed: _make_failure,
    ToolRejected: _make_rejection,
    ToolInterrupted: _make_interruption,
    Condensed: _make_condensation,
    HookRan: _hook,
    PauseRequested: _pause,
    ErrorRaised: _error,
    LimitReached: _limit,
    StateChanged: _state_changed,
}
