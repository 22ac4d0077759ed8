"""Metrics of traces: pure, deterministic functions that never raise. `evaluators` has an evaluator for each."""

from bough.evals.metrics.deterministic import (
    FREE_TEXT,
    cost_usd,
    duration_seconds,
    no_tool_errors,
    order,
    output_correctness_score,
    schema_discovery_score,
    skill_discovery_score,
    steps,
    tool_args_score,
    tool_invocation_score,
    tool_usage_score,
    trigger_score,
)

__all__ = [
    "FREE_TEXT",
    "cost_usd",
    "duration_seconds",
    "no_tool_errors",
    "order",
    "output_correctness_score",
    "schema_discovery_score",
    "skill_discovery_score",
    "steps",
    "tool_args_score",
    "tool_invocation_score",
    "tool_usage_score",
    "trigger_score",
]
