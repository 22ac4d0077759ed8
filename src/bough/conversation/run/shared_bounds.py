"""Limits that a conversation shares with the tasks of its sub-agents, in whatever process they run.

Nothing is reserved: each conversation of a tree writes its own usage rows, and the usage of the tree is their sum.
Siblings share the remaining amount, and each may exceed it by the one request that it has in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from bough.agents.delegation_protocol import Delegation, SharedBound, Spent
from bough.conversation.log.state import State, add_usage, subtract_usage
from bough.conversation.rules import Rules
from bough.events.model import LimitReached, Usage
from bough.guard import Limits
from bough.guard.limits import check

_COUNTED = frozenset({"requests", "input_tokens", "output_tokens", "total_tokens", "cost_usd"})
"""Limits on the usage of a whole tree. Limits on steps and seconds apply to each run separately."""


class SharedBounds:
    """Checks the limits that a run shares with other conversations.

    Args:
        conversation: The conversation that runs.
        ancestors: Limits of the conversations above it, as they were when its task was started.
        rules: Returns the rules in force for the conversation.
    """

    def __init__(
        self,
        delegation: Delegation,
        conversation: UUID,
        ancestors: Sequence[SharedBound],
        rules: Callable[[], Rules],
    ) -> None:
        self._delegation = delegation
        self._conversation = conversation
        self._ancestors = tuple(ancestors)
        self._rules = rules

    def list_for_child(self, state: State) -> tuple[SharedBound, ...]:
        """Return the limits for a task that is started now: those of this conversation, then those of its ancestors."""
        return (*list_own_bounds(self._conversation, state, self._rules()), *self._ancestors)

    async def check(self, state: State) -> LimitReached | None:
        """Return the limit that was reached; None if none was. One statement for each limit on usage.

        The conversation's own limits are checked only while one of its tasks runs. When none runs, the checks of its
        state see all usage.
        """
        own: tuple[SharedBound, ...] = ()
        if any(link.ended is None for link in state.tasks.values()):
            own = list_own_bounds(self._conversation, state, self._rules())
        for bound in (*own, *self._ancestors):
            if _COUNTED.isdisjoint(bound.limits.bounds):
                continue
            reached = check_usage(bound, await self._delegation.read_spent(bound.conversation))
            if reached is not None:
                return reached if bound.conversation == self._conversation else _with_parent_prefix(reached)
        return None


def list_own_bounds(conversation: UUID, state: State, rules: Rules) -> tuple[SharedBound, ...]:
    """Return the conversation's limits per run and in total; empty if no run has recorded what was spent before it."""
    if state.spent is None:
        return ()
    spent_before = Spent(Usage.model_validate(state.spent["usage"]), int(state.spent["tasks"]))
    bounds = [SharedBound(conversation, rules.limits, spent_before)]
    if rules.total.bounds:
        bounds.append(SharedBound(conversation, rules.total, _negate_inherited(state, spent_before)))
    return tuple(bounds)


def check_usage(bound: SharedBound, spent: Spent) -> LimitReached | None:
    """Return the usage limit that was reached; None if none was.

    Args:
        spent: Total usage of the conversation and its descendants.
    """
    return check(_select_counted(bound.limits), measure_since(bound, spent))


def measure_since(bound: SharedBound, spent: Spent) -> Usage:
    """Return the part of `spent` that counts against a limit: the usage since its start."""
    return subtract_usage(spent.usage, bound.spent_at_start.usage)


def subtract_from(limits: Limits, used: Usage) -> dict[str, Any]:
    """Return the remaining amount of each usage limit by name, at least 0."""
    amounts: dict[str, float] = {
        "requests": used.requests,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "cost_usd": used.cost_usd or 0.0,
    }
    bounds = limits.bounds
    return {name: max(bounds[name] - amount, 0) for name, amount in amounts.items() if name in bounds}


def _select_counted(limits: Limits) -> Limits:
    counted: dict[str, Any] = {name: bound for name, bound in limits.bounds.items() if name in _COUNTED}
    return Limits(**counted, steps=None, tasks=None, depth=None, per=limits.per, unpriced=limits.unpriced)


def _negate_inherited(state: State, spent_before: Spent) -> Spent:
    """Return the usage that a fork inherited from its source, negated; zero if the conversation is not a fork.

    Subtracting a negated amount adds it: inherited usage counts against the limit, but no row of the fork has it.
    """
    inherited = subtract_usage(add_usage(state.inherited, state.used_before_run), spent_before.usage)
    return Spent(
        Usage(
            requests=-max(inherited.requests, 0),
            input_tokens=-max(inherited.input_tokens, 0),
            output_tokens=-max(inherited.output_tokens, 0),
            cost_usd=-max(inherited.cost_usd or 0.0, 0.0),
        ),
        0,
    )


def _with_parent_prefix(reached: LimitReached) -> LimitReached:
    return reached.model_copy(update={"limit": f"parent.{reached.limit}"})
