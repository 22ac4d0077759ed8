"""Bounds that a conversation shares with the tasks of its sub-agents, in whatever process they run.

Nothing is reserved: what a tree has used is one sum over rows that each of its conversations writes for itself. So
siblings share what is left, and each may overshoot by the one request that it has in flight.
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
"""Bounds of what a whole tree uses; steps and seconds are each run's own."""


class SharedBounds:
    """Checks the bounds that a run has to keep together with others.

    Args:
        conversation: The one that runs.
        ancestors: Bounds of the conversations above it, as they were when its task was started.
        rules: Returns the rules in force for it.
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
        """Return the bounds that a task started now has to keep: the conversation's own, then its ancestors'."""
        return (*own_bounds(self._conversation, state, self._rules()), *self._ancestors)

    async def check(self, state: State) -> LimitReached | None:
        """Return the bound that is reached, None where there is room. One statement for each bound that counts usage.

        The conversation's own are looked at here only while a task of it runs: else its fold has all of it.
        """
        own: tuple[SharedBound, ...] = ()
        if any(link.ended is None for link in state.tasks.values()):
            own = own_bounds(self._conversation, state, self._rules())
        for bound in (*own, *self._ancestors):
            if _COUNTED.isdisjoint(bound.limits.bounds):
                continue
            reached = check_usage(bound, await self._delegation.read_spent(bound.conversation))
            if reached is not None:
                return reached if bound.conversation == self._conversation else _name_ancestor(reached)
        return None


def own_bounds(conversation: UUID, state: State, rules: Rules) -> tuple[SharedBound, ...]:
    """Return the bounds of a conversation's run, and of the conversation; none before a run has begun to count."""
    if state.spent is None:
        return ()
    then = Spent(Usage.model_validate(state.spent["usage"]), int(state.spent["tasks"]))
    bounds = [SharedBound(conversation, rules.limits, then)]
    if rules.total.bounds:
        bounds.append(SharedBound(conversation, rules.total, _negate_inherited(state, then)))
    return tuple(bounds)


def check_usage(bound: SharedBound, now: Spent) -> LimitReached | None:
    """Return the bound of usage that is reached by what a conversation and those below it have used in all."""
    return check(_only_counted(bound.limits), measure_since(bound, now))


def measure_since(bound: SharedBound, now: Spent) -> Usage:
    """Return what was used since a bound began to count."""
    return subtract_usage(now.usage, bound.spent_at_start.usage)


def subtract_from(limits: Limits, used: Usage) -> dict[str, Any]:
    """Return what is left of the bounds of usage, by name: never below nothing."""
    amounts: dict[str, float] = {
        "requests": used.requests,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "cost_usd": used.cost_usd or 0.0,
    }
    bounds = limits.bounds
    return {name: max(bounds[name] - amount, 0) for name, amount in amounts.items() if name in bounds}


def _only_counted(limits: Limits) -> Limits:
    counted: dict[str, Any] = {name: bound for name, bound in limits.bounds.items() if name in _COUNTED}
    return Limits(**counted, steps=None, tasks=None, depth=None, per=limits.per, unpriced=limits.unpriced)


def _negate_inherited(state: State, then: Spent) -> Spent:
    """Return the usage inherited from the source of a fork, negated: it counts, but has no row of the fork's own.

    Zero if the conversation is not a fork.
    """
    before = subtract_usage(add_usage(state.inherited, state.began), then.usage)
    return Spent(
        Usage(
            requests=-max(before.requests, 0),
            input_tokens=-max(before.input_tokens, 0),
            output_tokens=-max(before.output_tokens, 0),
            cost_usd=-max(before.cost_usd or 0.0, 0.0),
        ),
        0,
    )


def _name_ancestor(reached: LimitReached) -> LimitReached:
    return reached.model_copy(update={"limit": f"parent.{reached.limit}"})
