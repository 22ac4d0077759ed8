"""What an evaluator is given: the context of pydantic-evals, with the trace and a span tree made from it.

Tool calls, arguments and model requests reach pydantic-evals' own evaluators as spans. They are made from the log and
not recorded while it runs, so that attempts which were resumed or replayed are scored as all others are.
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
"""Any evaluator: of bough, of pydantic-evals, or of a program."""

JudgeCall: TypeAlias = "Callable[[Trace, CaseInput, Sequence[Rubric], Sequence[str]], Awaitable[Judgement]]"
"""Asks the judge: (trace, case, rubrics, names of output files) to a judgement."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class AttemptHost:
    """What evaluators may use besides the trace.

    Attributes:
        workspace: Folder of the attempt; None where there is none any more.
        outputs: Files that are new or changed in it, relative.
        skill_folder: Of the skill that is tried; its check scripts are found there.
        judge: None where nothing is judged.
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
        trace: Of the whole conversation.
        scores: What bough's evaluators computed, by metric, with threshold and verdict.
        judgements: What the judge said, in the order of asking.
        assertions: Whether each assertion of the case holds.
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
        """Return a context to try an evaluator on a trace by hand."""
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
        """The spans of the attempt, made from its trace on first use. O(calls)."""
        if self._tree is None:
            self._tree = make_span_tree(self.trace)
        return self._tree


def make_span_tree(trace: Trace) -> SpanTree:
    """Return one span for the run, one below it for each model request and each tool call that was executed."""
    end = _EPOCH + timedelta(seconds=max(trace.duration_seconds, 0.0))
    run = _node("bough.run", 1, None, 0, {}, end)
    nodes = [run]
    for number in range(trace.steps):
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "model",
        }
        nodes.append(_node("chat model", 2 + number, 1, number, attributes, None))
    for number, call in enumerate(trace.calls):
        if call.ended == "ToolRejected":
            continue  # it was not executed
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": json.dumps(call.arguments, ensure_ascii=False),
        }
        node = _node(f"execute_tool {call.tool}", 2 + trace.steps + number, 1, number, attributes, None)
        node.status = "error" if call.error is not None else "ok"
        if call.seconds:
            node.end_timestamp = node.start_timestamp + timedelta(seconds=call.seconds)
        nodes.append(node)
    tree = SpanTree()
    tree.add_spans(nodes)
    return tree


def _node(
    name: str, id: int, parent: int | None, place: int, attributes: dict[str, AttributeValue], end: datetime | None
) -> SpanNode:
    start = _EPOCH + timedelta(microseconds=place)  # evaluators order calls by when their spans began
    return SpanNode(
        name=name,
        trace_id=1,
        span_id=id,
        parent_span_id=parent,
        start_timestamp=start,
        end_timestamp=end or start,
        attributes=attributes,
    )
