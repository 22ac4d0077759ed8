"""Events that interrupt or end a run."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from bough.events.kinds.event import BaseEvent


class RequestRetried(BaseEvent):
    """A request to the model failed temporarily and will be repeated. Written before the wait.

    Attributes:
        attempt: Number of the failed attempt, from 1, out of `attempts`.
        status: HTTP status, if any.
        error: The error in one line.
        model: The model that failed.
        next_model: The model that is tried next; None for the same one.
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
    """A request to stop the run at its next step.

    Attributes:
        now: Stop at once instead: an interrupt.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["PauseRequested"] = "PauseRequested"
    schema_version: int = 2
    by: str = "user"
    reason: str = ""
    now: bool = False


class LimitReached(BaseEvent):
    """A limit was reached."""

    kind: Literal["LimitReached"] = "LimitReached"
    limit: str
    value: float
    bound: float


class StuckDetected(BaseEvent):
    """The agent repeats itself."""

    kind: Literal["StuckDetected"] = "StuckDetected"
    pattern: str
    events: tuple[UUID, ...] = ()
