"""Risks: their order, and that an unknown one is never taken for a low one."""

from __future__ import annotations

import operator

import pytest

from bough.events.model import ToolCalled
from bough.guard import Assessment, Risk, RiskFinding


def test_risks_are_ordered() -> None:
    assert Risk.LOW < Risk.MEDIUM < Risk.HIGH
    assert max(Risk.LOW, Risk.HIGH, Risk.MEDIUM) is Risk.HIGH


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", list(Risk))
def test_unknown_refuses_to_be_compared(compare: object, other: Risk) -> None:
    """`risk >= HIGH` on an unknown risk would quietly be False: the call would run."""
    with pytest.raises(TypeError, match="unknown"):
        compare(Risk.UNKNOWN, other)  # type: ignore[operator]
    with pytest.raises(TypeError, match="unknown"):
        compare(other, Risk.UNKNOWN)  # type: ignore[operator]


def test_values_are_the_words_in_events() -> None:
    for risk in Risk:
        assert ToolCalled(tool_call_id="1", tool="t", risk=risk.value).risk == risk.value


def test_the_most_severe_finding_decides_and_none_is_forgotten() -> None:
    low, medium = RiskFinding(Risk.LOW, "l"), RiskFinding(Risk.MEDIUM, "m")
    unknown, high = RiskFinding(Risk.UNKNOWN, "u"), RiskFinding(Risk.HIGH, "h")
    found = Assessment.collect([low, medium, unknown, high, high])
    assert (found.risk, found.reasons) == (Risk.HIGH, ("h",))
    assert found.risks == set(Risk)
    assert len(found.findings) == 4, "each finding once"
    assert Assessment.collect([medium, unknown]).risk is Risk.UNKNOWN


def test_no_finding_is_unknown() -> None:
    assert Assessment().risk is Risk.UNKNOWN
    assert Assessment().risks == {Risk.UNKNOWN}
    assert Assessment.of(Risk.LOW).risk is Risk.LOW
