"""The metrics as pydantic-evals evaluators, each named after its metric.

An evaluator without an expectation uses that of the case.
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
"""Expected calls: `ToolUse`s, `{name, args}` objects, or names; None for those of the case."""


@dataclass(repr=False)
class TraceEvaluator(Evaluator[Any, Any, Any]):
    """An evaluator of a trace.

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
        keys: Arguments to compare even if they are free text.
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
    """`output_correctness_score`: the share of lines of the reference in the answer; None for that of the case."""

    metric: ClassVar[str] = "output_correctness_score"
    reference: str | None = None
    threshold: float | None = THRESHOLDS["output_correctness_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        reference = self.reference if self.reference is not None else ctx.case.reference or ctx.expected_output or ""
        return metrics.output_correctness_score(ctx.trace, str(reference), threshold=self.threshold)


@dataclass(repr=False)
class Trigger(TraceEvaluator):
    """`trigger_score` of one run: whether the skill was used if it should be, and not used otherwise."""

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
    """`steps`: the number of model responses, at most `at_most`."""

    metric: ClassVar[str] = "steps"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.steps(ctx.trace, self.at_most)


@dataclass(repr=False)
class CostUsd(TraceEvaluator):
    """`cost_usd`: the cost in dollars, at most `at_most`."""

    metric: ClassVar[str] = "cost_usd"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.cost_usd(ctx.trace, self.at_most)


@dataclass(repr=False)
class DurationSeconds(TraceEvaluator):
    """`duration_seconds`: the duration of the runs in seconds, at most `at_most`."""

    metric: ClassVar[str] = "duration_seconds"
    at_most: float | None = None

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        return metrics.duration_seconds(ctx.trace, self.at_most)


@dataclass(repr=False)
class Assertions(TraceEvaluator):
    """`assertions`: the share of assertions that passed; code decides known forms, the judge all others."""

    metric: ClassVar[str] = "assertions"
    assertions: Sequence[str] | None = None
    threshold: float | None = THRESHOLDS["assertions"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        texts = None if self.assertions is None else tuple(self.assertions)
        return await score_assertions(ctx, texts, self.threshold)


@dataclass(repr=False)
class InstructionAdherence(TraceEvaluator):
    """`instruction_adherence_score`: the share of rubrics that the judge finds met; None for those of the case."""

    metric: ClassVar[str] = "instruction_adherence_score"
    rubrics: Sequence[Rubric | Mapping[str, str] | str] | None = None
    threshold: float | None = THRESHOLDS["instruction_adherence_score"]

    async def score(self, ctx: TraceContext) -> Score:
        """Return the score."""
        rubrics = (
            None
            if self.rubrics is None
            else tuple(_read_rubric(number, rubric) for number, rubric in enumerate(self.rubrics, 1))
        )
        return await score_adherence(ctx, rubrics, self.threshold)


BOUGH_EVALUATORS: tuple[type[TraceEvaluator], ...] = (
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
"""The evaluators that a set may name in addition to those of pydantic-evals."""

_TOOL_USE = TypeAdapter(ToolUse)
_RUBRIC = TypeAdapter(Rubric)
_BY_METRIC = {evaluator.metric: evaluator for evaluator in BOUGH_EVALUATORS}
_METRICS_WITH_LIMIT = {"steps", "cost_usd", "duration_seconds"}


def evaluators_for(
    case: SetCase,
    set_evaluators: Iterable[TraceEvaluatorLike],
    overrides: Mapping[str, float | None],
    *,
    judged: bool = True,
) -> Iterator[TraceEvaluatorLike]:
    """Yield the evaluators of a case: those of its file, then those of the metrics that apply to it.

    A metric with an evaluator in the file is not added again. If the caller overrides its threshold, the evaluator is
    replaced.

    Args:
        set_evaluators: The evaluators of the whole set.
        overrides: Thresholds of the caller, by metric.
        judged: False omits metrics that need a judge.
    """
    file_evaluators = [*case.evaluators, *set_evaluators]
    file_metrics = {evaluator.metric for evaluator in file_evaluators if isinstance(evaluator, TraceEvaluator)}
    for evaluator in file_evaluators:
        if not (isinstance(evaluator, TraceEvaluator) and evaluator.metric in overrides):
            yield evaluator
    for metric, threshold in thresholds_for(case.input, overrides, judged=judged).items():
        is_present = metric in file_metrics and metric not in overrides
        if metric in _BY_METRIC and not is_present:
            yield evaluator_named(metric, threshold)


def evaluator_named(metric: str, threshold: float | None) -> TraceEvaluator:
    """Return the evaluator of a metric with a threshold, or with a limit if the metric has one."""
    evaluator_class: Any = _BY_METRIC[metric]
    if metric in _METRICS_WITH_LIMIT:
        return evaluator_class(at_most=threshold)
    return evaluator_class(threshold=threshold)


def _read_expected(expected: ExpectedCalls, ctx: TraceContext) -> tuple[ToolUse, ...]:
    return ctx.case.tool_uses if expected is None else tuple(map(_read_tool_use, expected))


def _read_tool_use(use: ToolUse | Mapping[str, Json] | str) -> ToolUse:
    if isinstance(use, ToolUse):
        return use
    return ToolUse(use) if isinstance(use, str) else _TOOL_USE.validate_python(dict(use))


def _read_rubric(number: int, rubric: Rubric | Mapping[str, str] | str) -> Rubric:
    """Return a rubric; one that is only a text gets the id `r<number>`."""
    if isinstance(rubric, Rubric):
        return rubric
    return Rubric(f"r{number}", rubric) if isinstance(rubric, str) else _RUBRIC.validate_python(dict(rubric))


_ADHERENCE = "instruction_adherence_score"


async def score_adherence(ctx: TraceContext, rubrics: Sequence[Rubric] | None, threshold: float | None) -> Score:
    """Return the share of rubrics with the verdict yes: 1 without rubrics, 0 and an error if the judge failed.

    Args:
        rubrics: Judged on the whole trace; None for those of the case and of its turns.
    """
    all_tasks = list(_list_rubrics(ctx)) if rubrics is None else [(ctx.trace, tuple(rubrics))]
    tasks = [(trace, task_rubrics) for trace, task_rubrics in all_tasks if task_rubrics]
    if not tasks:
        return at_least(_ADHERENCE, 1.0, threshold, "no rubrics")
    if ctx.host.judge is None:
        return _make_failed_score("there is no judge", threshold)
    judgements: list[Judgement] = []
    for trace, task_rubrics in tasks:
        judgements.append(await ctx.host.judge(trace, ctx.case, task_rubrics, ctx.host.outputs))
    ctx.judgements += judgements
    verdicts = [verdict for judgement in judgements for verdict in judgement.verdicts]
    undecided = [verdict for verdict in verdicts if verdict.verdict is None]
    if undecided:
        return _make_failed_score(
            f"{len(undecided)} of {len(verdicts)} rubrics undecided: {undecided[0].rationale}", threshold
        )
    met = sum(verdict.verdict is True for verdict in verdicts)
    score = at_least(_ADHERENCE, met / len(verdicts), threshold, _describe_verdicts(verdicts))
    return Score(_ADHERENCE, score.value, score.passed, score.reason, threshold, by="judge")


def _list_rubrics(ctx: TraceContext) -> Iterator[tuple[Trace, tuple[Rubric, ...]]]:
    """Yield (trace, rubrics to judge on it): first of the whole case, then of each turn with rubrics."""
    yield ctx.trace, ctx.case.rubrics
    for number, turn in enumerate(ctx.case.turns):
        if turn.rubrics:
            yield ctx.trace.turns[number] if number < len(ctx.trace.turns) else Trace(), turn.rubrics


def _describe_verdicts(verdicts: Sequence[RubricVerdict]) -> str:
    not_met = [verdict for verdict in verdicts if not verdict.verdict]
    if not not_met:
        return f"all {len(verdicts)} rubrics are met"
    first = not_met[0]
    return f"{len(not_met)} of {len(verdicts)} not met: {first.rubric.property[:120]!r}: {first.rationale[:300]}"


def _make_failed_score(reason: str, threshold: float | None) -> Score:
    return Score(_ADHERENCE, 0.0, None if threshold is None else False, reason, threshold, by="judge", error=True)
