"""Errors for runs that stopped early, with a hint that says how to continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bough.cli.rule_options import LIMITS
from bough.errors import BoughError, LimitExceeded, ModelError
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


@dataclass(frozen=True, kw_only=True)
class NextSteps:
    """The commands in hints that continue a conversation.

    Attributes:
        resume: The command that continues the conversation, for example "`bough resume 9dd70d6c`".
        fork: The command that continues in a fork.
        retry: The command that sends the last message again, reworded.
    """

    resume: str
    fork: str
    retry: str

    @classmethod
    def by_commands(cls, name: str, asked_at: int) -> NextSteps:
        """Return the commands for a conversation and the position before its last message."""
        return cls(
            resume=f"`bough resume {name}`", fork=f"`bough fork {name}`", retry=f'`bough fork {name}@{asked_at} "…"`'
        )


def explain_ending(conversation: AsyncConversation, stopped: JsonObject, next_steps: NextSteps) -> BoughError | None:
    """Return the error of a run that a limit, a loop or a truncated answer stopped; None if the run is complete.

    Args:
        stopped: The `LimitReached` or `StuckDetected` event; empty if the run has neither.
    """
    result = conversation.result
    if conversation.state.limit is not None:
        return _make_limit_error(stopped, next_steps)
    if conversation.status == "stuck":
        return BoughError(
            f"the agent is repeating itself: {stopped.get('pattern', 'in a loop')}",
            hint=f"{next_steps.retry} tries again with other words",
            code="internal",
        )
    if result is not None and result.partial:
        return ModelError(f"the answer is cut off ({result.reason})", hint=f"{next_steps.resume} continues")
    return None


def _make_limit_error(event: JsonObject, next_steps: NextSteps) -> LimitExceeded:
    limit = event.get("limit", "")
    value, bound = (f"{event.get(key, 0):g}" for key in ("value", "bound"))
    details = {key: event.get(key) for key in ("limit", "value", "bound")}
    if limit.startswith("budget."):
        budget, _, bound_name = limit.removeprefix("budget.").rpartition(".")
        return LimitExceeded(
            f"the budget {budget} is used up: {value} of {bound} {'USD' if bound_name == 'usd' else bound_name}",
            hint=f"raise it with `bough budgets change {budget}`, then {next_steps.resume} continues",
            details=details,
        )
    next_step = next_steps.resume if limit in ("steps", "wall_seconds") else next_steps.fork
    return LimitExceeded(
        f"limit reached: {value} of {bound} {LIMITS.get(limit, limit)}",
        hint=f"{next_step} continues with counters reset",
        details=details,
    )
