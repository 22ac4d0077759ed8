"""The form that changes the limits of a conversation's runs, and continues one that a limit has ended."""

from __future__ import annotations

from typing import Any, Final

from bough.html.numbers import format_count, format_usd
from bough.server.bodies.rules import LimitsForm
from bough.server.conversations.conversation import info_of_record
from bough.server.routes.runs import RunBody, run_conversation, set_limits
from bough.types import JsonObject
from bough.web.head import read_head
from bough.web.screen import Action, Visit, WebScreen, parse_body, read_number

_FIELDS: Final = (
    ("steps", "Steps"),
    ("cost_usd", "US dollars"),
    ("total_tokens", "Tokens"),
    ("requests", "Requests to the model"),
    ("wall_seconds", "Seconds"),
)


async def _read(visit: Visit) -> dict[str, Any]:
    record = await visit.access.store.get(visit.read_id())
    state = await visit.access.services.states.state_of(record)
    limits = (await info_of_record(visit.access, record)).limits
    used = state.used_by_run
    facts = {
        "steps": str(used.requests),
        "cost_usd": format_usd(used.cost_usd),
        "total_tokens": format_count(used.input_tokens + used.output_tokens),
        "requests": str(used.requests),
    }
    return {
        "title": f"Limits of {record.title or 'Untitled'}",
        "head": await read_head(visit, record),
        "reached": state.limit or "",
        "fields": [
            {
                "name": name,
                "label": label,
                "value": visit.read_text(name) if visit.form else _write_bound(limits.get(name)),
                "used": facts.get(name, ""),
                "is_reached": state.limit == name,
            }
            for name, label in _FIELDS
        ],
    }


def _write_bound(bound: Any) -> str:
    if bound is None:
        return ""
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


async def _change(visit: Visit) -> str:
    """Change the limits, and start a run if the form asks for one. Limits that the form does not show stay."""
    id = visit.read_id()
    recorded = (await info_of_record(visit.access, await visit.access.store.get(id))).limits
    # A field that is missing would get its default, which may be wider than the limit in force.
    fields: JsonObject = {name: recorded.get(name) for name in LimitsForm.model_fields if name != "unpriced"}
    fields |= {"unpriced": recorded.get("unpriced", "refuse")}
    fields |= {name: read_number(text) if (text := visit.read_text(name)) else None for name, _ in _FIELDS}
    await set_limits(id, parse_body(LimitsForm, fields), visit.access)
    if "run" in visit.form:
        await run_conversation(id, visit.access, visit.request, RunBody())
    return f"/c/{id}#talk"


SCREEN = WebScreen(path="/c/{id}/limits", template="limits.html", data=_read, role="write", place="conversations")
CHANGE = Action(verb="limits", handle=_change, screen=SCREEN)
