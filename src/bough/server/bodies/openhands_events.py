"""Events in the form of OpenHands 1.58; one function for each kind of event.

An event of the log may become several events of OpenHands, here called its parts. Part 0 has the id of the event, and
part i has this id with the suffix `.i`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
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
from bough.server.bodies.base import stamp_microseconds
from bough.server.bodies.openhands_agents import describe_analyzer
from bough.types import JsonObject, parse_arguments

_STATE = "state"


class PartId(NamedTuple):
    """The id of an event, and the number of one of its parts."""

    event: UUID
    part: int


def part_id(event: str, part: int) -> str:
    """Return the id of a part of an event; part 0 has the id of the event."""
    return event if part == 0 else f"{event}.{part}"


def state_id(event: UUID | None) -> str:
    """Return the id of a `full_state` frame that is sent after an event; None without an earlier event."""
    return f"{event or UUID(int=0)}.{_STATE}"


def parse_id(text: str) -> PartId:
    """Return the event and the part that an id names. The id of a state frame names part 0 of its event.

    Raises:
        InvalidInput: It is not the id of an event, a part or a state frame.
    """
    event, _, suffix = text.partition(".")
    try:
        return PartId(UUID(event), int(suffix) if suffix and suffix != _STATE else 0)
    except ValueError as error:
        raise InvalidInput("an event id is not valid", hint="give the id of an event: a UUID") from error


Calls = Mapping[str, str]
_Encoder = Callable[[Any, Calls], Sequence[JsonObject]]
_RowEncoder = Callable[[StoredEvent, JsonObject], Sequence[JsonObject]]

_NO_CALL = "00000000-0000-0000-0000-000000000000"
_CLIENT_KEYS = ("execution_status", "title", "tags", "confirmation_policy", "security_analyzer")


class OpenHandsEvents:
    """Encodes events for OpenHands' client. A kind that it does not know is a `ConversationStateUpdateEvent`."""

    def encode(self, stored: StoredEvent, calls: Calls) -> Sequence[JsonObject]:
        """Return the parts of an event, in order."""
        row_encoder = _ROW_ENCODERS.get(stored.kind)
        if row_encoder is not None:
            parts = _encode_row(stored, row_encoder)
        else:
            encoder = _ENCODERS.get(type(stored.event))
            parts = encoder(stored.event, calls) if encoder else [_encode_other(stored)]
        id, timestamp = stored.id_text, stamp_microseconds(stored.microseconds)
        if len(parts) == 1:  # nearly all events: a loop would cost as much as the rest of this method
            return [{"id": id, "timestamp": timestamp, **parts[0]}]
        return [{"id": part_id(id, i), "timestamp": timestamp, **part} for i, part in enumerate(parts)]

    def calls_made(self, stored: StoredEvent) -> Calls:
        """Return the calls that a response makes, each with the id of its `ActionEvent`."""
        if stored.kind != "ModelResponded":
            return {}
        calls = _encode_row(stored, lambda _, payload: _select_parts(payload, "tool-call"))
        return {call["tool_call_id"]: part_id(stored.id_text, i) for i, call in enumerate(calls)}

    def needs_calls(self, stored: StoredEvent) -> bool:
        """Whether the parts of an event name parts that made calls, so that `encode` needs `calls`."""
        return stored.kind in _KINDS_THAT_NAME_CALLS


def _encode_row(stored: StoredEvent, encode: _RowEncoder) -> Sequence[JsonObject]:
    """Encode the payload of a row without making its typed event, because that takes most of the time of a page.

    The payload may have an older version: the upcasters of these kinds change no field that is encoded.

    Raises:
        StoreError: A newer version of bough wrote the payload.
        CorruptLog: The payload does not fit its kind.
    """
    try:
        payload = pydantic_core.from_json(stored.raw)
        if payload.get("schema_version", 1) > _NEWEST_VERSIONS[stored.kind]:
            _ = stored.event  # raises `StoreError`
        return encode(stored, payload)
    except (ValueError, LookupError, TypeError, AttributeError):
        _ = stored.event  # raises `CorruptLog`
        raise


def _select_parts(payload: JsonObject, kind: str) -> list[JsonObject]:
    return [part for part in payload["response"].get("parts", ()) if part.get("part_kind") == kind]


def _make_text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _encode_user_message(stored: StoredEvent, payload: JsonObject) -> list[JsonObject]:
    encoded: JsonObject = {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": [_encode_content(part) for part in payload["content"]]},
        "activated_skills": payload.get("skills", []),
    }
    sender = payload.get("sender", "user")
    return [encoded if sender == "user" else encoded | {"sender": sender}]


def _encode_content(part: JsonObject) -> JsonObject:
    if part["type"] == "text":  # nearly all parts, and several times as fast as a match of patterns
        return {"type": "text", "text": part["text"]}
    match part:
        case {"type": "image", "data": str(data), "media_type": media_type} if data:
            return {"type": "image", "image_urls": [f"data:{media_type};base64,{data}"]}
        case {"type": "image", "url": str(url)} if part.get("sha256") is None:
            return {"type": "image", "image_urls": [url]}
        case {"type": "image", "media_type": media_type}:
            return _make_text(f"[image: {part.get('name') or media_type}]")
        case _:
            name = part.get("path") or part.get("name") or part.get("url") or part["media_type"]
            return _make_text(f"[file: {name}]")


