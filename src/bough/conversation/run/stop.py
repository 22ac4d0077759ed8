"""Why a run is being stopped, said before it is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

StopReason: TypeAlias = Literal["interrupt", "hand_back", "fenced"]
"""`interrupt`: a person wants it to end; `hand_back`: another worker continues; `fenced`: another one does already."""


class StopNote:
    """Shared by a run and what records it.

    Attributes:
        reason: None where nobody said one: the same as `interrupt`.
        on_hand_back: Set: the run ends before its next request, so that another worker continues; called when it does.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.on_hand_back: Callable[[], None] | None = None

    def hands_back(self) -> bool:
        """Whether the run ends here because it is to be handed back; whoever asked for that is told."""
        if self.on_hand_back is None:
            return False
        self.on_hand_back()
        return True

    @property
    def leaves_calls_open(self) -> bool:
        """Whether calls under way stay open for the process that continues, instead of being closed as interrupted."""
        return self.reason in ("hand_back", "fenced")
