"""One attempt at a case: its workspace, its conversation, its scores, its result note.

pydantic-evals drives the attempts through a lifecycle, whose hooks this module implements.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import anyio
from pydantic_evals import Case
from pydantic_evals.evaluators import EvaluatorContext
from pydantic_evals.lifecycle import CaseLifecycle
from pydantic_evals.reporting import ReportCase, ReportCaseFailure

from bough.agents.spec import AgentSpec
from bough.conversation.log.state import NOTHING_USED, add_usage
from bough.errors import BoughError
from bough.evals.case import CaseInput, Rubric
from bough.evals.context import AttemptHost, TraceContext
from bough.evals.converse import ConversationHost
from bough.evals.judge.judge import Judge, JudgedCase
from bough.evals.judge.verdict import Judgement
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import as_note, write_note
from bough.evals.run.plan import PlannedAttempt
from bough.evals.run.read import read_trace
from bough.evals.run.recorded import Recordings, record_attempt
from bough.evals.run.summary import AttemptResult
from bough.evals.score import Score
from bough.evals.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from bough.events.model import Usage
    from bough.types import JsonObject

MAX_OUTPUTS = 256

Prepare: TypeAlias = "Callable[[PlannedAttempt, AgentSpec, Path], AbstractAsyncContextManager[AgentSpec]]"
"""Sets up an attempt in its workspace and yields the agent with the attempt's tools."""

AgentFor: TypeAlias = Callable[[PlannedAttempt, AgentSpec, RunFolder], AgentSpec]
"""Returns the agent of an attempt, derived from the run's agent."""

Findings: TypeAlias = "Callable[[PlannedAttempt, AttemptEnd], tuple[Sequence[Score], JsonObject]]"
"""Returns results of an attempt that its log does not contain: scores, and fields of its result note."""

OnResult: TypeAlias = Callable[[PlannedAttempt, AttemptResult], Awaitable[None]]
"""Called with the result of an attempt, after the result note is written."""


