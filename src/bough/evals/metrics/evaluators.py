"""The metrics as pydantic-evals evaluators, each named after its metric.

An evaluator without an expectation uses the case's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from pydantic import TypeAdapter
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from bough.errors import InvalidInput
from bough.evals import metrics
from bough.evals.case import Rubric, SetCase, ToolUse
from bough.evals.context import TraceContext, TraceEvaluatorLike
from bough.evals.judge.verdict import Judgement, RubricVerdict
from bough.evals.metrics.assertions import score_assertions
from bough.evals.metrics.thresholds import thresholds_for
from bough.evals.score import THRESHOLDS, Score, at_least
from bough.evals.trace import Trace
from bough.types import Json

ExpectedCalls: TypeAlias = Sequence[ToolUse | Mapping[str, Json] | str] | None
"""Expected calls: `ToolUse`s, `{name, args}` objects, or names; None takes the case's."""


@dataclass(repr=False)
class TraceEvaluator(Evaluator[Any, Any, Any]):
    """An evaluator that reads the trace.

    Attributes:
        metric: Name of the reported metric.
    """

    metric: ClassVar[str] = ""

    def get_default_evaluation_name(self) -> str:
        """Return the metric's name."""
        return self.metric

    @abstractmethod
    async def score(self, ctx: TraceContext) -> Score:
        """Return the score of the attempt."""
        raise NotImplementedError

    async def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> Mapping[str, EvaluationReason]:
        """Compute the score, store it in the context, and report its value, if it has one.

        Raises:
            InvalidInput: The context has no trace.
        """
        if not isinstance(ctx, TraceContext):
            raise InvalidInput(
                f"{self.metric} needs a trace, which this context does not have",
                hint="run it with bough.evals.evaluate, or on TraceContext.of(trace)",
            )
        score = await self.score(ctx)
        ctx.scores[score.name] = score
        return {} if score.value is None else {score.name: EvaluationReason(value=score.value, reason=score.reason)}


