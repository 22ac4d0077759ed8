"""The result of checking a store: counts, damage and readable ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from bough.errors import CorruptLog


class Census(NamedTuple):
    """A store's counts and the result of the database's own check.

    Attributes:
        events: Number of event rows, reachable or not; None if damage prevents counting them.
        damage: Problems that the database's own check found.
        rows: The conversations with damaged rows.
    """

    events: int | None
    damage: tuple[str, ...] = ()
    rows: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class IntegrityFinding:
    """An inconsistency in a store.

    Attributes:
        conversation: The affected conversation, if any.
        readable: The readable ranges `(lo, hi)` of its own events.
    """

    problem: str
    conversation: UUID | None = None
    readable: tuple[tuple[int, int], ...] = ()


def report_damaged_row(cid: UUID) -> IntegrityFinding:
    """Return the finding for a conversation whose row does not match its checksum."""
    return IntegrityFinding(f"the row of {cid} is damaged", cid)


@dataclass(frozen=True)
class Integrity:
    """The result of a check. The store is consistent if there are no findings."""

    conversations: int
    events: int
    findings: tuple[IntegrityFinding, ...] = field(default=())

    def require(self) -> Integrity:
        """Return self if there are no findings.

        Raises:
            CorruptLog: There are findings; `details` has them, with the readable ranges.
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
    """Return a finding as a JSON object."""
    cid = finding.conversation and str(finding.conversation)
    return {"problem": finding.problem, "conversation": cid, "readable": [list(part) for part in finding.readable]}
