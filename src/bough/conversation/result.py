"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from bough.events.model import Usage
from bough.events.record import Status

T = TypeVar("T", default=Any)


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[T]):
    """The end of a run of an agent that answers with `T`.

    Attributes:
        output: The model's last answer; empty where the run stopped before one.
        data: The validated value of the agent's `output_type`; None where the run gave none, or it answers with text.
        steps: Model requests and tool rounds of this run.
        start: Seq of the first event of this run; `stop`: seq after its last one.
        limit: The bound that ended the run, where one did.
        usage: Of this conversation since it was started or forked.
    """

    status: Status
    output: str
    steps: int
    start: int
    stop: int
    usage: Usage
    limit: str | None = None
    data: T | None = None
