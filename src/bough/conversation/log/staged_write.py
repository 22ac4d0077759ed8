"""Values of the write buffer: writers, batches, their conditions, and changes in the same transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from bough.conversation.log.listeners import Delta
from bough.conversation.log.state import Mark, State
from bough.errors import BoughError
from bough.events.model import (
    Event,
    PauseRequested,
    StateChanged,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
)

if TYPE_CHECKING:
    from bough.events.side_tables import SideTables, Tables


@dataclass(eq=False)
class Writer:
    """A source of staged events. Each event of a run depends on the earlier ones, so if one fails, the later ones fail.

    Attributes:
        generation: The generation of a run's lease; None for other writers, whose appends are independent.
        failure: The error with which an earlier event of a run failed; None if all were written.
    """

    generation: int | None = None
    failure: BaseException | None = None


Condition = Callable[[], bool]
"""Returns whether an event may be written after the present state of the fold. Must not have side effects."""

_CONTROLLING = frozenset({"policies", "agent", "instructions", "approved", "edited", "waiting", "adopted"})
"""Keys of `StateChanged` that change the rules of calls or decide one."""


def is_control(event: Event) -> bool:
    """Whether an event changes the rules of calls, decides a call, or asks the run to stop."""
    match event:
        case StateChanged():
            return not _CONTROLLING.isdisjoint(event.changes)
        case PauseRequested() | ToolRejected() | ToolReturned() | ToolFailed() | ToolInterrupted():
            return True
        case _:
            return False


@dataclass(frozen=True)
class SideChange:
    """A change of side tables in the transaction of a batch, after its events.

    Attributes:
        side_tables: The side tables that it changes.
        change: Makes the change, given the tables and the state after the batch.
        on_durable: Called once the change is durable.
    """

    side_tables: tuple[SideTables, ...]
    change: Callable[[Tables, State], None]
    on_durable: Callable[[], None]


@dataclass(eq=False)
class Ending:
    """A change of side tables in the transaction of a run's last events.

    Attributes:
        side_tables: The side tables that it changes.
        change: Makes the change, given the tables, the state after the last events, and the error that ended the run.
            It is called again if the transaction is repeated.
        is_made: Whether the change is durable. A cancellation after that has no effect.
    """

    side_tables: tuple[SideTables, ...]
    change: Callable[[Tables, State, BoughError | None], None]
    is_made: bool = False


@dataclass(eq=False)
class WriteBatch:
    """A batch: events that become durable together.

    Attributes:
        mark: The position of the fold before the events.
        done: Completed when the batch is durable, or with the error with which it failed.
        expected_head: The head that the caller expects the log to have; None for any.
        side_change: A change of side tables in the same transaction, after the events.
        is_closed: Whether no more events can be added.
        conditions: Conditions by event id.
        withdrawn: Ids of the events that were not written because their condition was false.
        pieces: Pieces of a response, by the id of the event after which listeners get them.
    """

    writer: Writer
    mark: Mark
    done: asyncio.Future[None]
    expected_head: int | None = None
    side_change: SideChange | None = None
    is_closed: bool = False
    events: list[Event] = field(default_factory=list[Event])
    conditions: dict[UUID, Condition] = field(default_factory=dict[UUID, Condition])
    withdrawn: set[UUID] = field(default_factory=set[UUID])
    pieces: dict[UUID, list[Delta]] = field(default_factory=dict[UUID, "list[Delta]"])

    @property
    def required_head(self) -> int | None:
        """The head that the log must have when the batch is written; None for any."""
        return self.mark.head if self.conditions else self.expected_head
