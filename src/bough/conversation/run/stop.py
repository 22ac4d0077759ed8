"""Why a run is being stopped, said before it is cancelled."""

from __future__ import annotations

from typing import Literal, TypeAlias

StopReason: TypeAlias = Literal["interrupt", "hand_back", "fenced"]
"""`interrupt`: a person wants it to end; `hand_back`: another worker goes on; `fenced`: another one does already."""


class StopNote:
    """Shared by a run and what records it.

    Attributes:
        reason: None where nobody said one: the same as `interrupt`.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None

    @property
    def leaves_calls_open(self) -> bool:
        """Whether calls under way stay open for whoever goes on, instead of being closed as interrupted."""
        return self.reason in ("hand_back", "fenced")
