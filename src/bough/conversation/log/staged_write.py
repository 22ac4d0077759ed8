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
    """A source of staged events. A run's events depend on its earlier ones: after one failure all of them fail.

    Attributes:
        generation: The generation of a run's lease; None for other writers, whose appends are independent.
        failure: Why an earlier event of a run could not be written.
    """

    generation: int | None = None
    failure: BaseException | None = None


Condition = Callable[[], bool]
"""Evaluated on the fold right before an event: may the event be written there? Must not have side effects."""

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
class Also:
    """A change of side tables, made after the events of its batch with the state that they result in.

    Attributes:
        made: Called once the change is durable.
    """

    side_tables: tuple[SideTables, ...]
    change: Callable[[Tables, State], None]
    made: Callable[[], None]


@dataclass(eq=False)
class Ending:
    """A change of side tables that is made with the last events of a run, or not at all.

    Attributes:
        side_tables: Whose tables it changes.
        change: A pure function of the tables, the state including the last events, and the error that ended the run.
            Called after the last events were appended.
        is_made: Whether the change is durable. A cancellation after that has no effect.
    """

    side_tables: tuple[SideTables, ...]
    change: Callable[[Tables, State, BoughError | None], None]
    is_made: bool = False


@dataclass(eq=False)
class Write:
    """A batch: events that become durable together.

    Attributes:
        mark: The fold before them.
        also: A change of side tables in the same transaction, after the events.
        full: Whether no more events can be added.
        conditions: Conditions by event id.
        withdrawn: Ids of the events that were not written because their condition was false.
        pieces: Pieces of a response, by the id of the event that listeners get before them.
    """

    writer: Writer
    mark: Mark
    done: asyncio.Future[None]
    expected_head: int | None = None
    also: Also | None = None
    full: bool = False
    events: list[Event] = field(default_factory=list[Event])
    conditions: dict[UUID, Condition] = field(default_factory=dict[UUID, Condition])
    withdrawn: set[UUID] = field(default_factory=set[UUID])
    pieces: dict[UUID, list[Delta]] = field(default_factory=dict[UUID, "list[Delta]"])

    @property
    def expects(self) -> int | None:
        """The head that the log must have for the batch to be written; None for any."""
        return self.mark.head if self.conditions else self.expected_head
