"""The form of a fork: what it keeps, changes and inherits, told before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fastapi import Response
from fastapi.exceptions import RequestValidationError

from bough.errors import BoughError
from bough.html.numbers import format_count, format_usd
from bough.server.bodies.conversations import Fork
from bough.server.bodies.events import NewMessage
from bough.server.bodies.fork_preview import ForkPreview
from bough.server.bodies.rules import LimitsForm
from bough.server.routes.conversations import delete_conversation
from bough.server.routes.events import send_message
from bough.server.routes.forks import fork_conversation, preview_fork
from bough.types import JsonObject, new_id
from bough.web.head import read_head
from bough.web.screen import Action, Visit, WebScreen, parse_body

if TYPE_CHECKING:
    from bough.server.bodies.info import ConversationInfo, ConversationRecord

_FILES: Mapping[str, tuple[str, str]] = {
    "shared": ("Same folder", "as the files are now, shared"),
    "copy": ("Copy", "with the files as they were then"),
    "readonly": ("Read only", "nothing can be written"),
    "copy-now": ("Copy of now", "with the files as they are now"),
    "worktree": ("New worktree", "with the files as they were then"),
}
_PENDING: Mapping[str, str] = {
    "close": "Close them in the fork",
    "drop": "Leave them out, with the answer that made them",
    "carry": "Keep them, and ask again",
}
_FIELDS: Mapping[str, str] = {
    "overrides.model": "model",
    "overrides.limits.cost_usd": "usd",
    "workspace": "files",
    "content": "message",
}
"""The field of the form for a field of the API's bodies, where the names differ."""


_RISKS: Sequence[str] = ("HIGH", "MEDIUM", "LOW")
"""From the loosest threshold to the strictest."""

_ALWAYS: JsonObject = {"kind": "AlwaysConfirm"}


async def _read(visit: Visit) -> dict[str, Any]:
    source = await visit.access.store.get(visit.read_id())
    seq, event = await _read_event(visit, source)
    is_message = event.get("kind") == "UserMessage"
    edits = is_message and (visit.read_field("edit") != "" or visit.read_field("cut") == "before")
    default_cut, default_message = ("before", _read_text(event)) if edits else ("after", "")
    cut = visit.read_field("cut") or default_cut
    chosen = {
        name: visit.read_field(name)
        for name in ("title", "agent", "model", "policy", "usd", "files", "pending", "reason")
    }
    chosen["files"] = chosen["files"] if chosen["files"] in _FILES else "shared"
    chosen["pending"] = chosen["pending"] if chosen["pending"] in _PENDING else "close"
    preview, refusal = await _preview(visit, source, _count_kept(seq, cut), chosen)
    message = visit.form.get("message") if visit.form else default_message
    head = await read_head(visit, source)
    policy = preview.confirmation_policy if preview is not None else {}
    limits = preview.limits if preview is not None else {}
    return {
        "title": f"Fork {source.title or 'Untitled'}",
        "head": head,
        "heading": "Edit and run from here" if edits else "Fork from here",
        "seq": seq,
        "is_message": is_message,
        "cut": cut,
        "message": message,
        "chosen": chosen,
        "is_beside": visit.read_field("beside") != "",
        "default_title": f"{(source.title or 'Untitled')[:190]} ({head['branches'] + 1})",
        "agent": source.config.get("agent") or "default",
        "agents": visit.access.services.agents.names(),
        "model": source.config.get("model") or "",
        "policy": _describe_policy(policy),
        "policies": {name: _describe_policy(stricter) for name, stricter in _list_stricter(policy).items()},
        "limit": limits.get("cost_usd"),
        "files": _FILES,
        "pending": _PENDING,
        "inherited": None if preview is None else _describe(preview),
        "has_open_calls": (preview is not None and bool(preview.open_calls)) or chosen["pending"] != "close",
        "refusal": refusal,
        "refused_fields": _read_refused_fields(visit.problem),
        # Made when the form is drawn: sent twice, it makes one fork.
        "fork_id": str(new_id()),
    }


async def _read_event(visit: Visit, source: ConversationRecord) -> tuple[int, JsonObject]:
    """Return the event that the form is about: that of the field `at`, else the last one."""
    text = visit.read_field("at")
    seq = int(text) if text.isdecimal() and len(text) < 16 else source.head - 1
    seq = min(seq, source.head - 1)
    async for stored in visit.access.store.read(source.id, seq, seq + 1):
        return seq, stored.as_json()
    return seq, {}


def _read_text(event: JsonObject) -> str:
    return "".join(part.get("text", "") for part in event.get("content", ()) if part.get("type") == "text")


def _count_kept(seq: int, cut: str) -> int:
    return seq if cut == "before" else seq + 1


async def _preview(
    visit: Visit, source: ConversationRecord, at: int, chosen: Mapping[str, str]
) -> tuple[ForkPreview | None, JsonObject | None]:
    """Return what the fork would inherit; if it would be refused, what it would inherit otherwise, and why."""
    refusal: JsonObject | None = None
    choices: JsonObject = {"at": at, "pending": chosen["pending"], **_choose_workspace(chosen["files"])}
    for fields in (choices, {"at": at}):
        try:
            return await preview_fork(visit.access, source, parse_body(Fork, fields)), refusal
        except BoughError as error:
            refusal = refusal or {"detail": error.message, "hint": error.hint}
    return None, refusal


