"""Selects the metrics that apply to a case, and their thresholds."""

from __future__ import annotations

from collections.abc import Mapping

from bough.evals.case import CaseInput
from bough.evals.metrics.assertions import mechanical_checks
from bough.evals.metrics.deterministic import QUERY_TOOLS, SCHEMA_TOOLS
from bough.evals.score import THRESHOLDS
from bough.evals.trace import canonical_tool


def thresholds_for(
    case: CaseInput, metrics: Mapping[str, float | None] | None = None, *, judged: bool = True
) -> dict[str, float | None]:
    """Return the thresholds of a case by metric; a metric with None is reported without a threshold.

    Args:
        metrics: Thresholds of the caller, which override those of the case.
        judged: False omits metrics that need a judge.
    """
    thresholds: dict[str, float | None] = {}
    tools = {canonical_tool(use.name) for use in case.tool_uses}
    if tools:
        thresholds["tool_invocation_score"] = THRESHOLDS["tool_invocation_score"]
        thresholds["tool_args_score"] = THRESHOLDS["tool_args_score"]
        thresholds["tool_usage_score"] = None
    if case.all_rubrics and judged:
        thresholds["instruction_adherence_score"] = THRESHOLDS["instruction_adherence_score"]
    if case.reference is not None:
        thresholds["output_correctness_score"] = None
    if case.setup == "data" and tools & SCHEMA_TOOLS and tools & QUERY_TOOLS:
        thresholds["schema_discovery_score"] = THRESHOLDS["schema_discovery_score"]
    if case.setup == "skill":
        thresholds["skill_discovery_score"] = None
    decidable_checks = case.checks if judged else mechanical_checks(case.checks)
    if decidable_checks:
        thresholds["assertions"] = THRESHOLDS["assertions"]
    if case.should_trigger is not None:
        thresholds["trigger_score"] = THRESHOLDS["trigger_score"]
    thresholds |= dict.fromkeys(("no_tool_errors", "steps", "cost_usd", "duration_seconds"))
    thresholds |= dict(case.expect)
    thresholds |= dict(metrics or {})
    if not judged:
        # Removed last, because the thresholds of case and caller may contain it.
        thresholds.pop("instruction_adherence_score", None)
    return thresholds


def count_judge_statements(case: CaseInput, metrics: Mapping[str, float | None] | None = None) -> int:
    """Return the number of rubrics and assertions of a case that only a judge can decide."""
    rubrics = len(case.all_rubrics) if "instruction_adherence_score" in thresholds_for(case, metrics) else 0
    return rubrics + len(case.checks) - len(mechanical_checks(case.checks))
