"""What looking at a whole store finds: counts, damage, and what can still be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from bough.errors import CorruptLog


class Census(NamedTuple):
    """What a store says of itself.

    Attributes:
        events: How many event rows there are, reachable or not; None where damage keeps them from being counted.
        damage: What the database's own check found.
        rows: The conversations whose rows are not what was written.
    """

    events: int | None
    damage: tuple[str, ...] = ()
    rows: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class IntegrityFinding:
    """Something that does not add up.

    Attributes:
        conversation: Whose, where it is somebody's.
        readable: The ranges `(lo, hi)` of its own events that can be read.
    """

    problem: str
    conversation: UUID | None = None
    readable: tuple[tuple[int, int], ...] = ()


def report_damaged_row(cid: UUID) -> IntegrityFinding:
    """Return what is said of a conversation whose row is not what its digest says."""
    return IntegrityFinding(f"the row of {cid} is damaged", cid)


@dataclass(frozen=True)
class Integrity:
    """The result of a check; clean when there are no findings."""

    conversations: int
    events: int
    findings: tuple[IntegrityFinding, ...] = field(default=())

    def require(self) -> Integrity:
        """Return itself when it is clean.

        Raises:
            CorruptLog: It is not; `details` has the findings, and what is readable.
        """
        if not self.findings:
            return self
        first, more = self.findings[0], len(self.findings) - 1
        raise CorruptLog(
            f"the store is inconsistent: {first.problem}" + (f" (and {more} more)" if more else ""),
            hint="`bough conv export --salvage` writes what is readable",
            details={"findings": [as_details(finding) for finding in self.findings]},
        )


def as_details(finding: IntegrityFinding) -> dict[str, object]:
    """Return a finding as JSON."""
    cid = finding.conversation and str(finding.conversation)
    return {"problem": finding.problem, "conversation": cid, "readable": [list(part) for part in finding.readable]}
