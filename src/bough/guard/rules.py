"""The rules that decide whether a tool call runs, waits for a person or is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from bough.guard.allow import AllowList
from bough.guard.analyzer import SecurityAnalyzer
from bough.guard.confirmation_policy import AlwaysConfirm, NeverConfirm, Policy, narrower
from bough.guard.hooks import HookSet
from bough.guard.request import ToolRequest
from bough.guard.risk import Assessment, Risk
from bough.types import JsonObject


@dataclass(frozen=True, kw_only=True)
class CallRules:
    """The rules that a `Guard` applies to every tool call.

    Attributes:
        policy: Which calls wait for a person.
        analyzer: Rates the risk of a call. Without one, every risk is UNKNOWN to the policy.
        hooks: Commands and functions that are asked about a call.
        allow_list: Which calls may be made at all; all calls if it has no lists.
    """

    policy: Policy = field(default_factory=NeverConfirm)
    analyzer: SecurityAnalyzer | None = None
    hooks: HookSet = field(default_factory=HookSet)
    allow_list: AllowList = field(default_factory=AllowList)

    def narrow(self, other: CallRules) -> Self:
        """Return these rules with everything that `other` forbids forbidden as well.

        Two different analyzers are both asked. If only one side has an analyzer and the other confirms calls of
        unknown risk, every call is confirmed.
        """
        return replace(
            self,
            policy=_narrow_policy(self, other),
            analyzer=_combine(self.analyzer, other.analyzer),
            hooks=self.hooks.narrow(other.hooks),
            allow_list=self.allow_list.narrow(other.allow_list),
        )

    def to_json(self) -> JsonObject:
        """Return the rules as a log records them."""
        return {
            "policy": self.policy.to_json(),
            "analyzer": None if self.analyzer is None else self.analyzer.to_json(),
            "hooks": self.hooks.to_json(),
            "allow_list": self.allow_list.to_json(),
        }


@dataclass(frozen=True)
class BothAnalyzers:
    """Asks two analyzers, one after the other; all findings of both count."""

    first: SecurityAnalyzer
    second: SecurityAnalyzer

    @property
    def outside(self) -> bool:
        """Whether one of them reaches outside of this process."""
        return any(getattr(analyzer, "outside", True) for analyzer in (self.first, self.second))

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the findings of both; an analyzer without findings adds an UNKNOWN one."""
        assessments = [(await analyzer.analyze(call)).or_unknown() for analyzer in (self.first, self.second)]
        return Assessment.collect(
            (finding for assessment in assessments for finding in assessment.findings),
            spent=tuple(event for assessment in assessments for event in assessment.spent),
        )

    def to_json(self) -> JsonObject:
        """Return the records of both."""
        return {"kind": "BothAnalyzers", "analyzers": [self.first.to_json(), self.second.to_json()]}


def _narrow_policy(a: CallRules, b: CallRules) -> Policy:
    # Without an analyzer every risk is UNKNOWN. If `narrower` alone decided, the analyzer of the other side would rate
    # calls LOW that the side without one used to confirm.
    without_analyzer = [rules for rules in (a, b) if rules.analyzer is None]
    if len(without_analyzer) == 1 and without_analyzer[0].policy.needs_confirmation(Risk.UNKNOWN):
        return AlwaysConfirm()
    return narrower(a.policy, b.policy)


def _combine(a: SecurityAnalyzer | None, b: SecurityAnalyzer | None) -> SecurityAnalyzer | None:
    if a is None or b is None:
        return a or b
    # Compared by record: a reopened conversation has its own object of the same analyzer, and must not ask both.
    return a if a is b or a.to_json() == b.to_json() else BothAnalyzers(a, b)
