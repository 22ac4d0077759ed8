"""State and view of one log, folded together; a fold can go back to where it was marked."""

from __future__ import annotations

from dataclasses import dataclass, field

from bough.conversation.log.state import State
from bough.conversation.log.view import View, ViewMark
from bough.errors import CorruptLog
from bough.events.model import Event


@dataclass(frozen=True)
class Mark:
    """Where a fold was."""

    state: State
    view: ViewMark

    @property
    def head(self) -> int:
        """How many events had been folded."""
        return self.state.head


@dataclass(frozen=True)
class Fold:
    """What a log comes to. `state` and `view` stay the same objects, whatever is folded or taken back."""

    state: State = field(default_factory=State)
    view: View = field(default_factory=View)

    def apply(self, event: Event) -> None:
        """Fold the next event.

        Raises:
            CorruptLog: It does not say what its kind says.
        """
        seq = self.state.head
        try:
            self.state.apply(seq, event)
            self.view.apply(seq, event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLog(
                f"event {event.id} (seq {seq}, {event.kind}) does not say what its kind says: {error!r}",
                hint=f"`bough doctor` checks the whole store; a fork at {seq} goes on without it",
            ) from error

    def mark(self) -> Mark:
        """Return where the fold is now. O(1) but for the calls and skills of the latest response."""
        return Mark(self.state.copy(), self.view.mark())

    def back_to(self, mark: Mark) -> None:
        """Take back what was folded since `mark`."""
        vars(self.state).update(vars(mark.state.copy()))
        self.view.back_to(mark.view)

    def copy(self) -> Fold:
        """Return a fold that goes on by itself."""
        return Fold(self.state.copy(), self.view.copy())
