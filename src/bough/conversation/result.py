"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass

from bough.events.model import Usage
from bough.events.record import Status


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The end of a run.

    Attributes:
        output: The model's last answer; empty where the run stopped before one.
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
