"""Evals: is it right, did it get better, what did it cost. An eval reads logs; its results are events of the same logs.

Names are imported when they are first used: reading a set or a run imports neither pydantic-evals nor a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.evals import metrics, statistics
    from bough.evals.case import CaseInput, Rubric, SetCase, ToolUse, TurnInput
    from bough.evals.context import TraceContext
    from bough.evals.document import Fault
    from bough.evals.eval_set import EvalSet
    from bough.evals.formats.read import read_set
    from bough.evals.harbor.evaluate import HarborRun, TaskScore, run_harbor
    from bough.evals.log_scoring import score_logs
    from bough.evals.loop import EvalOptions, evaluate
    from bough.evals.metrics.evaluators import (
        Assertions,
        CostUsd,
        DurationSeconds,
        InstructionAdherence,
        NoToolErrors,
        Order,
        OutputCorrectness,
        SchemaDiscovery,
        SkillDiscovery,
        Steps,
        ToolArgs,
        ToolInvocation,
        ToolUsage,
        Trigger,
    )
    from bough.evals.report.compare import compare_runs
    from bough.evals.rescore import rescore_run
    from bough.evals.run.result import EvalRun
    from bough.evals.score import Score
    from bough.evals.skill.evaluate import SkillEvalRun, evaluate_skill
    from bough.evals.trace import Trace, TracedCall

_HOMES = {
    "Assertions": "bough.evals.metrics.evaluators",
    "CaseInput": "bough.evals.case",
    "CostUsd": "bough.evals.metrics.evaluators",
    "DurationSeconds": "bough.evals.metrics.evaluators",
    "EvalOptions": "bough.evals.loop",
    "EvalRun": "bough.evals.run.result",
    "EvalSet": "bough.evals.eval_set",
    "Fault": "bough.evals.document",
    "HarborRun": "bough.evals.harbor.evaluate",
    "InstructionAdherence": "bough.evals.metrics.evaluators",
    "NoToolErrors": "bough.evals.metrics.evaluators",
    "Order": "bough.evals.metrics.evaluators",
    "OutputCorrectness": "bough.evals.metrics.evaluators",
    "Rubric": "bough.evals.case",
    "SchemaDiscovery": "bough.evals.metrics.evaluators",
    "Score": "bough.evals.score",
    "SetCase": "bough.evals.case",
    "SkillEvalRun": "bough.evals.skill.evaluate",
    "SkillDiscovery": "bough.evals.metrics.evaluators",
    "Steps": "bough.evals.metrics.evaluators",
    "TaskScore": "bough.evals.harbor.evaluate",
    "ToolArgs": "bough.evals.metrics.evaluators",
    "ToolInvocation": "bough.evals.metrics.evaluators",
    "ToolUsage": "bough.evals.metrics.evaluators",
    "ToolUse": "bough.evals.case",
    "Trace": "bough.evals.trace",
    "TraceContext": "bough.evals.context",
    "TracedCall": "bough.evals.trace",
    "Trigger": "bough.evals.metrics.evaluators",
    "TurnInput": "bough.evals.case",
    "compare_runs": "bough.evals.report.compare",
    "evaluate": "bough.evals.loop",
    "evaluate_skill": "bough.evals.skill.evaluate",
    "read_set": "bough.evals.formats.read",
    "rescore_run": "bough.evals.rescore",
    "run_harbor": "bough.evals.harbor.evaluate",
    "score_logs": "bough.evals.log_scoring",
}

__all__ = [
    "Assertions",
    "CaseInput",
    "CostUsd",
    "DurationSeconds",
    "EvalOptions",
    "EvalRun",
    "EvalSet",
    "Fault",
    "HarborRun",
    "InstructionAdherence",
    "NoToolErrors",
    "Order",
    "OutputCorrectness",
    "Rubric",
    "SchemaDiscovery",
    "Score",
    "SetCase",
    "SkillDiscovery",
    "SkillEvalRun",
    "Steps",
    "TaskScore",
    "ToolArgs",
    "ToolInvocation",
    "ToolUsage",
    "ToolUse",
    "Trace",
    "TraceContext",
    "TracedCall",
    "Trigger",
    "TurnInput",
    "compare_runs",
    "evaluate",
    "evaluate_skill",
    "metrics",
    "read_set",
    "rescore_run",
    "run_harbor",
    "score_logs",
    "statistics",
]


def __getattr__(name: str) -> Any:
    if name in ("metrics", "statistics"):
        return import_module(f"bough.evals.{name}")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'bough.evals' has no attribute {name!r}") from None
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        from bough.errors import Unavailable

        message = f"bough.evals.{name} needs the package {error.name}"
        raise Unavailable(message, hint="pip install 'bough[evals]'") from error