@dataclass(kw_only=True)
class AttemptRunner(ABC):
    """The configuration, the results and the cost that all attempts of a run share.

    Attributes:
        metrics: Thresholds by metric, given by the caller.
        recordings: Recorded responses that replace model and judge.
        record_to: Folder for bundles of attempts and judgements.
        skill_folder: Folder of the evaluated skill.
        keep: Whether workspaces of passed attempts remain.
        judge_host: Host of the judge's conversations; None for `host`.
        seed: Seed of the run; attempt n passes `seed + n` to the model unless its agent sets one.
        spent_usd: Cost of agent and judge so far.
    """

    host: ConversationHost
    folder: RunFolder
    agent: AgentSpec
    judge: Judge | None = None
    judge_host: ConversationHost | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    agent_for: AgentFor | None = None
    prepare: Prepare | None = None
    findings: Findings | None = None
    recordings: Recordings | None = None
    record_to: Path | None = None
    skill_folder: Path | None = None
    max_cost_usd: float | None = None
    keep: bool = False
    seed: int = 0
    on_result: OnResult | None = None
    spent_usd: float = 0.0
    results: list[AttemptResult] = field(default_factory=list[AttemptResult])

    @property
    def has_budget(self) -> bool:
        """Whether another attempt may start."""
        return self.max_cost_usd is None or self.spent_usd < self.max_cost_usd

    def spec_for(self, planned: PlannedAttempt) -> AgentSpec:
        """Return the agent of an attempt, with the skills its case allows."""
        case = planned.case.input
        spec = self.agent if self.agent_for is None else self.agent_for(planned, self.agent, self.folder)
        if self.recordings is not None:
            spec = self.recordings.replace_model(planned, spec)
        spec = spec.model_copy(update={"settings": {"seed": self.seed + planned.number, **spec.settings}})
        if not case.offer_skills:
            return spec.model_copy(update={"skills": (), "discover_skills": False, "skill_roots": ()})
        return spec.model_copy(update={"skill_roots": (*case.skill_roots, *spec.skill_roots)})

    def judge_for(self, planned: PlannedAttempt) -> Judge | None:
        """Return the judge of an attempt: the run's, or one that replays recorded responses."""
        if self.judge is None or self.recordings is None:
            return self.judge
        return self.recordings.judge_for(planned, self.judge.votes)

    @abstractmethod
    async def run(self, planned: PlannedAttempt) -> AttemptEnd:
        """Run or continue an attempt and return how it ended, including errors."""

    async def read_trace(self, conversation: UUID) -> Trace:
        """Return the trace of a conversation in the run's store; each event is read once."""
        return await read_trace(self.host.store, conversation)


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How the conversation of an attempt ended.

    Attributes:
        status: Status of the conversation; empty if none was started.
        error: An error that ended it and that the agent did not cause.
    """

    status: str
    answer: str = ""
    limit: str | None = None
    reason: str = ""
    error: BoughError | None = None


# A context variable, since pydantic-evals runs attempts concurrently and passes only the inputs to `attempt`.
_CURRENT_ATTEMPT: ContextVar[Attempt] = ContextVar("bough.evals.attempt")


async def attempt(inputs: CaseInput) -> str:
    """Run the attempt that `Attempt.setup` made current, and return its answer; failures are recorded, not raised."""
    return await _CURRENT_ATTEMPT.get().run()


class Attempt(CaseLifecycle[CaseInput, str, Any]):
    """Implements the hooks of pydantic-evals for one attempt."""

    def __init__(self, case: Case[CaseInput, str, Any], runner: AttemptRunner, planned: PlannedAttempt) -> None:
        super().__init__(case)
        self._runner = runner
        self._planned = planned
        self._end = AttemptEnd(status="error", reason="it was not run")
        self._context: TraceContext | None = None
        self._judge = runner.judge_for(planned)

    async def setup(self) -> None:
        """Make this attempt the current one."""
        _CURRENT_ATTEMPT.set(self)

    async def run(self) -> str:
        """Run the conversation and return its answer."""
        self._end = await self._runner.run(self._planned)
        return self._end.answer

    async def prepare_context(
        self, ctx: EvaluatorContext[CaseInput, str, Any]
    ) -> EvaluatorContext[CaseInput, str, Any]:
        """Read the log once and return the context with its trace."""
        trace = await self._read_trace()
        workspace = self._workspace
        self._context = TraceContext(
            name=ctx.name,
            inputs=ctx.inputs,
            metadata=ctx.metadata,
            expected_output=ctx.expected_output,
            output=trace.answer or self._end.answer,
            duration=trace.duration_seconds,
            _span_tree=ctx._span_tree,  # pyright: ignore[reportPrivateUsage] - a field of its constructor
            attributes=ctx.attributes,
            metrics=_usage_metrics(trace),
            trace=trace,
            host=AttemptHost(
                workspace=workspace if workspace.is_dir() else None,
                outputs=tuple(await anyio.to_thread.run_sync(list_outputs, workspace, ctx.inputs)),
                skill_folder=self._runner.skill_folder,
                executor=self._runner.host.executor,
                judge=None if self._judge is None else self._judge_rubrics,
            ),
        )
        return self._context

    async def teardown(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any] | None) -> None:
        """Write the result note, call `on_result`, and release the trace."""
        if result is None:  # interrupted: no note, so that a resumed run continues the attempt
            return
        outcome = self._make_result(result)
        runner, context = self._runner, self._context
        judge_usage = NOTHING_USED
        for judgement in context.judgements if context is not None else ():
            judge_usage = add_usage(judge_usage, judgement.usage)
        agent_usage = NOTHING_USED if context is None else context.trace.usage
        if outcome.status != "skipped" or outcome.conversation is not None:
            data = as_note(
                runner.folder.run, outcome, usage=agent_usage, judge_usage=judge_usage, scored_with=version("bough")
            )
            try:
                await write_note(runner.host.store, self._planned.conversation, data, tags=self._planned.tags)
                if runner.record_to is not None:
                    await record_attempt(runner.host.store, outcome, runner.record_to)
            except BoughError as error:
                outcome = AttemptResult(
                    case=outcome.case, attempt=outcome.attempt, side=outcome.side, status="error",
                    reason=f"the result could not be saved: {error.message}",
                )  # fmt: skip
        runner.spent_usd += (agent_usage.cost_usd or 0.0) + (judge_usage.cost_usd or 0.0)
        runner.results.append(outcome)
        if runner.on_result is not None:
            await runner.on_result(self._planned, outcome)
        # After the note: a crash before it must not leave an attempt without a result and without its files.
        if outcome.passed and not runner.keep:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._workspace, ignore_errors=True))
        self._context = None

    @property
    def _workspace(self) -> Path:
        return self._runner.folder.workspace(self._planned.case.id, self._planned.number, self._planned.side)

    async def _read_trace(self) -> Trace:
        """Return the trace; empty if the log cannot be read, which becomes the error of the attempt."""
        try:
            return await self._runner.read_trace(self._planned.conversation)
        except BoughError as error:
            if not self._end.reason and self._end.error is None:
                self._end = AttemptEnd(status="error", error=error)
            return Trace(status=self._end.status)

    async def _judge_rubrics(
        self, trace: Trace, case: CaseInput, rubrics: Sequence[Rubric], outputs: Sequence[str]
    ) -> Judgement:
        """Return the verdicts of the attempt's judge, whose conversations get the tags of the attempt."""
        runner, judge = self._runner, self._judge
        assert judge is not None  # noqa: S101 - the context contains this method only with a judge
        tags = {**self._planned.tags, "eval.role": "judge", "eval.judge": self._planned.name[:200]}
        judged_case = JudgedCase(
            key=f"{runner.folder.run}/{self._planned.name}",
            trace=trace,
            rubrics=rubrics,
            files=await anyio.to_thread.run_sync(measure_files, self._workspace, outputs),
            expected=case.expected or case.reference,
            tags=tags,
        )
        folder = runner.folder.path / "judge"
        folder.mkdir(exist_ok=True)
        return await judge.judge(judged_case, runner.judge_host or runner.host, folder)

    def _make_result(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any]) -> AttemptResult:
        """Return the result of the attempt from its end and its scores."""
        context, end = self._context, self._end
        scores: dict[str, Score] = {} if context is None else dict(context.scores)
        if isinstance(result, ReportCase):
            scores |= _convert_scores(result, scores, {**self._planned.case.input.expect, **self._runner.metrics})
        data: dict[str, Any] = {}
        if self._runner.findings is not None and end.status:
            extra_scores, extra_fields = self._runner.findings(self._planned, end)
            scores |= {score.name: score for score in extra_scores}
            data |= extra_fields
        status, reason = _decide_status(end, scores, self._planned.case.input)
        if isinstance(result, ReportCaseFailure):
            status, reason = "error", result.error_message
        error = {"code": end.error.code, "message": end.error.message} if end.error is not None else None
        trace = Trace() if context is None else context.trace
        judgements = [] if context is None else context.judgements
        if context is not None and context.assertions:
            data["assertions"] = [assertion.as_dict() for assertion in context.assertions]
        if judgements:
            data["verdicts"] = [verdict.as_dict() for judgement in judgements for verdict in judgement.verdicts]
        if context is not None and context.host.outputs:
            data["outputs"] = list(context.host.outputs)
        return AttemptResult(
            case=self._planned.case.id,
            attempt=self._planned.number,
            side=self._planned.side,
            status=status,
            reason=reason,
            scores=scores,
            conversation=str(self._planned.conversation) if end.status else None,
            cost_usd=trace.cost_usd,
            tokens=trace.usage.input_tokens + trace.usage.output_tokens,
            judge_cost_usd=_judge_cost_usd(judgements),
            seconds=trace.duration_seconds,
            steps=trace.steps,
            judge=tuple(str(id) for judgement in judgements for id in judgement.conversations),
            error=error,
            data=data,
        )


