"""Metrics of a trace: tool calls, discovery, answer, steps, cost, time. Pure functions that never raise.

Source: ADK pull request 4575 (`tool_invocation_score`, `tool_args_score`, `schema_discovery_score`); Agent Skills
documentation, optimizing descriptions (trigger rate).
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from posixpath import normpath

from bough.evals import score
from bough.evals.case import ToolUse
from bough.evals.score import THRESHOLDS, Score, at_least
from bough.evals.trace import Trace, canonical_arguments, canonical_tool
from bough.types import Json

FREE_TEXT = frozenset({
    "answer", "body", "code", "command", "comment", "content", "description", "goal", "history_data", "input",
    "input_data", "instruction", "instructions", "message", "new_text", "old_text", "prompt", "query", "question",
    "reason", "sql", "subject", "summary", "target_data", "task", "text", "thought", "title",
})  # fmt: skip
"""Names of arguments whose values are free text, which is not compared because many texts are equally right."""

_MAX_COMPARED_WORDS = 8
"""A text with more words, or with several lines, is free text under any name."""

MAX_ORDERED = 256
"""Maximum number of expected calls that `order` compares."""

_PATH_ARGUMENTS = frozenset({"path", "script_path"})
_ComparedArgument = tuple[str, str, str]
"""(tool, argument, value) in canonical form."""


def tool_invocation_score(
    trace: Trace, expected: Sequence[ToolUse], *, threshold: float | None = THRESHOLDS["tool_invocation_score"]
) -> Score:
    """Score the share of distinct expected tools that were called; 1 if none is expected."""
    names = dict.fromkeys(canonical_tool(use.name) for use in expected)
    if not names:
        return at_least("tool_invocation_score", 1.0, threshold, "no tool is expected")
    missing = [name for name in names if name not in trace.calls_by_tool]
    reason = f"not called: {', '.join(missing)}" if missing else f"all {len(names)} expected tools were called"
    return at_least("tool_invocation_score", 1 - len(missing) / len(names), threshold, reason)


def tool_args_score(
    trace: Trace,
    expected: Sequence[ToolUse],
    keys: Collection[str] | None = None,
    *,
    also: Collection[str] = (),
    threshold: float | None = THRESHOLDS["tool_args_score"],
) -> Score:
    """Score the share of distinct expected (tool, argument, value) that occur in calls of the tool.

    Arguments of one expected call may occur in different calls. Values are equal as JSON, or as text for scalars; paths
    are normalised. Every expected argument is compared except free text: the names in `FREE_TEXT`, texts of several
    lines and texts of more than eight words. The reason names what was not compared.

    Args:
        keys: Compare only these arguments, even if they are free text.
        also: Compare these arguments in addition, even if they are free text.
    """
    compared: dict[_ComparedArgument, None] = {}
    skipped: dict[str, None] = {}
    for use in expected:
        tool = canonical_tool(use.name)
        for key, value in canonical_arguments(tool, use.args).items():
            is_compared = not is_free_text(key, value) if keys is None else key in keys
            if is_compared or key in also:
                compared[tool, key, _comparison_text(key, value)] = None
            else:
                skipped[f"{tool}({key})"] = None
    note = f"; not compared: {', '.join(skipped)}" if skipped else ""
    if not compared:
        return at_least("tool_args_score", 1.0, threshold, f"the expected calls have no arguments to compare{note}")
    actual = {
        (tool, key, _comparison_text(key, value))
        for tool in {tool for tool, _, _ in compared}
        for call in trace.calls_by_tool.get(tool, ())
        for key, value in canonical_arguments(tool, call.arguments).items()
    }
    missing = [f"{tool}({key}={value})" for tool, key, value in compared if (tool, key, value) not in actual]
    reason = f"not passed: {', '.join(missing)}" if missing else f"all {len(compared)} expected arguments were passed"
    return at_least("tool_args_score", 1 - len(missing) / len(compared), threshold, reason + note)


def is_free_text(key: str, value: Json) -> bool:
    """Return whether an expected argument is free text, which `tool_args_score` does not compare."""
    if not isinstance(value, str):
        return False
    return key in FREE_TEXT or "\n" in value.strip() or len(value.split()) > _MAX_COMPARED_WORDS


def tool_usage_score(
    trace: Trace, expected: Sequence[ToolUse], *, threshold: float | None = THRESHOLDS["tool_usage_score"]
) -> Score:
    """Score the share of expected calls that were made, counting repetitions, in any order."""
    expected_counts = Counter(canonical_tool(use.name) for use in expected)
    if not expected_counts:
        return at_least("tool_usage_score", 1.0, threshold, "no tool is expected")
    call_counts = {name: len(trace.calls_by_tool.get(name, ())) for name in expected_counts}
    matching = sum(min(count, call_counts[name]) for name, count in expected_counts.items())
    total = expected_counts.total()
    shortfalls = [
        f"{name} {call_counts[name]} of {count}" for name, count in expected_counts.items() if call_counts[name] < count
    ]
    reason = f"called too rarely: {', '.join(shortfalls)}" if shortfalls else f"all {total} expected calls were made"
    return at_least("tool_usage_score", matching / total, threshold, reason)


def order(trace: Trace, expected: Sequence[ToolUse], *, threshold: float | None = THRESHOLDS["order"]) -> Score:
    """Score the longest subsequence of the expected calls that was made in this order; other calls are ignored.

    O(calls), with at most 256 expected calls.
    """
    expected_tools = [canonical_tool(use.name) for use in expected[:MAX_ORDERED]]
    if not expected_tools:
        return at_least("order", 1.0, threshold, "no tool is expected")
    expected_names = set(expected_tools)
    all_called_tools = [canonical_tool(call.tool) for call in trace.calls]
    called_tools = [tool for tool in all_called_tools if tool in expected_names]
    matched_count = _longest_common_subsequence(expected_tools, called_tools)
    return at_least(
        "order",
        matched_count / len(expected_tools),
        threshold,
        f"{matched_count} of {len(expected_tools)} expected calls in order",
    )


def no_tool_errors(trace: Trace, at_most: int = 0, *, threshold: float | None = THRESHOLDS["no_tool_errors"]) -> Score:
    """Score 1 if at most `at_most` calls failed, else 0. Rejected calls are not errors."""
    failed = [f"{call.tool}: {call.error}" for call in trace.calls if call.error is not None]
    failed += [error for error in trace.errors if not error.startswith("limit ")]
    value = 1.0 if len(failed) <= at_most else 0.0
    reason = f"{len(failed)} failed, first {failed[0][:300]}" if failed else "no call failed"
    return at_least("no_tool_errors", value, threshold, reason)


def _longest_common_subsequence(expected: Sequence[str], actual: Sequence[str]) -> int:
    """Return the length of the longest common subsequence. O(actual calls): a row of the table is one integer.

    Source: Hyyrö 2004, bit-parallel LCS.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(expected):
        positions[name] = positions.get(name, 0) | 1 << position
    full = (1 << len(expected)) - 1
    row = full
    for tool in actual:
        matched = row & positions[tool]
        row = ((row + matched) | (row - matched)) & full
    return len(expected) - row.bit_count()


