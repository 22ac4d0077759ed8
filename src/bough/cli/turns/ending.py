"""Why a run ended before its end, as an error with the way to continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bough.cli.rule_options import LIMITS
from bough.errors import BoughError, LimitExceeded, ModelError
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


@dataclass(frozen=True, kw_only=True)
class WaysOn:
    """What a person does to continue, as the hints of errors say it.

    Attributes:
        resume: Continues the conversation, for example "`bough resume 9dd70d6c`".
        fork: Continues in a branch.
        retry: Sends the last message again, in other words.
    """

    resume: str
    fork: str
    retry: str

    @classmethod
    def by_commands(cls, name: str, asked_at: int) -> WaysOn:
        """Return the commands for a conversation and the position before its last message."""
        return cls(
            resume=f"`bough resume {name}`", fork=f"`bough fork {name}`", retry=f'`bough fork {name}@{asked_at} "…"`'
        )


def explain_ending(conversation: AsyncConversation, stopped: JsonObject, ways: WaysOn) -> BoughError | None:
    """Return what kept a run from its end: a limit, a loop, or an answer that is cut off; None if nothing did.

    Args:
        stopped: The event of the limit or the loop; empty without one.
    """
    result = conversation.result
    if conversation.state.limit is not None:
        return _make_limit_error(stopped, ways)
    if conversation.status == "stuck":
        return BoughError(
            f"the agent is repeating itself: {stopped.get('pattern', 'in a circle')}",
            hint=f"{ways.retry} tries again in other words",
            code="internal",
        )
    if result is not None and result.partial:
        return ModelError(f"the answer is cut off ({result.reason})", hint=f"{ways.resume} continues")
    return None


def _make_limit_error(event: JsonObject, ways: WaysOn) -> LimitExceeded:
    limit = event.get("limit", "")
    value, bound = (f"{event.get(key, 0):g}" for key in ("value", "bound"))
    details = {key: event.get(key) for key in ("limit", "value", "bound")}
    if limit.startswith("budget."):
        budget, _, bound_name = limit.removeprefix("budget.").rpartition(".")
        return LimitExceeded(
            f"the budget {budget} is used up: {value} of {bound} {'USD' if bound_name == 'usd' else bound_name}",
            hint=f"raise it with `bough budgets change {budget}`, then {ways.resume} continues",
            details=details,
        )
    way = ways.resume if limit in ("steps", "wall_seconds") else ways.fork
    return LimitExceeded(
        f"limit reached: {value} of {bound} {LIMITS.get(limit, limit)}",
        hint=f"{way} continues with counters reset",
        details=details,
    )