def _judge_cost_usd(judgements: Sequence[Judgement]) -> float | None:
    """Return the cost of the judge in dollars; None if a price is unknown."""
    total: Usage = NOTHING_USED
    for judgement in judgements:
        if judgement.usage.cost_usd is None and judgement.usage.input_tokens + judgement.usage.output_tokens:
            return None
        total = add_usage(total, judgement.usage)
    return total.cost_usd or 0.0


def _decide_status(end: AttemptEnd, scores: Mapping[str, Score], case: CaseInput) -> tuple[str, str]:
    """Return (status, reason) of an attempt."""
    if not end.status:
        return "skipped", end.reason
    if case.setup == "harbor" and "reward" in scores:  # the verifier decides, even if the agent ended in an error
        return decide_by_scores(scores)
    if end.error is not None or end.status == "error":
        return "error", end.error.message if end.error is not None else end.reason or "the run ended in an error"
    if end.status == "waiting_for_confirmation":
        return "failed", "the agent asked for confirmation"
    # A trigger query may stop before it is finished, as soon as it is decided.
    has_failed_score = any(score.error for score in scores.values())
    if end.status != "finished" and case.should_trigger is None and not has_failed_score:
        return (
            "failed",
            f"the limit {end.limit} was reached" if end.limit else f"the run ended with status {end.status}",
        )
    if case.setup == "skill" and case.should_trigger is None and "assertions" not in scores:
        return "skipped", "no assertion was judged" if case.checks else "no assertions"
    return decide_by_scores(scores)