def _comparison_text(key: str, value: Json) -> str:
    """Return the text by which two values of an argument are compared."""
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        return (
            f"json:{json.dumps(value, sort_keys=True, ensure_ascii=False)}"  # distinguishes true from the text "true"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if key in _PATH_ARGUMENTS and text:
        text = normpath(text)
        if key == "script_path":
            text = text.removeprefix("scripts/")
    return text


SCHEMA_TOOLS = frozenset({"list_dataset_ids", "list_table_ids", "get_dataset_info", "get_table_info"})
QUERY_TOOLS = frozenset({"execute_sql", "forecast", "detect_anomalies", "analyze_contribution", "cluster_data"})
_LOOKUP_TOOLS = ("list_skills", "search_skills")
_SKILL_TOOLS = ("load_skill", "load_skill_resource", "run_skill_script")


def schema_discovery_score(trace: Trace, *, threshold: float | None = THRESHOLDS["schema_discovery_score"]) -> Score:
    """Score 1 if a schema tool succeeded before the first query, or without any query; else 0."""
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
    """Score 1 if a skill was activated or loaded, 0.5 if skills were only looked up, else 0.

    Args:
        skill: Name of the skill; None for any skill.
    """
    name = "skill_discovery_score"
    for activated in trace.skills:
        if skill in (None, activated):
            return at_least(name, 1.0, threshold, f"{activated} was activated")
    for call in trace.calls_by_tool.get("load_skill", ()):
        loaded = canonical_arguments("load_skill", call.arguments).get("skill_name")
        if call.has_succeeded and skill in (None, loaded):
            return at_least(name, 1.0, threshold, f"{loaded} was loaded")
    if any(call.has_succeeded for tool in _LOOKUP_TOOLS for call in trace.calls_by_tool.get(tool, ())):
        return at_least(name, 0.5, threshold, "skills were looked up, none was loaded")
    return at_least(name, 0.0, threshold, "no skill was looked up or loaded")


def uses_skill(trace: Trace, skill: str) -> bool:
    """Return whether a skill was used: activated or loaded, or one of its scripts or files was used."""
    if skill in trace.skills or any(script.skill == skill for script in trace.scripts):
        return True
    return any(
        call.has_succeeded and canonical_arguments(tool, call.arguments).get("skill_name") == skill
        for tool in _SKILL_TOOLS
        for call in trace.calls_by_tool.get(tool, ())
    )


def trigger_score(
    traces: Sequence[Trace | None],
    skill: str,
    should_trigger: bool,
    *,
    threshold: float | None = THRESHOLDS["trigger_score"],
) -> Score:
    """Score the share of runs in which the skill was used, or was not used if it should not be; passes above 0.5.

    Args:
        traces: One for each run; None for a run that failed, which never counts as right.
    """
    name = "trigger_score"
    if not traces:
        return Score(name, 0.0, None if threshold is None else False, "there are no runs", threshold, error=True)
    used = sum(trace is not None and uses_skill(trace, skill) for trace in traces)
    failed = sum(trace is None for trace in traces)
    right = used if should_trigger else len(traces) - used - failed
    value = right / len(traces)
    reason = f"{skill} was used in {used} of {len(traces)} runs" + (f", {failed} failed" if failed else "")
    return Score(name, round(value, 6), None if threshold is None else value > threshold, reason, threshold)


def output_correctness_score(
    trace: Trace, reference: str, *, threshold: float | None = THRESHOLDS["output_correctness_score"]
) -> Score:
    """Score the share of the reference's lines that occur in the answer, ignoring case and white space."""
    name = "output_correctness_score"
    lines = [line.strip() for line in reference.splitlines() if line.strip()]
    if not lines:
        return at_least(name, 1.0, threshold, "the reference has no lines")
    answer = fold_text(trace.answer)
    missing = [line for line in lines if fold_text(line) not in answer]
    reason = f"not in the answer: {missing[0][:200]!r}" if missing else f"all {len(lines)} lines are in the answer"
    return at_least(name, 1 - len(missing) / len(lines), threshold, reason)


def fold_text(text: str) -> str:
    """Return a text normalized for comparison: NFC, case-folded, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def steps(trace: Trace, at_most: float | None = None) -> Score:
    """Score the number of model responses."""
    return score.at_most("steps", trace.steps, at_most, f"{trace.steps} steps")


def cost_usd(trace: Trace, at_most: float | None = None) -> Score:
    """Score the cost in dollars; an unknown price has no value, and fails if there is a limit."""
    if trace.cost_usd is None:
        return Score("cost_usd", None, None if at_most is None else False, "price unknown", at_most)
    return score.at_most("cost_usd", round(trace.cost_usd, 9), at_most, f"{trace.cost_usd:.6f} USD")


def duration_seconds(trace: Trace, at_most: float | None = None) -> Score:
    """Score the total duration of the runs in seconds."""
    value = round(trace.duration_seconds, 6)
    return score.at_most("duration_seconds", value, at_most, f"{value:.3f} s")
