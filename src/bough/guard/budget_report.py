"""Reports about the budgets of a store: bounds, what is spent, held and left, and which conversations spent it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.errors import Conflict
from bough.events.side_tables import Tables
from bough.guard.budget import BUDGETS, Budget, read_account
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.store import EventStore

MEMBERS = 1000
"""Maximum number of members in a report."""

PAGE = 100
"""Maximum number of budgets in a page."""

_NANOS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Dollars, input and output tokens together, and requests."""

    usd: float
    tokens: int
    requests: int

    def as_json(self) -> JsonObject:
        """Return the amounts by name."""
        return {"usd": self.usd, "tokens": self.tokens, "requests": self.requests}


@dataclass(frozen=True, kw_only=True)
class BudgetMember:
    """What spent from a budget.

    Attributes:
        conversation: Its id; None for a question outside of a run that was interrupted.
        reserved: What its request in flight may cost.
    """

    conversation: UUID | None
    spent: Amounts
    reserved: Amounts

    def as_json(self) -> JsonObject:
        """Return the member as JSON."""
        id = None if self.conversation is None else str(self.conversation)
        return {"conversation": id, "spent": self.spent.as_json(), "reserved": self.reserved.as_json()}


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """A budget of a store.

    Attributes:
        bounds: The bounds by name: `usd`, `tokens`, `requests`. An amount without a bound is not limited.
        spent: What has been used, also by conversations that were deleted since.
        reserved: What requests in flight may cost. It is not part of `spent`.
        members: The first `MEMBERS`, the most expensive first; empty in lists.
    """

    id: str
    bounds: Mapping[str, float]
    spent: Amounts
    reserved: Amounts
    members: tuple[BudgetMember, ...] = ()

    @property
    def remaining(self) -> dict[str, float]:
        """Each bound minus what is spent, at least 0."""
        spent = self.spent.as_json()
        return {name: max(round(bound - spent[name], 9), 0) for name, bound in self.bounds.items()}

    @property
    def used_up(self) -> list[str]:
        """The names of the bounds that are used up; requests are refused until these bounds are raised."""
        return [name for name, amount in self.remaining.items() if amount == 0]

    def as_json(self) -> JsonObject:
        """Return the report as JSON, without its members. A missing bound is null, and so is its remaining amount."""
        names, remaining = ("usd", "tokens", "requests"), self.remaining
        return {
            "id": self.id,
            "bounds": {name: self.bounds.get(name) for name in names},
            "spent": self.spent.as_json(),
            "reserved": self.reserved.as_json(),
            "remaining": {name: remaining.get(name) for name in names},
        }


async def list_budgets(
    store: EventStore, *, prefix: str | None = None, after: str = "", limit: int = PAGE
) -> list[BudgetReport]:
    """Return budgets in the order of their ids, without members. O(budgets of the store).

    Args:
        prefix: Only ids with this prefix; if it is empty, only ids without `/`. None for all ids.
        after: Only ids after this one.
        limit: Maximum number of budgets.
    """

    def read(tables: Tables) -> list[BudgetReport]:
        rows = tables.run("budget.list", prefix=prefix, after=after, limit=limit)
        return [_make_report(*row) for row in rows]

    return await store.transaction(BUDGETS, read, read_only=True)


async def read_budget(store: EventStore, id: str) -> BudgetReport:
    """Return a budget with its members. O(members of all budgets of the store).

    Raises:
        NotFound: The store has no budget with this id.
    """

    def read(tables: Tables) -> BudgetReport:
        read_account(tables, id)
        row = tables.one("budget.get", budget=id)
        members = tables.run("budget.members", budget=id, limit=MEMBERS)
        return _make_report(id, *(row or ()), members=tuple(_make_member(*member) for member in members))

    return await store.transaction(BUDGETS, read, read_only=True)


async def set_budget(store: EventStore, budget: Budget) -> None:
    """Create a budget, or replace the given bounds of an existing one and keep its other bounds.

    Raises:
        NotFound: No bound is given, and there is no such budget.
    """
    try:
        await budget.create(store)
    except Conflict:
        await budget.change(store, **budget.bounds)  # pyright: ignore[reportArgumentType]


def _make_report(id: str, *columns: Any, members: tuple[BudgetMember, ...] = ()) -> BudgetReport:
    nanos, tokens, requests = columns[:3]
    usd = None if nanos is None else nanos / _NANOS
    bounds = {"usd": usd, "tokens": tokens, "requests": requests}
    return BudgetReport(
        id=id,
        bounds={name: bound for name, bound in bounds.items() if bound is not None},
        spent=_make_amounts(*columns[3:6]),
        reserved=_make_amounts(*columns[6:9]),
        members=members,
    )


def _make_member(conversation: bytes, generation: int, *columns: int) -> BudgetMember:
    return BudgetMember(
        conversation=None if generation < 0 else UUID(bytes=conversation),
        spent=_make_amounts(*columns[:3]),
        reserved=_make_amounts(*columns[3:]),
    )


def _make_amounts(nanos: int, tokens: int, requests: int) -> Amounts:
    return Amounts(usd=nanos / _NANOS, tokens=tokens, requests=requests)
