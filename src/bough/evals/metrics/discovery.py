"""Metrics of finding out before doing: tables before queries, skills before work, and whether a skill comes into use.

Source: seed 003 (`schema_discovery_score`); Agent Skills documentation, optimizing descriptions (trigger rate).
"""

from __future__ import annotations

from collections.abc import Sequence

from bough.evals.aliases import canonical_arguments, canonical_tool
from bough.evals.score import THRESHOLDS, Score, at_least
from bough.evals.trace import Trace

SCHEMA_TOOLS = frozenset({"list_dataset_ids", "list_table_ids", "get_dataset_info", "get_table_info"})
QUERY_TOOLS = frozenset({"execute_sql", "forecast", "detect_anomalies", "analyze_contribution", "cluster_data"})
_LOOKUPS = ("list_skills", "search_skills")
_USES = ("load_skill", "load_skill_resource", "run_skill_script")


def schema_discovery_score(trace: Trace, *, threshold: float | None = THRESHOLDS["schema_discovery_score"]) -> Score:
    """Score 1 when a schema tool succeeded before the first query, or succeeded and nothing was queried; else 0."""
    name = "schema_discovery_score"
    for call in trace.calls:
        tool = canonical_tool(call.tool)
        if tool in QUERY_TOOLS:
            return at_least(name, 0.0, threshold, f"{tool} was called before any schema tool succeeded")
        if tool in SCHEMA_TOOLS and call.has_succeeded:
            return at_least(name, 1.0, threshold, f"{tool} succeeded first")
    return at_least(name, 0.0, threshold, "no schema tool succeeded")


def skill_discovery_score(
    trace: Trace, skill: str | None = None, *, threshold: float | None = THRESHOLDS["skill_discovery_score"]
) -> Score:
    """Score 1 when a skill came into use, 0.5 when skills were only looked up, else 0.

    Args:
        skill: The one that counts; None: any.
    """
    name = "skill_discovery_score"
    if activated := [each for each in trace.skills if skill in (None, each)]:
        return at_least(name, 1.0, threshold, f"{activated[0]} came into use")
    for call in trace.calls_by_tool.get("load_skill", ()):
        loaded = canonical_arguments("load_skill", call.arguments).get("skill_name")
        if call.has_succeeded and skill in (None, loaded):
            return at_least(name, 1.0, threshold, f"{loaded} was loaded")
    if any(call.has_succeeded for tool in _LOOKUPS for call in trace.calls_by_tool.get(tool, ())):
        return at_least(name, 0.5, threshold, "skills were looked up, none was loaded")
    return at_least(name, 0.0, threshold, "no skill was looked up or loaded")


def uses_skill(trace: Trace, skill: str) -> bool:
    """Whether a skill came into use: it was activated or loaded, or a script or file of it was used."""
    if skill in trace.skills or any(script.skill == skill for script in trace.scripts):
        return True
    return any(
        call.has_succeeded and canonical_arguments(tool, call.arguments).get("skill_name") == skill
        for tool in _USES
        for call in trace.calls_by_tool.get(tool, ())
    )


def trigger_score(
    traces: Sequence[Trace | None],
    skill: str,
    should_trigger: bool,
    *,
    threshold: float | None = THRESHOLDS["trigger_score"],
) -> Score:
    """Score the share of runs in which the skill came into use, or did not where it should not; passes above 0.5.

    Args:
        traces: One for each run; None for a run that failed, which counts against the case.
    """
    name = "trigger_score"
    if not traces:
        return Score(name, 0.0, None if threshold is None else False, "there are no runs", threshold, error=True)
    used = sum(trace is not None and uses_skill(trace, skill) for trace in traces)
    failed = sum(trace is None for trace in traces)
    right = used if should_trigger else len(traces) - used - failed
    value = right / len(traces)
    reason = f"{skill} came into use in {used} of {len(traces)} runs" + (f", {failed} failed" if failed else "")
    return Score(name, round(value, 6), None if threshold is None else value > threshold, reason, threshold)
