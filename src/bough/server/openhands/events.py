"""Our events in the form of OpenHands 1.58: each row of the table is one function here.

One of ours may be several of theirs; part 0 has our id, part i our id with the suffix `.i`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from bough.errors import hide_places
from bough.events.model import (
    BaseEvent,
    Condensed,
    ErrorRaised,
    FilePart,
    HookRan,
    ImagePart,
    LimitReached,
    ModelResponded,
    PauseRequested,
    StateChanged,
    TextPart,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.server.forms.base import stamp
from bough.server.forms.peer import describe_analyzer
from bough.server.openhands.ids import part_id
from bough.types import JsonObject

Calls = Mapping[str, str]
_Encoder = Callable[[Any, Calls], Sequence[JsonObject]]

_NO_CALL = "00000000-0000-0000-0000-000000000000"
_OWN_KEYS = ("execution_status", "title", "tags", "confirmation_policy", "security_analyzer")


class OpenHandsEvents:
    """Encodes events for OpenHands' client; what it has no name for is a `ConversationStateUpdateEvent`."""

    def encode(self, stored: StoredEvent, calls: Calls) -> Sequence[JsonObject]:
        """Return the parts of an event, in order."""
        event = stored.event
        encoder = _ENCODERS.get(type(event))
        parts = encoder(event, calls) if encoder else [_other(stored)]
        when = stamp(stored.ts)
        return [{"id": part_id(stored.id, i), "timestamp": when, **part} for i, part in enumerate(parts)]

    def calls_made(self, stored: StoredEvent) -> Calls:
        """Return the calls that a response makes, each with the id of its `ActionEvent`."""
        if stored.kind != "ModelResponded":
            return {}
        made = _tool_calls(cast("ModelResponded", stored.event))
        return {call["tool_call_id"]: part_id(stored.id, i) for i, call in enumerate(made)}


def _parts_of(event: ModelResponded, kind: str) -> list[JsonObject]:
    return [part for part in event.response.get("parts", ()) if part.get("part_kind") == kind]


def _tool_calls(event: ModelResponded) -> list[JsonObject]:
    return _parts_of(event, "tool-call")


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user_message(event: UserMessage, calls: Calls) -> list[JsonObject]:
    content: list[JsonObject] = []
    for part in event.content:
        match part:
            case TextPart():
                content.append(_text(part.text))
            case ImagePart(data=data) if data:
                content.append({"type": "image", "image_urls": [f"data:{part.media_type};base64,{data}"]})
            case ImagePart(sha256=None, url=str(url)):
                content.append({"type": "image", "image_urls": [url]})
            case ImagePart():
                content.append(_text(f"[image: {part.name or part.media_type}]"))
            case FilePart():
                content.append(_text(f"[file: {part.path or part.name or part.url or part.media_type}]"))
    encoded: JsonObject = {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": content},
        "activated_skills": list(event.skills),
    }
    return [encoded if event.sender == "user" else encoded | {"sender": event.sender}]


def _thinking(event: ModelResponded) -> JsonObject:
    """Return what the model thought: as text, and in blocks with the provider's signatures."""
    parts = _parts_of(event, "thinking")
    if not parts:
        return {}
    blocks: list[JsonObject] = [
        {"type": "thinking", "thinking": part.get("content") or "", "signature": part.get("signature")}
        for part in parts
    ]
    return {"reasoning_content": "".join(block["thinking"] for block in blocks), "thinking_blocks": blocks}


def _response(event: ModelResponded, calls: Calls) -> list[JsonObject]:
    texts = [_text(part.get("content") or "") for part in _parts_of(event, "text")]
    made = _tool_calls(event)
    if made:
        actions = [_action(event, call) for call in made]
        actions[0] |= {"thought": texts, **_thinking(event)}
        return actions
    thinking = _thinking(event)
    blocks = thinking.pop("thinking_blocks", [])
    message: JsonObject = {"role": "assistant", "content": texts, "thinking_blocks": blocks, **thinking}
    return [
        {
            "kind": "MessageEvent",
            "source": "agent",
            "llm_message": message,
            "llm_response_id": str(event.id),
            "activated_skills": [],
        }
    ]


def _action(event: ModelResponded, call: JsonObject) -> JsonObject:
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
        "llm_response_id": str(event.id),
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
    named = next((kind for kind in _HOOK_TYPES if kind.lower() == event.hook.replace("_", "").lower()), "PreToolUse")
    encoded: JsonObject = {
        "kind": "HookExecutionEvent",
        "source": "hook",
        "hook_event_type": named,
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
    said: JsonObject = {"execution_status": changes.pop("status", None)}
    said |= {name: changes.pop(name, None) for name in ("title", "tags")}
    said |= {"confirmation_policy": policies.pop("policy", None)}
    said |= {"security_analyzer": describe_analyzer(policies.pop("analyzer", None))}
    parts = [_state_update(key, said[key]) for key in _OWN_KEYS if said[key] is not None]
    rest = changes | ({"policies": policies} if policies else {})
    return [*parts, *([_state_update("bough.StateChanged", rest)] if rest or not parts else [])]


def _other(stored: StoredEvent) -> JsonObject:
    return _state_update(f"bough.{stored.kind}", stored.as_json())


def _state_update(key: str, value: Any) -> JsonObject:
    return {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": key, "value": value}


_ENCODERS: Mapping[type[BaseEvent], _Encoder] = {
    UserMessage: _user_message,
    ModelResponded: _response,
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
