"""The plan of a run: which attempts at which cases, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from uuid import UUID

from bough.evals.case import SetCase
from bough.evals.converse import conversation_id


@dataclass(frozen=True, kw_only=True)
class PlannedAttempt:
    """One attempt at a case.

    Attributes:
        number: From 1; numbers above the run's `repeat` are retries of attempts that ended in an error.
        side: The compared side, for example `with_skill`; empty without sides.
    """

    run: str
    case: SetCase
    number: int = 1
    side: str = ""

    @property
    def name(self) -> str:
        """The name of the attempt in reports and as a pydantic-evals case."""
        return f"{self.case.id}{f'@{self.side}' if self.side else ''}#{self.number}"

    @property
    def conversation(self) -> UUID:
        """The id of the attempt's conversation, derived from run, case, number and side."""
        return attempt_conversation(self.run, self.case.id, self.number, self.side)

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the attempt's conversation."""
        tags = {"eval.run": self.run, "eval.case": self.case.id[:200], "eval.attempt": str(self.number)}
        return tags | ({"eval.side": self.side} if self.side else {}) | {"eval.role": "attempt"}


def attempt_conversation(run: str, case: str, number: int, side: str = "") -> UUID:
    """Return the id of the conversation of an attempt."""
    return conversation_id("attempt", run, case, number, side)


def choose_cases(cases: Sequence[SetCase], *, filter: str | None = None, limit: int | None = None) -> list[SetCase]:
    """Return the first `limit` cases whose id matches the pattern `filter`; None matches all, or has no limit."""
    chosen = [case for case in cases if filter is None or fnmatchcase(case.id, filter)]
    return chosen if limit is None else chosen[:limit]


def plan_attempts(
    run: str, cases: Sequence[SetCase], *, repeat: int = 1, sides: Sequence[str] = ("",)
) -> Iterator[PlannedAttempt]:
    """Yield the attempts in rounds: every case once, then every case a second time."""
    for number in range(1, repeat + 1):
        for case in cases:
            for side in sides:
                yield PlannedAttempt(run=run, case=case, number=number, side=side)