def _choose_workspace(files: str) -> JsonObject:
    """Return the fields of the API's body for a choice of files."""
    return {"workspace": "copy", "moment": "now"} if files == "copy-now" else {"workspace": files}


def _describe(preview: ForkPreview) -> dict[str, str]:
    """Return the names and texts of what a fork inherits."""
    calls = [f"{call.tool} ({'asks again' if call.outcome == 'carried' else 'closed'})" for call in preview.open_calls]
    used = preview.inherited.input_tokens + preview.inherited.output_tokens
    facts = {
        "Events": f"{preview.at} of {preview.head}",
        "Open calls": ", ".join(calls) or "none at this cut",
        "Policy": _describe_policy(preview.confirmation_policy),
        "Hooks": str(preview.hooks or "none"),
        "Skills": ", ".join(preview.skills) or "none",
        "Secrets": ", ".join(preview.secrets) or "none",
        "Tokens": "counted from 0" + (f", {format_count(used)} before the cut" if used else ""),
    }
    if preview.limits.get("cost_usd") is not None:
        facts["Limit"] = f"{format_usd(preview.limits['cost_usd'])} a run"
    if preview.budgets:
        facts["Budgets"] = f"{preview.budgets}, shared"
    return facts


def _read_refused_fields(problem: JsonObject | None) -> dict[str, str]:
    """Return the rule that each field of the form breaks."""
    errors: list[JsonObject] = (problem or {}).get("errors") or []
    return {_FIELDS.get(error["field"], error["field"]): error["rule"] for error in errors}


async def _fork(visit: Visit) -> str:
    """Fork, send the message if there is one, and return the address of the fork."""
    source = await visit.access.store.get(visit.read_id())
    seq, _ = await _read_event(visit, source)
    body = parse_body(Fork, await _read_fork(visit, source, _count_kept(seq, visit.read_field("cut"))))
    message = visit.read_field("message").replace("\r\n", "\n")
    sent = None if not message.strip() else parse_body(NewMessage, {"content": message, "run": True, "id": body.id})
    fork = cast("ConversationInfo", await fork_conversation(source.id, visit.access, visit.request, Response(), body))
    if sent is not None:
        try:
            await send_message(fork.id, sent, visit.access, visit.request)
        except (BoughError, RequestValidationError):
            # A fork without its message is not what was asked for, and the form is shown again.
            await delete_conversation(fork.id, visit.access)
            raise
    return f"/c/{source.id}/compare/{fork.id}" if "beside" in visit.form else f"/c/{fork.id}"


async def _read_fork(visit: Visit, source: ConversationRecord, at: int) -> JsonObject:
    """Return the body of the API's request for the fields of the form."""
    fields: JsonObject = {"id": visit.read_field("fork_id"), "at": at}
    for name in ("title", "agent", "pending"):
        if value := visit.read_field(name).strip():
            fields[name] = value
    if files := visit.read_field("files"):
        fields |= _choose_workspace(files)
    overrides: JsonObject = {}
    if model := visit.read_field("model").strip():
        overrides["model"] = model
    policy, usd = visit.read_field("policy"), visit.read_field("usd").strip().removeprefix("$")
    if policy or usd:
        preview = await preview_fork(visit.access, source, parse_body(Fork, {"at": at}))
        if policy:
            overrides["confirmation_policy"] = _list_stricter(preview.confirmation_policy).get(policy, {"kind": policy})
        if usd:
            limits = {name: preview.limits[name] for name in LimitsForm.model_fields if name in preview.limits}
            overrides["limits"] = limits | {"cost_usd": _read_number(usd)}
    return fields | ({"overrides": overrides} if overrides else {})


def _read_number(text: str) -> float | str:
    """Return the number that a text says; else the text, which the body refuses with the name of its field."""
    try:
        return float(text)
    except ValueError:
        return text


def _describe_policy(policy: Mapping[str, object]) -> str:
    """Return the words for a policy: `Ask always`, `Ask from medium risk`, `Never ask`."""
    match policy.get("kind"):
        case "AlwaysConfirm":
            return "Ask always"
        case "ConfirmRisky":
            return f"Ask from {str(policy.get('threshold', 'HIGH')).lower()} risk"
        case _:
            return "Never ask"


def _list_stricter(policy: Mapping[str, object]) -> dict[str, JsonObject]:
    """Return the policies that are stricter than a policy, by the names that a form uses."""
    kind, threshold = policy.get("kind"), str(policy.get("threshold", "HIGH"))
    if kind == "AlwaysConfirm":
        return {}
    looser = _RISKS.index(threshold) + 1 if kind == "ConfirmRisky" and threshold in _RISKS else 0
    # A policy that asks at unknown risks would be looser if it no longer did.
    extra = {} if policy.get("confirm_unknown") is None else {"confirm_unknown": policy["confirm_unknown"]}
    risky = {f"risky-{risk.lower()}": {"kind": "ConfirmRisky", "threshold": risk, **extra} for risk in _RISKS[looser:]}
    return {**risky, "always": _ALWAYS}


SCREEN = WebScreen(
    path="/c/{id}/fork", template="fork.html", data=_read, modules=("fork.js",), role="write", place="conversations"
)
FORK = Action(verb="fork", handle=_fork, screen=SCREEN)