def _encode_thinking(payload: JsonObject) -> JsonObject:
    """Return the fields for what the model thought: the text, and blocks with the provider's signatures."""
    parts = _select_parts(payload, "thinking")
    if not parts:
        return {}
    blocks: list[JsonObject] = [
        {"type": "thinking", "thinking": part.get("content") or "", "signature": part.get("signature")}
        for part in parts
    ]
    return {"reasoning_content": "".join(block["thinking"] for block in blocks), "thinking_blocks": blocks}


def _encode_response(stored: StoredEvent, payload: JsonObject) -> list[JsonObject]:
    """Return an `ActionEvent` for each tool call of a response, the first one with its texts; else a message."""
    texts = [_make_text(part.get("content") or "") for part in _select_parts(payload, "text")]
    thinking = _encode_thinking(payload)
    actions = [_make_action(stored, call) for call in _select_parts(payload, "tool-call")]
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


def _make_action(stored: StoredEvent, call: JsonObject) -> JsonObject:
    """Return the `ActionEvent` of a tool call in a response."""
    arguments: Any = call.get("args") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "kind": "ActionEvent",
        "source": "agent",
        "thought": [],
        "action": {"kind": "MCPToolAction", "data": parse_arguments(arguments)},
        "tool_name": call["tool_name"],
        "tool_call_id": call["tool_call_id"],
        "tool_call": {
            "id": call["tool_call_id"],
            "name": call["tool_name"],
            "arguments": text,
            "origin": "completion",
        },
        "llm_response_id": stored.id_text,
        "security_risk": "UNKNOWN",  # assessed later: see `waiting` of the conversation
    }


def _make_observation(event: ToolReturned | ToolFailed, calls: Calls, result: Any, *, is_error: bool) -> JsonObject:
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
            "content": [_make_text(text)],
            "is_error": is_error,
        },
    }


def _encode_return(event: ToolReturned, calls: Calls) -> list[JsonObject]:
    return [_make_observation(event, calls, event.result, is_error=False)]


def _encode_failure(event: ToolFailed, calls: Calls) -> list[JsonObject]:
    """Return an error of the agent if the model was asked to retry the call, else a failed observation."""
    if not event.retry:
        return [_make_observation(event, calls, event.error, is_error=True)]
    return [_make_agent_error(event, event.error)]


def _encode_interruption(event: ToolInterrupted, calls: Calls) -> list[JsonObject]:
    return [_make_agent_error(event, event.reason)]


def _make_agent_error(event: ToolFailed | ToolInterrupted, error: str) -> JsonObject:
    about = {"tool_name": event.tool, "tool_call_id": event.tool_call_id, "error": error}
    return {"kind": "AgentErrorEvent", "source": "agent", **about}


def _encode_rejection(event: ToolRejected, calls: Calls) -> list[JsonObject]:
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


def _encode_condensation(event: Condensed, calls: Calls) -> list[JsonObject]:
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


def _encode_hook(event: HookRan, calls: Calls) -> list[JsonObject]:
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


def _encode_pause(event: PauseRequested, calls: Calls) -> list[JsonObject]:
    return [{"kind": "PauseEvent", "source": "user"}]


def _encode_error(event: ErrorRaised, calls: Calls) -> list[JsonObject]:
    message = hide_places(event.code, event.message)
    detail = f"{message} ({event.hint})" if event.hint else message
    return [{"kind": "ConversationErrorEvent", "source": "environment", "code": event.code, "detail": detail}]


def _encode_limit(event: LimitReached, calls: Calls) -> list[JsonObject]:
    detail = f"the limit {event.limit} is reached: {event.value:g} of {event.bound:g}"
    return [{"kind": "ConversationErrorEvent", "source": "environment", "code": "limit_exceeded", "detail": detail}]


def _encode_state_change(event: StateChanged, calls: Calls) -> list[JsonObject]:
    """Return an update for each change of a key that OpenHands' client knows, and one for all other changes."""
    changes = dict(event.changes)
    policies: JsonObject = dict(changes.pop("policies", {}))
    changed: JsonObject = {"execution_status": changes.pop("status", None)}
    changed |= {name: changes.pop(name, None) for name in ("title", "tags")}
    changed |= {"confirmation_policy": policies.pop("policy", None)}
    changed |= {"security_analyzer": describe_analyzer(policies.pop("analyzer", None))}
    parts = [_make_state_update(key, changed[key]) for key in _CLIENT_KEYS if changed[key] is not None]
    other_changes = changes | ({"policies": policies} if policies else {})
    return [*parts, *([_make_state_update("bough.StateChanged", other_changes)] if other_changes or not parts else [])]


def _encode_other(stored: StoredEvent) -> JsonObject:
    return _make_state_update(f"bough.{stored.kind}", stored.as_json())


def _make_state_update(key: str, value: Any) -> JsonObject:
    return {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": key, "value": value}


_ROW_ENCODERS: Mapping[str, _RowEncoder] = {"UserMessage": _encode_user_message, "ModelResponded": _encode_response}
_NEWEST_VERSIONS = {"UserMessage": UserMessage.VERSION, "ModelResponded": ModelResponded.VERSION}
_KINDS_THAT_NAME_CALLS = frozenset({"ToolReturned", "ToolFailed", "ToolRejected", "HookRan"})

_ENCODERS: Mapping[type[BaseEvent], _Encoder] = {
    ToolReturned: _encode_return,
    ToolFailed: _encode_failure,
    ToolRejected: _encode_rejection,
    ToolInterrupted: _encode_interruption,
    Condensed: _encode_condensation,
    HookRan: _encode_hook,
    PauseRequested: _encode_pause,
    ErrorRaised: _encode_error,
    LimitReached: _encode_limit,
    StateChanged: _encode_state_change,
}
