"""Evals measure correctness, improvement and cost. An eval reads logs; its results are events of the same logs.

Names are imported on first use: reading a set or a run imports neither pydantic-evals nor a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.evals import metrics as metrics
    from bough.evals import statistics as statistics
    from bough.evals.case import CaseInput as CaseInput
    from bough.evals.case import Rubric as Rubric
    from bough.evals.case import SetCase as SetCase
    from bough.evals.case import ToolUse as ToolUse
    from bough.evals.case import TurnInput as TurnInput
    from bough.evals.context import TraceContext as TraceContext
    from bough.evals.document import Fault as Fault
    from bough.evals.eval_set import EvalSet as EvalSet
    from bough.evals.formats.read import read_set as read_set
    from bough.evals.harbor.evaluate import HarborRun as HarborRun
    from bough.evals.harbor.evaluate import TaskScore as TaskScore
    from bough.evals.harbor.evaluate import run_harbor as run_harbor
    from bough.evals.log_scoring import score_logs as score_logs
    from bough.evals.loop import EvalOptions as EvalOptions
    from bough.evals.loop import evaluate as evaluate
    from bough.evals.metrics.evaluators import Assertions as Assertions
    from bough.evals.metrics.evaluators import CostUsd as CostUsd
    from bough.evals.metrics.evaluators import DurationSeconds as DurationSeconds
    from bough.evals.metrics.evaluators import InstructionAdherence as InstructionAdherence
    from bough.evals.metrics.evaluators import NoToolErrors as NoToolErrors
    from bough.evals.metrics.evaluators import Order as Order
    from bough.evals.metrics.evaluators import OutputCorrectness as OutputCorrectness
    from bough.evals.metrics.evaluators import SchemaDiscovery as SchemaDiscovery
    from bough.evals.metrics.evaluators import SkillDiscovery as SkillDiscovery
    from bough.evals.metrics.evaluators import Steps as Steps
    from bough.evals.metrics.evaluators import ToolArgs as ToolArgs
    from bough.evals.metrics.evaluators import ToolInvocation as ToolInvocation
    from bough.evals.metrics.evaluators import ToolUsage as ToolUsage
    from bough.evals.metrics.evaluators import Trigger as Trigger
    from bough.evals.report.compare import compare_runs as compare_runs
    from bough.evals.rescore import rescore_run as rescore_run
    from bough.evals.run.result import EvalRun as EvalRun
    from bough.evals.score import Score as Score
    from bough.evals.skill.evaluate import SkillEvalRun as SkillEvalRun
    from bough.evals.skill.evaluate import evaluate_skill as evaluate_skill
    from bough.evals.trace import Trace as Trace
    from bough.evals.trace import TracedCall as TracedCall
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.evals": "metrics statistics",
            "bough.evals.case": "CaseInput Rubric SetCase ToolUse TurnInput",
            "bough.evals.context": "TraceContext",
            "bough.evals.eval_set": "EvalSet",
            "bough.evals.document": "Fault",
            "bough.evals.formats.read": "read_set",
            "bough.evals.harbor.evaluate": "HarborRun TaskScore run_harbor",
            "bough.evals.log_scoring": "score_logs",
            "bough.evals.loop": "EvalOptions evaluate",
            "bough.evals.metrics.evaluators": (
                "Assertions CostUsd DurationSeconds InstructionAdherence NoToolErrors Order OutputCorrectness "
                "SchemaDiscovery SkillDiscovery Steps ToolArgs ToolInvocation ToolUsage Trigger"
            ),
            "bough.evals.report.compare": "compare_runs",
            "bough.evals.rescore": "rescore_run",
            "bough.evals.run.result": "EvalRun",
            "bough.evals.score": "Score",
            "bough.evals.skill.evaluate": "SkillEvalRun evaluate_skill",
            "bough.evals.trace": "Trace TracedCall",
        },
    )