def decide_by_scores(scores: Mapping[str, Score]) -> tuple[str, str]:
    """Return (status, reason) of a finished attempt: by its first error, else by its first failed score."""
    for score in scores.values():
        if score.error:
            return "error", f"{score.name}: {score.reason}"
    for score in scores.values():
        if score.passed is False:
            return "failed", f"{score.name}: {score.reason}"
    return "passed", ""


def _convert_scores(
    result: ReportCase[Any, Any, Any], own_scores: Mapping[str, Score], thresholds: Mapping[str, float | None]
) -> dict[str, Score]:
    """Return the scores of other evaluators: assertions pass or fail, numbers pass or fail only with a threshold.

    Args:
        own_scores: Scores of bough's evaluators, by name; these are not converted.
    """
    scores: dict[str, Score] = {}
    for name, entry in result.assertions.items():
        source = entry.source.name
        scores[name] = Score(name, 1.0 if entry.value else 0.0, bool(entry.value), entry.reason or "", 1.0, source)
    for name, entry in result.scores.items():
        if name not in own_scores:
            threshold = thresholds.get(name)
            passed = None if threshold is None else entry.value >= threshold
            scores[name] = Score(name, entry.value, passed, entry.reason or "", threshold, entry.source.name)
    for name, entry in result.labels.items():
        scores[name] = Score(
            name, None, None, f"{entry.value}: {entry.reason or ''}".strip(": "), None, entry.source.name
        )
    for failure in result.evaluator_failures:
        scores[failure.name] = Score(
            failure.name, 0.0, False, failure.error_message[:500], None, failure.source.name, error=True
        )
    return scores


def _usage_metrics(trace: Trace) -> dict[str, int | float]:
    """Return the usage by pydantic-evals' metric names; replaces the numbers that pydantic-evals counted."""
    metrics: dict[str, int | float] = {
        "requests": trace.steps,
        "input_tokens": trace.usage.input_tokens,
        "output_tokens": trace.usage.output_tokens,
    }
    return metrics | ({"cost": trace.cost_usd} if trace.cost_usd is not None else {})


def make_workspace(workspace: Path, case: CaseInput) -> None:
    """Create the workspace of an attempt; an existing one belongs to an interrupted attempt and remains."""
    if workspace.exists():
        return
    staging = workspace.with_name(f".{workspace.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for file in case.files:
        target = staging / file.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.source.is_dir():
            shutil.copytree(file.source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(file.source, target)
    if case.state is not None:
        (staging / "state.json").write_text(_state_text(case), encoding="utf-8")
    staging.rename(workspace)  # atomic: a killed process leaves no partial workspace under this name


def list_outputs(workspace: Path, case: CaseInput) -> list[str]:
    """Return the new and changed files of a workspace: relative paths, sorted, at most `MAX_OUTPUTS`."""
    sources = {file.target: file.source for file in case.files}
    outputs: list[str] = []
    for path in sorted(workspace.rglob("*")):
        name = path.relative_to(workspace).as_posix()
        if path.is_symlink() or not path.is_file():
            continue
        source = sources.get(name) or _source_in_folder(name, sources)
        if source is not None and source.is_file() and source.read_bytes() == path.read_bytes():
            continue
        if name == "state.json" and case.state is not None and path.read_text("utf-8", "replace") == _state_text(case):
            continue
        outputs.append(name)
        if len(outputs) == MAX_OUTPUTS:
            break
    return outputs


def measure_files(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the sizes of files of a folder in bytes, by name; missing files are omitted."""
    sizes: dict[str, int] = {}
    for name in names:
        with suppress(OSError):
            sizes[name] = (folder / name).lstat().st_size
    return sizes


def _source_in_folder(name: str, sources: Mapping[str, Path]) -> Path | None:
    """Return the source of a file that was copied as part of a folder; None if there is none."""
    for target, source in sources.items():
        if name.startswith(f"{target.rstrip('/')}/"):
            return source / name[len(target.rstrip("/")) + 1 :]
    return None


def _state_text(case: CaseInput) -> str:
    return json.dumps(case.state, indent=1, ensure_ascii=False) + "\n"
