"""The form that starts a conversation."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from fastapi import Response

from bough.server.bodies.conversations import NewConversation
from bough.server.routes.conversations import create_conversation
from bough.types import JsonObject
from bough.web.screen import Action, Visit, WebScreen, parse_body, read_number

_POLICIES: Final = (
    ("", "As the agent says"),
    ("AlwaysConfirm", "Ask before every call"),
    ("ConfirmRisky", "Ask before risky calls"),
)
_LIMITS: Final = (("steps", "Steps"), ("cost_usd", "US dollars"), ("wall_seconds", "Seconds"))


async def _read(visit: Visit) -> dict[str, Any]:
    return {
        "title": "New conversation",
        "agents": visit.access.services.agents.names(),
        "policies": _POLICIES,
        "limits": _LIMITS,
        "values": {name: value for name, value in visit.form.items() if isinstance(value, str)},
        "request_key": visit.read_text("request_key") or uuid4().hex,
    }


async def _start(visit: Visit) -> str:
    """Start the conversation of the form, and run it. The form has a key, so that a double click starts one."""
    body: JsonObject = {"agent": visit.read_text("agent") or None, "run": True}
    body["initial_message"] = visit.read_text("message")
    if title := visit.read_text("title"):
        body["title"] = title
    if folder := visit.read_text("folder"):
        body["workspace"] = {"working_dir": folder}
    if policy := visit.read_text("policy"):
        body["confirmation_policy"] = {"kind": policy}
    limits = {name: read_number(text) for name, _ in _LIMITS if (text := visit.read_text(name))}
    if limits:
        body["limits"] = limits
    form = parse_body(NewConversation, body)
    # Without the key, a double click or a repeated request would start a second conversation.
    key = visit.read_text("request_key") or None
    info = await create_conversation(form, visit.access, visit.request, Response(), idempotency_key=key)
    return f"/c/{info.id}"


SCREEN = WebScreen(path="/new", template="new.html", data=_read, role="write", place="conversations")
START = Action(verb="start", handle=_start, screen=SCREEN)
