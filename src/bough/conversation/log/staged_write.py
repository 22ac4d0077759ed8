"""What is on its way into a log: who stages it, what becomes durable together, and under which conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from bough.conversation.log.fold import Mark
from bough.conversation.log.listeners import Delta
from bough.conversation.log.state import State
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
    from bough.events.beside import Beside, Tables


@dataclass(eq=False)
class Writer:
    """One who stages events. What a run stages depends on what it staged before: after one failure all of it fails.

    Attributes:
        generation: Of a run's lease; None for everyone else, whose appends do not depend on one another.
    """

    generation: int | None = None
    failure: BaseException | None = None


Condition = Callable[[], bool]
"""Asked of the fold as it is right before an event: may the event still be written there? Has no effects."""

_CONTROLLING = frozenset({"policies", "agent", "instructions", "approved", "edited", "waiting", "adopted"})
"""Keys of `StateChanged` that say under which rules a call runs, or whether it does."""


def is_control(event: Event) -> bool:
    """Whether an event changes under which rules calls run, or decides one, or asks the run to stop."""
    match event:
        case StateChanged():
            return not _CONTROLLING.isdisjoint(event.changes)
        case PauseRequested() | ToolRejected() | ToolReturned() | ToolFailed() | ToolInterrupted():
            return True
        case _:
            return False


@dataclass(frozen=True)
class Also:
    """A change of tables beside the log, made behind the events and with the fold as they leave it.

    Attributes:
        made: Called once it is durable.
    """

    beside: tuple[Beside, ...]
    change: Callable[[Tables, State], None]
    made: Callable[[], None]


@dataclass(eq=False)
class Ending:
    """A change that is made with the last events of a run, or not at all.

    Attributes:
        beside: Whose tables it changes.
        change: A pure function of the tables, the state with those last events, and the error that ended the run. The
            run's last events are appended before it is called.
        is_made: Whether it is durable: a cancellation that comes with the last write changes nothing any more.
    """

    beside: tuple[Beside, ...]
    change: Callable[[Tables, State, BoughError | None], None]
    is_made: bool = False


@dataclass(eq=False)
class Write:
    """Events that become durable together.

    Attributes:
        mark: The fold before them.
        also: What is changed beside the log in the same transaction, after the events.
        full: Whether nothing can be added any more.
        conditions: By event id, of the events that are written only while their condition holds.
        withdrawn: Ids of the events that are not written, because theirs did not.
        pieces: Of a response, by the event behind which listeners get them.
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
        """The head that the log must have for the batch to be written; None where any will do."""
        return self.mark.head if self.conditions else self.expected_head
