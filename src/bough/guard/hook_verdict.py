"""What hooks answer, and what several answers come to.

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
"""Characters of a reason or a context that are kept."""

Decision: TypeAlias = Literal["allow", "deny", "ask", "none"]
"""What a hook says; `allow` never overrides a policy, it only means that the hook has looked."""


@dataclass(frozen=True, kw_only=True)
class HookAnswer:
    """What one hook said.

    Attributes:
        failed: It did not start, hung, crashed or answered nonsense, so what it would have said is not known.
        error: It ended with an exit code that is neither yes nor no; what went wrong is in `reason`.
        output: What it wrote, bounded, for the record.
    """

    decision: Decision = "none"
    reason: str = ""
    context: str = ""
    failed: bool = False
    error: bool = False
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class HookVerdict:
    """What all hooks of one event came to: deny over ask over allow over none.

    Attributes:
        context: What they want the model to know, in their order.
        events: One a hook, to be recorded.
    """

    decision: Decision = "none"
    reason: str = ""
    context: str = ""
    events: tuple[HookRan, ...] = ()


_WORDS: dict[str, Decision] = {
    "block": "deny",
    "deny": "deny",
    "ask": "ask",
    "approve": "allow",
    "allow": "allow",
    "none": "none",
    "": "none",
}
_GRAVITY: tuple[Decision, ...] = ("deny", "ask", "allow", "none")


def _pick_most_severe(decisions: Iterable[Decision | None]) -> Decision:
    given_decisions = set(decisions)
    for decision in _GRAVITY:
        if decision in given_decisions:
            return decision
    return "none"


def combine(answers: Iterable[HookAnswer], events: tuple[HookRan, ...] = ()) -> HookVerdict:
    """Return the most severe decision with its reasons, and every context."""
    all_answers = tuple(answers)
    decision = _pick_most_severe(answer.decision for answer in all_answers)
    return HookVerdict(
        decision=decision,
        reason="\n".join(answer.reason for answer in all_answers if answer.decision == decision and answer.reason),
        context="\n".join(answer.context for answer in all_answers if answer.context),
        events=events,
    )


def read_answer(text: str, *, plain_is_context: bool) -> HookAnswer:
    """Return what a hook printed: a JSON object with a verdict, or text.

    Args:
        plain_is_context: Whether text that is not JSON is meant for the model.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):
        return HookAnswer(context=stripped[:MAX_TEXT] if plain_is_context else "", output=stripped)
    try:
        data = json.loads(stripped)
    except (ValueError, RecursionError):
        return HookAnswer(failed=True, reason="its answer is not JSON, though it begins as if it were", output=stripped)
    return answer_from_json(data, output=stripped)


def answer_from_json(data: Json, *, output: str = "") -> HookAnswer:
    """Return the answer in a JSON object; one with a decision nobody knows is a failure."""
    fields = cast(dict[str, Any], data) if isinstance(data, dict) else {}
    nested = fields.get("hookSpecificOutput")
    special = cast(dict[str, Any], nested) if isinstance(nested, dict) else {}
    words = [special.get("permissionDecision"), fields.get("decision")]
    decisions: list[Decision | None] = [_WORDS.get(str(word).lower()) for word in words if word is not None]
    if None in decisions or not isinstance(data, dict):
        return HookAnswer(
            failed=True, reason=f"it answered something that is not a decision: {words!r:.200}", output=output
        )
    stops = fields.get("continue") is False
    return HookAnswer(
        decision="deny" if stops else _pick_most_severe(decisions),
        reason=_first(special.get("permissionDecisionReason"), fields.get("reason"), fields.get("stopReason")),
        context=_first(special.get("additionalContext"), fields.get("additionalContext")),
        output=output,
    )


def _first(*values: Json) -> str:
    return next((value[:MAX_TEXT] for value in values if isinstance(value, str) and value), "")
