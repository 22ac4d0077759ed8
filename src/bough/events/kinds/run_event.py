"""What interrupts or ends a run."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from bough.events.kinds.event import BaseEvent


class RequestRetried(BaseEvent):
    """A request to the model failed for a while and is repeated; written before the wait.

    Attributes:
        attempt: Which attempt failed, from 1; of `attempts` in all.
        status: HTTP status, where there was one.
        error: What went wrong, in one line.
        model: Which model failed.
        next_model: Which model is asked next; None for the same one.
    """

    kind: Literal["RequestRetried"] = "RequestRetried"
    attempt: int
    attempts: int
    status: int | None = None
    error: str
    wait_seconds: float
    model: str
    next_model: str | None = None


class ErrorRaised(BaseEvent):
    """A run ended in an error."""

    kind: Literal["ErrorRaised"] = "ErrorRaised"
    code: str
    message: str
    hint: str = ""


class PauseRequested(BaseEvent):
    """Someone asked the run to stop at its next step.

    Attributes:
        now: Not at its next step but at once: an interrupt.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["PauseRequested"] = "PauseRequested"
    schema_version: int = 2
    by: str = "user"
    reason: str = ""
    now: bool = False


class LimitReached(BaseEvent):
    """A budget was used up."""

    kind: Literal["LimitReached"] = "LimitReached"
    limit: str
    value: float
    bound: float


class StuckDetected(BaseEvent):
    """The agent repeats itself."""

    kind: Literal["StuckDetected"] = "StuckDetected"
    pattern: str
    events: tuple[UUID, ...] = ()
