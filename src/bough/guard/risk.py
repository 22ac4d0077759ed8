"""The risk of a tool call, and the findings that justify it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.events.model import UsageAdded


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


class Risk(Enum):
    """LOW < MEDIUM < HIGH. Comparing UNKNOWN raises `TypeError`. The values are recorded in events."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    UNKNOWN = "UNKNOWN"

    def __lt__(self, other: Risk) -> bool:
        return _rank(self) < _rank(other)

    def __le__(self, other: Risk) -> bool:
        return _rank(self) <= _rank(other)

    def __gt__(self, other: Risk) -> bool:
        return _rank(self) > _rank(other)

    def __ge__(self, other: Risk) -> bool:
        return _rank(self) >= _rank(other)


def _rank(risk: Risk) -> int:
    if risk is Risk.UNKNOWN:
        raise TypeError("an unknown risk cannot be compared; check `risk is Risk.UNKNOWN` first")
    return (Risk.LOW, Risk.MEDIUM, Risk.HIGH).index(risk)


@dataclass(frozen=True)
class RiskFinding:
    """One reason for a risk. `reason` is a sentence for people and contains no secret."""

    risk: Risk
    reason: str


# UNKNOWN is above MEDIUM, because the effects of such a call are not limited.
_SEVERITY = (Risk.HIGH, Risk.UNKNOWN, Risk.MEDIUM, Risk.LOW)


@dataclass(frozen=True)
class Assessment:
    """The findings of an analyzer about one tool call. Without findings, the risk is UNKNOWN.

    Attributes:
        findings: Most severe first, without duplicates.
        spent: Usage of models that the analyzer called; recorded whatever the decision.
    """

    findings: tuple[RiskFinding, ...] = ()
    spent: tuple[UsageAdded, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, risk: Risk, *reasons: str) -> Assessment:
        """Return an assessment with one risk, for any number of reasons."""
        return cls(tuple(RiskFinding(risk, reason) for reason in reasons or ("",)))

    @classmethod
    def collect(cls, findings: Iterable[RiskFinding], *, spent: tuple[UsageAdded, ...] = ()) -> Assessment:
        """Return the assessment of these findings, sorted and without duplicates."""
        distinct = dict.fromkeys(findings)
        return cls(tuple(sorted(distinct, key=lambda finding: _SEVERITY.index(finding.risk))), spent)

    def or_unknown(self) -> Assessment:
        """Return this assessment, with an UNKNOWN finding if it has no findings."""
        return self if self.findings else replace(self, findings=(RiskFinding(Risk.UNKNOWN, ""),))

    @property
    def risk(self) -> Risk:
        """The most severe risk found: HIGH, then UNKNOWN, then MEDIUM, then LOW."""
        return min((finding.risk for finding in self.findings), key=_SEVERITY.index, default=Risk.UNKNOWN)

    @property
    def risks(self) -> frozenset[Risk]:
        """All risks found. A policy checks each, so that no risk hides a lower one that needs confirmation."""
        return frozenset(finding.risk for finding in self.findings) or frozenset({Risk.UNKNOWN})

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the most severe risk."""
        return tuple(finding.reason for finding in self.findings if finding.risk is self.risk and finding.reason)
