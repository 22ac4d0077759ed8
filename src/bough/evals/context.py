"""The input of an evaluator: pydantic-evals' context with the trace, and a span tree built from the trace.

The evaluators of pydantic-evals read tool calls, arguments and model requests from spans. The spans are built from the
log, not recorded at run time, so that resumed and replayed attempts are scored like all others.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_evals.evaluators import Evaluator, EvaluatorContext
from pydantic_evals.otel.span_tree import AttributeValue, SpanNode, SpanTree

from bough.evals.case import CaseInput, Rubric
from bough.evals.score import AssertionResult, Score
from bough.evals.trace import Trace

if TYPE_CHECKING:
    from bough.evals.judge.verdict import Judgement
    from bough.execution.base import CodeExecutor

TraceEvaluatorLike: TypeAlias = Evaluator[Any, Any, Any]
"""Any evaluator: of bough, of pydantic-evals, or of the caller."""

JudgeCall: TypeAlias = "Callable[[Trace, CaseInput, Sequence[Rubric], Sequence[str]], Awaitable[Judgement]]"
"""Calls the judge with (trace, case, rubrics, names of output files)."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class AttemptHost:
    """Resources for evaluators in addition to the trace.

    Attributes:
        workspace: Folder of the attempt; None if it no longer exists.
        outputs: New or changed files, as paths relative to the workspace.
        skill_folder: Folder of the evaluated skill with its check scripts.
        judge: Calls the judge; None if nothing is judged.
    """

    workspace: Path | None = None
    outputs: tuple[str, ...] = ()
    skill_folder: Path | None = None
    executor: CodeExecutor | None = None
    judge: JudgeCall | None = None


@dataclass(kw_only=True)
class TraceContext(EvaluatorContext[Any, Any, Any]):
    """The context of an attempt.

    Attributes:
        trace: Trace of the whole conversation.
        scores: Scores of bough's evaluators, by metric.
        judgements: The results of the judge's calls, in order.
        assertions: The results of the assertions of the case.
    """

    trace: Trace = field(default_factory=Trace)
    host: AttemptHost = field(default_factory=AttemptHost)
    scores: dict[str, Score] = field(default_factory=dict[str, Score])
    judgements: list[Judgement] = field(default_factory=list["Judgement"])
    assertions: list[AssertionResult] = field(default_factory=list[AssertionResult])
    _tree: SpanTree | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        trace: Trace,
        *,
        inputs: CaseInput | str = "",
        output: str | None = None,
        expected_output: str | None = None,
        name: str | None = None,
        metadata: Any = None,
    ) -> TraceContext:
        """Return a context for applying an evaluator to a trace outside a run."""
        return cls(
            name=name,
            inputs=inputs,
            metadata=metadata,
            expected_output=expected_output,
            output=trace.answer if output is None else output,
            duration=trace.duration_seconds,
            _span_tree=SpanTree(),
            attributes={},
            metrics={},
            trace=trace,
        )

    @property
    def case(self) -> CaseInput:
        """The inputs as a case."""
        return CaseInput.of(self.inputs or " ")

    @property
    def span_tree(self) -> SpanTree:
        """The spans of the attempt, built from its trace on first use. O(calls)."""
        if self._tree is None:
            self._tree = make_span_tree(self.trace)
        return self._tree


def make_span_tree(trace: Trace) -> SpanTree:
    """Return a span for the run, with child spans for model requests and executed tool calls."""
    end = _EPOCH + timedelta(seconds=max(trace.duration_seconds, 0.0))
    run = _make_node("bough.run", 1, None, 0, {}, end)
    nodes = [run]
    for number in range(trace.steps):
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "model",
        }
        nodes.append(_make_node("chat model", 2 + number, 1, number, attributes, None))
    for number, call in enumerate(trace.calls):
        if call.ended == "ToolRejected":
            continue  # a rejected call was not executed
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": json.dumps(call.arguments, ensure_ascii=False),
        }
        node = _make_node(f"execute_tool {call.tool}", 2 + trace.steps + number, 1, number, attributes, None)
        node.status = "error" if call.error is not None else "ok"
        if call.seconds:
            node.end_timestamp = node.start_timestamp + timedelta(seconds=call.seconds)
        nodes.append(node)
    tree = SpanTree()
    tree.add_spans(nodes)
    return tree


def _make_node(
    name: str, id: int, parent: int | None, position: int, attributes: dict[str, AttributeValue], end: datetime | None
) -> SpanNode:
    """Return a span; without `end`, it has no duration."""
    start = _EPOCH + timedelta(microseconds=position)  # evaluators order calls by the start of their spans
    return SpanNode(
        name=name,
        trace_id=1,
        span_id=id,
        parent_span_id=parent,
        start_timestamp=start,
        end_timestamp=end or start,
        attributes=attributes,
    )
