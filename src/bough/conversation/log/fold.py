"""State and view of one log, folded together; a fold can go back to where it was marked."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from bough.conversation.log.state import State, refuse_stored_message
from bough.errors import BoughError, CorruptLog
from bough.events.model import Event, MessageStored
from bough.events.record import StoredEvent

if TYPE_CHECKING:
    from bough.conversation.log.view import View, ViewMark

STEP = 128
"""At each multiple of so many events a fold keeps its state."""

_MOST_KEPT = 1024

TURN_SECONDS = 0.005
"""How long decoding may block the event loop."""

LOOK_EVENTS = 16
LOOK_BYTES = 256 << 10
"""How many events or bytes are decoded between two looks at the clock. A larger event is decoded in a thread."""


@dataclass(frozen=True)
class Mark:
    """Where a fold was.

    Attributes:
        view: None where nothing was rendered there.
    """

    state: State
    view: ViewMark | None = None

    @property
    def head(self) -> int:
        """How many events had been folded."""
        return self.state.head


class Fold:
    """What a log comes to. `state` stays the same object, whatever is folded or taken back.

    Attributes:
        view: What the model is shown; None until it is rendered. It grows with the log from then on.
        kept: Its state at the first event at or beyond each multiple of `STEP` that fits, oldest first. They are not
            changed any more. The last ones may lie beyond what is durable.
    """

    def __init__(self, state: State | None = None, view: View | None = None) -> None:
        self.state = state or State()
        self.view = view
        self.kept: list[State] = []
        self._from = self.state.head

    @classmethod
    def at(cls, mark: Mark) -> Fold:
        """Return a fold that continues from a mark by itself. O(messages shown)."""
        return cls(mark.state.copy(), None if mark.view is None else mark.view.restore())

    def apply(self, event: Event) -> None:
        """Fold the next event.

        Raises:
            CorruptLog: It does not match its kind.
            InvalidInput: The log is kept for another program.
        """
        seq = self.state.head
        try:
            if isinstance(event, MessageStored):
                raise refuse_stored_message()
            self.state.apply(seq, event)
            if self.view is not None:
                self.view.apply(seq, event)
        except BoughError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLog(
                f"event {event.id} (seq {seq}, {event.kind}) does not match its kind: {error!r}",
                hint=f"`bough doctor` checks the whole store; a fork at {seq} continues without it",
            ) from error
        if self.state.head >= self._next_kept and fits(self.state):
            self._keep(self.state.copy())

    def mark(self) -> Mark:
        """Return where the fold is now. O(1) but for the calls and skills of the latest response."""
        return Mark(self.state.copy(), None if self.view is None else self.view.mark())

    def back_to(self, mark: Mark) -> None:
        """Take back what was folded since `mark`."""
        vars(self.state).update(vars(mark.state.copy()))
        del self.kept[self._count_kept(mark.head) :]
        if self.view is not None and mark.view is not None:
            self.view.back_to(mark.view)
        else:
            self.view = None

    def become(self, other: Fold) -> None:
        """Take over what another fold of this log came to; it is not used any more."""
        vars(self.state).update(vars(other.state))
        del self.kept[self._count_kept(other.state.head) :]
        for state in other.kept:
            if state.head >= self._next_kept:
                self._keep(state)
        self.view = other.view

    def jump(self, state: State) -> None:
        """Continue from a state of this log that was kept; what is shown is rendered again when it is asked for."""
        vars(self.state).update(vars(state.copy()))
        self.view = None
        if state.head >= self._next_kept:
            self._keep(state)
        self._from = max(self._from, state.head)

    def nearest(self, head: int) -> State | None:
        """Return the latest kept state of at most `head` events."""
        count = self._count_kept(head)
        return self.kept[count - 1] if count else None

    def nearest_before_turn(self, turns: int) -> State | None:
        """Return the latest kept state before which at most `turns` turns had begun."""
        count = bisect_right(self.kept, turns, key=lambda state: state.turns)
        return self.kept[count - 1] if count else None

    def copy(self) -> Fold:
        """Return a fold that continues by itself."""
        new = Fold(self.state.copy(), None if self.view is None else self.view.copy())
        new.kept, new._from = list(self.kept), self._from
        return new

    @property
    def _next_kept(self) -> int:
        latest = self.kept[-1].head if self.kept else self._from
        return (latest // STEP + 1) * STEP

    def _count_kept(self, head: int) -> int:
        return bisect_right(self.kept, head, key=lambda state: state.head)

    def _keep(self, state: State) -> None:
        self.kept.append(state)
        if len(self.kept) > _MOST_KEPT:
            del self.kept[: _MOST_KEPT - 1 : 2]


def fits(state: State) -> bool:
    """Whether a state is kept: results of calls, which may be large, are in none."""
    return all(call.outcome is None for call in state.calls.values())


class YieldingDecoder:
    """Decodes events one at a time and yields to the event loop every few milliseconds."""

    def __init__(self) -> None:
        self._since = monotonic()
        self._events = 0
        self._bytes = 0

    async def decode(self, stored: StoredEvent) -> Event:
        """Return the typed event.

        Raises:
            CorruptLog: The payload does not match its kind.
        """
        size = len(stored.raw)
        self._events, self._bytes = self._events + 1, self._bytes + size
        if self._events > LOOK_EVENTS or self._bytes > LOOK_BYTES:
            self._events, self._bytes = 1, size
            if monotonic() - self._since >= TURN_SECONDS:
                await asyncio.sleep(0)
                self._since = monotonic()
        if size > LOOK_BYTES:
            return await asyncio.to_thread(lambda: stored.event)
        return stored.event
