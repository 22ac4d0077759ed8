"""Metrics of traces: pure functions, deterministic, never raising. Evaluators over them are in `evaluators`."""

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