@dataclass(repr=False)
class ToolInvocation(TraceEvaluator):
    """`tool_invocation_score`: the share of expected tools that were called."""

    metric: ClassVar[str] = "tool_invocation_score"
    expected: ExpectedCalls = None
    threshold: float | None = THRESHOLDS["tool_invocation_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.tool_invocation_score(ctx.trace, _read_expected(self.expected, ctx), threshold=self.threshold)


@dataclass(repr=False)
class ToolArgs(TraceEvaluator):
    """`tool_args_score`: the share of expected arguments that were passed, without free text.

    Attributes:
        keys: Arguments to compare even if they hold free text.
    """

    metric: ClassVar[str] = "tool_args_score"
    expected: ExpectedCalls = None
    threshold: float | None = THRESHOLDS["tool_args_score"]
    keys: Sequence[str] = ()

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        expected = _read_expected(self.expected, ctx)
        return metrics.tool_args_score(ctx.trace, expected, also=self.keys, threshold=self.threshold)


@dataclass(repr=False)
class ToolUsage(TraceEvaluator):
    """`tool_usage_score`: the share of expected calls that were made, in any order."""

    metric: ClassVar[str] = "tool_usage_score"
    expected: ExpectedCalls = None
    threshold: float | None = THRESHOLDS["tool_usage_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.tool_usage_score(ctx.trace, _read_expected(self.expected, ctx), threshold=self.threshold)


@dataclass(repr=False)
class Order(TraceEvaluator):
    """`order`: the share of expected calls made in the expected order."""

    metric: ClassVar[str] = "order"
    expected: ExpectedCalls = None
    threshold: float | None = THRESHOLDS["order"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.order(ctx.trace, _read_expected(self.expected, ctx), threshold=self.threshold)


@dataclass(repr=False)
class SchemaDiscovery(TraceEvaluator):
    """`schema_discovery_score`: whether the schema was read before the first query."""

    metric: ClassVar[str] = "schema_discovery_score"
    threshold: float | None = THRESHOLDS["schema_discovery_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.schema_discovery_score(ctx.trace, threshold=self.threshold)


@dataclass(repr=False)
class SkillDiscovery(TraceEvaluator):
    """`skill_discovery_score`: whether any skill, or the named one, was used."""

    metric: ClassVar[str] = "skill_discovery_score"
    skill: str | None = None
    threshold: float | None = THRESHOLDS["skill_discovery_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.skill_discovery_score(ctx.trace, self.skill or ctx.case.skill, threshold=self.threshold)


@dataclass(repr=False)
class OutputCorrectness(TraceEvaluator):
    """`output_correctness_score`: the share of lines of the reference in the answer; None takes the case's."""

    metric: ClassVar[str] = "output_correctness_score"
    reference: str | None = None
    threshold: float | None = THRESHOLDS["output_correctness_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        reference = self.reference if self.reference is not None else ctx.case.reference or ctx.expected_output or ""
        return metrics.output_correctness_score(ctx.trace, str(reference), threshold=self.threshold)


@dataclass(repr=False)
class Trigger(TraceEvaluator):
    """`trigger_score` of one run: whether the skill was used exactly if it should be."""

    metric: ClassVar[str] = "trigger_score"
    skill: str | None = None
    should_trigger: bool | None = None
    threshold: float | None = THRESHOLDS["trigger_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        should_trigger = self.should_trigger if self.should_trigger is not None else ctx.case.should_trigger
        skill = self.skill or ctx.case.skill or ""
        return metrics.trigger_score([ctx.trace], skill, should_trigger is not False, threshold=self.threshold)


@dataclass(repr=False)
class NoToolErrors(TraceEvaluator):
    """`no_tool_errors`: whether at most `at_most` calls failed."""

    metric: ClassVar[str] = "no_tool_errors"
    at_most: int = 0
    threshold: float | None = THRESHOLDS["no_tool_errors"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.no_tool_errors(ctx.trace, self.at_most, threshold=self.threshold)


@dataclass(repr=False)
class Steps(TraceEvaluator):
    """`steps`: responses of the model, at most `at_most`."""

    metric: ClassVar[str] = "steps"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.steps(ctx.trace, self.at_most)


@dataclass(repr=False)
class CostUsd(TraceEvaluator):
    """`cost_usd`: dollars, at most `at_most`."""

    metric: ClassVar[str] = "cost_usd"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.cost_usd(ctx.trace, self.at_most)


@dataclass(repr=False)
class DurationSeconds(TraceEvaluator):
    """`duration_seconds`: seconds, at most `at_most`."""

    metric: ClassVar[str] = "duration_seconds"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.duration_seconds(ctx.trace, self.at_most)


@dataclass(repr=False)
class Assertions(TraceEvaluator):
    """`assertions`: the share of statements about the outcome that hold; decided by code if they have a known form."""

    metric: ClassVar[str] = "assertions"
    assertions: Sequence[str] | None = None
    threshold: float | None = THRESHOLDS["assertions"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        texts = None if self.assertions is None else tuple(self.assertions)
        return await score_assertions(ctx, texts, self.threshold)


@dataclass(repr=False)
class InstructionAdherence(TraceEvaluator):
    """`instruction_adherence_score`: the share of rubrics that a judge finds met; None takes the case's."""

    metric: ClassVar[str] = "instruction_adherence_score"
    rubrics: Sequence[Rubric | Mapping[str, str] | str] | None = None
    threshold: float | None = THRESHOLDS["instruction_adherence_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        rubrics = None if self.rubrics is None else tuple(map(_rubric, enumerate(self.rubrics, 1)))
        return await score_adherence(ctx, rubrics, self.threshold)


OURS: tuple[type[TraceEvaluator], ...] = (
    ToolInvocation,
    ToolArgs,
    ToolUsage,
    Order,
    SchemaDiscovery,
    SkillDiscovery,
    OutputCorrectness,
    Trigger,
    NoToolErrors,
    Steps,
    CostUsd,
    DurationSeconds,
    Assertions,
    InstructionAdherence,
)
"""The evaluators a set may name in addition to those of pydantic-evals."""

_TOOL_USE = TypeAdapter(ToolUse)
_RUBRIC = TypeAdapter(Rubric)
_BY_METRIC = {evaluator.metric: evaluator for evaluator in OURS}
_BOUNDED = {"steps", "cost_usd", "duration_seconds"}


def evaluators_for(
    case: SetCase,
    of_set: Iterable[TraceEvaluatorLike],
    overrides: Mapping[str, float | None],
    *,
    judged: bool = True,
) -> Iterator[TraceEvaluatorLike]:
    """Yield the evaluators of a case: its own and its set's, then those of the metrics that apply to it.

    A metric that the case or its set has as an evaluator is not added again; one that the caller overrides is replaced.
    """
    own = [*case.evaluators, *of_set]
    replaced = {evaluator.metric for evaluator in own if isinstance(evaluator, TraceEvaluator)} & set(overrides)
    present = {evaluator.metric for evaluator in own if isinstance(evaluator, TraceEvaluator)} - replaced
    for evaluator in own:
        if not (isinstance(evaluator, TraceEvaluator) and evaluator.metric in replaced):
            yield evaluator
    for metric, threshold in thresholds_for(case.input, overrides, judged=judged).items():
        if metric in _BY_METRIC and metric not in present:
            yield evaluator_named(metric, threshold)


def evaluator_named(metric: str, threshold: float | None) -> TraceEvaluator:
    """Return the evaluator of a metric with that threshold or bound."""
    kind: Any = _BY_METRIC[metric]
    return kind(at_most=threshold) if metric in _BOUNDED else kind(threshold=threshold)


def _read_expected(expected: ExpectedCalls, ctx: TraceContext) -> tuple[ToolUse, ...]:
    return ctx.case.tool_uses if expected is None else tuple(map(_tool_use, expected))


def _tool_use(use: ToolUse | Mapping[str, Json] | str) -> ToolUse:
    if isinstance(use, ToolUse):
        return use
    return ToolUse(use) if isinstance(use, str) else _TOOL_USE.validate_python(dict(use))


def _rubric(numbered: tuple[int, Rubric | Mapping[str, str] | str]) -> Rubric:
    number, rubric = numbered
    if isinstance(rubric, Rubric):
        return rubric
    return Rubric(f"r{number}", rubric) if isinstance(rubric, str) else _RUBRIC.validate_python(dict(rubric))


NAME = "instruction_adherence_score"


async def score_adherence(ctx: TraceContext, rubrics: Sequence[Rubric] | None, threshold: float | None) -> Score:
    """Return the share of yes. No rubrics: 1 without a call; a failed judge: 0 with its error.

    Args:
        rubrics: Judged on the whole trace; None takes those of the case and of its turns.
    """
    parts = [(ctx.trace, tuple(rubrics))] if rubrics is not None else list(_parts(ctx))
    parts = [(trace, part_rubrics) for trace, part_rubrics in parts if part_rubrics]
    if not parts:
        return at_least(NAME, 1.0, threshold, "no rubrics")
    if ctx.host.judge is None:
        return _make_failed_score("there is no judge", threshold)
    judgements: list[Judgement] = []
    for trace, part_rubrics in parts:
        judgements.append(await ctx.host.judge(trace, ctx.case, part_rubrics, ctx.host.outputs))
    ctx.judgements += judgements
    verdicts = [verdict for judgement in judgements for verdict in judgement.verdicts]
    if undecided := [verdict for verdict in verdicts if verdict.verdict is None]:
        return _make_failed_score(
            f"{len(undecided)} of {len(verdicts)} rubrics undecided: {undecided[0].rationale}", threshold
        )
    met = sum(verdict.verdict is True for verdict in verdicts)
    score = at_least(NAME, met / len(verdicts), threshold, _reason(verdicts))
    return Score(NAME, score.value, score.passed, score.reason, threshold, by="judge")


def _parts(ctx: TraceContext) -> Iterator[tuple[Trace, tuple[Rubric, ...]]]:
    """Yield (part of the trace, rubrics judged on it)."""
    yield ctx.trace, ctx.case.rubrics
    for number, turn in enumerate(ctx.case.turns):
        if turn.rubrics:
            yield ctx.trace.turns[number] if number < len(ctx.trace.turns) else Trace(), turn.rubrics


def _reason(verdicts: Sequence[RubricVerdict]) -> str:
    missed = [verdict for verdict in verdicts if not verdict.verdict]
    if not missed:
        return f"all {len(verdicts)} rubrics are met"
    first = missed[0]
    return f"{len(missed)} of {len(verdicts)} not met: {first.rubric.property[:120]!r}: {first.rationale[:300]}"


def _make_failed_score(reason: str, threshold: float | None) -> Score:
    return Score(NAME, 0.0, None if threshold is None else False, reason, threshold, by="judge", error=True)
