"""What else the last write of a run changes: rows beside the log, in the transaction of the events that end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bough.conversation.log.state import State
from bough.errors import BoughError

if TYPE_CHECKING:
    from bough.events.beside import Beside, Tables


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
