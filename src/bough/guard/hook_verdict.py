"""Parses answers of hooks, and combines several answers into a verdict.

Source: the hook formats of Claude Code and OpenHands (`decision`, `hookSpecificOutput`, `continue`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from bough.types import Json

if TYPE_CHECKING:
    from bough.events.model import HookRan

MAX_TEXT = 16 << 10
"""The maximum length of a reason or a context, in characters."""

Decision: TypeAlias = Literal["allow", "deny", "ask", "none"]
"""The decision of a hook. `allow` never overrides a policy; it has the same effect as `none`."""


@dataclass(frozen=True, kw_only=True)
class HookAnswer:
    """The answer of one hook.

    Attributes:
        failed: Whether the hook did not start, timed out, crashed or gave an invalid answer; its decision is unknown.
        error: Whether it exited with a code other than 0 and 2, which decides nothing; `reason` has the details.
        output: Its output, for the event.
    """

    decision: Decision = "none"
    reason: str = ""
    context: str = ""
    failed: bool = False
    error: bool = False
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class HookVerdict:
    """The combined answer of all hooks that ran for one input. Deny precedes ask, then allow, then none.

    Attributes:
        context: Texts for the model, in the order of the hooks.
        events: One event for each hook, to be recorded.
    """

    decision: Decision = "none"
    reason: str = ""
    context: str = ""
    events: tuple[HookRan, ...] = ()


_DECISIONS: dict[str, Decision] = {
    "block": "deny",
    "deny": "deny",
    "ask": "ask",
    "approve": "allow",
    "allow": "allow",
    "none": "none",
    "": "none",
}
_SEVERITY: tuple[Decision, ...] = ("deny", "ask", "allow", "none")


def _pick_most_severe(decisions: Iterable[Decision | None]) -> Decision:
    all_decisions = set(decisions)
    for decision in _SEVERITY:
        if decision in all_decisions:
            return decision
    return "none"


def combine(answers: Iterable[HookAnswer], events: tuple[HookRan, ...] = ()) -> HookVerdict:
    """Return the most severe decision with its reasons, the contexts of all answers, and the events."""
    all_answers = tuple(answers)
    decision = _pick_most_severe(answer.decision for answer in all_answers)
    return HookVerdict(
        decision=decision,
        reason="\n".join(answer.reason for answer in all_answers if answer.decision == decision and answer.reason),
        context="\n".join(answer.context for answer in all_answers if answer.context),
        events=events,
    )


def read_answer(text: str, *, plain_is_context: bool) -> HookAnswer:
    """Parse the output of a hook: a JSON object with a decision, or text.

    Args:
        plain_is_context: Whether the model gets a text that is not JSON.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):  # progress output of a script is neither a decision nor a failure
        return HookAnswer(context=stripped[:MAX_TEXT] if plain_is_context else "", output=stripped)
    try:
        data = json.loads(stripped)
    except (ValueError, RecursionError):
        return HookAnswer(failed=True, reason="its answer is not JSON, but begins with {", output=stripped)
    return answer_from_json(data, output=stripped)


def answer_from_json(data: Json, *, output: str = "") -> HookAnswer:
    """Return the answer in a JSON object. An unknown decision is a failure."""
    fields = cast(dict[str, Any], data) if isinstance(data, dict) else {}
    raw_event_output = fields.get("hookSpecificOutput")
    event_output = cast(dict[str, Any], raw_event_output) if isinstance(raw_event_output, dict) else {}
    raw_decisions = [event_output.get("permissionDecision"), fields.get("decision")]
    decisions: list[Decision | None] = [_DECISIONS.get(str(word).lower()) for word in raw_decisions if word is not None]
    # An unknown decision must not count as none: a misspelled `denny` would let the call run.
    if None in decisions or not isinstance(data, dict):
        return HookAnswer(failed=True, reason=f"its answer is not a decision: {raw_decisions!r:.200}", output=output)
    stops = fields.get("continue") is False
    return HookAnswer(
        decision="deny" if stops else _pick_most_severe(decisions),
        reason=_find_first_text(
            event_output.get("permissionDecisionReason"), fields.get("reason"), fields.get("stopReason")
        ),
        context=_find_first_text(event_output.get("additionalContext"), fields.get("additionalContext")),
        output=output,
    )


def _find_first_text(*values: Json) -> str:
    """Return the first value that is a text and not empty, at most `MAX_TEXT` characters of it."""
    return next((value[:MAX_TEXT] for value in values if isinstance(value, str) and value), "")
