"""One attempt at a case: its workspace, its conversation, its scores, its result note.

pydantic-evals drives the attempts; what it knows of one is a lifecycle, whose hooks this module fills.
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
"""What an attempt needs around it: given its workspace, yields the agent with the tools that belong to it."""

AgentFor: TypeAlias = Callable[[PlannedAttempt, AgentSpec, RunFolder], AgentSpec]
"""Gives an attempt its agent, from the run's."""

Findings: TypeAlias = "Callable[[PlannedAttempt, AttemptEnd], tuple[Sequence[Score], JsonObject]]"
"""What is known of an attempt besides its log: scores, and fields of its result note."""

OnResult: TypeAlias = Callable[[PlannedAttempt, AttemptResult], Awaitable[None]]


@dataclass(kw_only=True)
class AttemptRunner(ABC):
    """What all attempts of a run share, and what they add up to.

    Attributes:
        metrics: Thresholds named by the caller.
        recordings: Answer instead of model and judge.
        record_to: Where attempts and judgements are written as bundles.
        skill_folder: Of the skill that is tried.
        judge_host: Where the judge's conversations are; None: among the attempts.
        seed: Of the run; the model of attempt n is given `seed + n`, unless its agent names one.
        spent_usd: Agent and judge, so far.
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

    def spec_of(self, planned: PlannedAttempt) -> AgentSpec:
        """Return the agent of an attempt, with the skills that its case allows."""
        case = planned.case.input
        spec = self.agent if self.agent_for is None else self.agent_for(planned, self.agent, self.folder)
        if self.recordings is not None:
            spec = self.recordings.agent_of(planned, spec)
        spec = spec.model_copy(update={"settings": {"seed": self.seed + planned.number, **spec.settings}})
        if not case.offer_skills:
            return spec.model_copy(update={"skills": (), "discover_skills": False, "skill_roots": ()})
        return spec.model_copy(update={"skill_roots": (*case.skill_roots, *spec.skill_roots)})

    def judge_of(self, planned: PlannedAttempt) -> Judge | None:
        """Return the judge of an attempt: the run's, or what was recorded of it."""
        if self.judge is None or self.recordings is None:
            return self.judge
        return self.recordings.judge_of(planned, self.judge.votes)

    @abstractmethod
    async def run(self, planned: PlannedAttempt) -> AttemptEnd:
        """Run an attempt, or continue it, and return how it ended; errors are in what is returned."""

    async def read_trace(self, conversation: UUID) -> Trace:
        """Return the trace of a log of the run's store; each event is read once."""
        return await read_trace(self.host.store, conversation)


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How the conversation of an attempt ended.

    Attributes:
        status: Of the conversation; empty where none was started.
        error: What ended it that is not the agent's doing.
    """

    status: str
    answer: str = ""
    limit: str | None = None
    reason: str = ""
    error: BoughError | None = None


_CURRENT: ContextVar[Attempt] = ContextVar("bough.evals.attempt")


async def attempt(inputs: CaseInput) -> str:
    """Run the attempt that its lifecycle announced, and return the answer; never raises what an eval can record."""
    return await _CURRENT.get().run()


class Attempt(CaseLifecycle[CaseInput, str, Any]):
    """The hooks of one attempt."""

    def __init__(self, case: Case[CaseInput, str, Any], runner: AttemptRunner, planned: PlannedAttempt) -> None:
        super().__init__(case)
        self._runner = runner
        self._planned = planned
        self._end = AttemptEnd(status="error", reason="it was not run")
        self._context: TraceContext | None = None
        self._judge_model = runner.judge_of(planned)

    async def setup(self) -> None:
        """Announce this attempt to the task, which is given nothing but the inputs."""
        _CURRENT.set(self)

    async def run(self) -> str:
        """Run the conversation; return its answer."""
        self._end = await self._runner.run(self._planned)
        return self._end.answer

    async def prepare_context(
        self, ctx: EvaluatorContext[CaseInput, str, Any]
    ) -> EvaluatorContext[CaseInput, str, Any]:
        """Read the log once and return the context with its trace."""
        trace, workspace = await self._read_trace(), self._workspace
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
                judge=None if self._judge_model is None else self._judge,
            ),
        )
        return self._context

    async def teardown(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any] | None) -> None:
        """Write the result note, tell who listens, and let go of the trace."""
        if result is None:  # interrupted: a resumed run continues with it
            return
        outcome = self._outcome(result)
        runner, context = self._runner, self._context
        judged = NOTHING_USED
        for judgement in context.judgements if context is not None else ():
            judged = add_usage(judged, judgement.usage)
        used = NOTHING_USED if context is None else context.trace.usage
        if outcome.status != "skipped" or outcome.conversation is not None:
            data = as_note(runner.folder.run, outcome, usage=used, judge_usage=judged, scored_with=version("bough"))
            try:
                await write_note(runner.host.store, self._planned.conversation, data, tags=self._planned.tags)
                if runner.record_to is not None:
                    await record_attempt(runner.host.store, outcome, runner.record_to)
            except BoughError as error:
                outcome = AttemptResult(
                    case=outcome.case, attempt=outcome.attempt, side=outcome.side, status="error",
                    reason=f"the result could not be kept: {error.message}",
                )  # fmt: skip
        runner.spent_usd += (used.cost_usd or 0.0) + (judged.cost_usd or 0.0)
        runner.results.append(outcome)
        if runner.on_result is not None:
            await runner.on_result(self._planned, outcome)
        if outcome.passed and not runner.keep:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._workspace, ignore_errors=True))
        self._context = None

    @property
    def _workspace(self) -> Path:
        return self._runner.folder.workspace(self._planned.case.id, self._planned.number, self._planned.side)

    async def _read_trace(self) -> Trace:
        try:
            return await self._runner.read_trace(self._planned.conversation)
        except BoughError as error:
            if not self._end.reason and self._end.error is None:
                self._end = AttemptEnd(status="error", error=error)
            return Trace(status=self._end.status)

    async def _judge(
        self, trace: Trace, case: CaseInput, rubrics: Sequence[Rubric], outputs: Sequence[str]
    ) -> Judgement:
        runner, judge = self._runner, self._judge_model
        assert judge is not None  # noqa: S101 - it is only handed out where there is one
        tags = {**self._planned.tags, "eval.role": "judge", "eval.judge": self._planned.name[:200]}
        judged = JudgedCase(
            key=f"{runner.folder.run}/{self._planned.name}",
            trace=trace,
            rubrics=rubrics,
            files=await anyio.to_thread.run_sync(measure_files, self._workspace, outputs),
            expected=case.expected or case.reference,
            tags=tags,
        )
        folder = runner.folder.path / "judge"
        folder.mkdir(exist_ok=True)
        return await judge.judge(judged, runner.judge_host or runner.host, folder)

    def _outcome(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any]) -> AttemptResult:
        """Return what the attempt came to, from how it ended and what its scores say."""
        context, end = self._context, self._end
        scores: dict[str, Score] = {} if context is None else dict(context.scores)
        if isinstance(result, ReportCase):
            scores |= _foreign_scores(result, scores, {**self._planned.case.input.expect, **self._runner.metrics})
        data: dict[str, Any] = {}
        if self._runner.findings is not None and end.status:
            more, fields = self._runner.findings(self._planned, end)
            scores |= {score.name: score for score in more}
            data |= fields
        status, reason = _decide(end, scores, self._planned.case.input)
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
            judge_cost_usd=_cost_of(judgements),
            seconds=trace.duration_seconds,
            steps=trace.steps,
            judge=tuple(str(id) for judgement in judgements for id in judgement.conversations),
            error=error,
            data=data,
        )


def _cost_of(judgements: Sequence[Judgement]) -> float | None:
    """Return the dollars that the judge cost; None where a price is not known."""
    total: Usage = NOTHING_USED
    for judgement in judgements:
        if judgement.usage.cost_usd is None and judgement.usage.input_tokens + judgement.usage.output_tokens:
            return None
        total = add_usage(total, judgement.usage)
    return total.cost_usd or 0.0


def _decide(end: AttemptEnd, scores: Mapping[str, Score], case: CaseInput) -> tuple[str, str]:
    """Return (status, reason) of an attempt."""
    if not end.status:
        return "skipped", end.reason
    if case.setup == "harbor" and "reward" in scores:  # verified, however the agent ended
        return judge_scores(scores)
    if end.error is not None or end.status == "error":
        return "error", end.error.message if end.error is not None else end.reason or "the run ended in an error"
    if end.status == "waiting_for_confirmation":
        return "failed", "asked a person"
    if end.status != "finished" and case.should_trigger is None and not any(score.error for score in scores.values()):
        # A trigger query may stop as soon as it is decided.
        return "failed", f"the limit {end.limit} was reached" if end.limit else f"the run ended {end.status}"
    if case.setup == "skill" and case.should_trigger is None and "assertions" not in scores:
        return "skipped", "no assertion was judged" if case.checks else "no assertions"
    return judge_scores(scores)


def judge_scores(scores: Mapping[str, Score]) -> tuple[str, str]:
    """Return (status, reason) of an attempt that ended well, from its scores alone."""
    if broken := next((score for score in scores.values() if score.error), None):
        return "error", f"{broken.name}: {broken.reason}"
    if missed := next((score for score in scores.values() if score.passed is False), None):
        return "failed", f"{missed.name}: {missed.reason}"
    return "passed", ""


def _foreign_scores(
    result: ReportCase[Any, Any, Any], ours: Mapping[str, Score], thresholds: Mapping[str, float | None]
) -> dict[str, Score]:
    """Return what evaluators of others reported: assertions pass or fail, numbers are shown unless bounded."""
    found: dict[str, Score] = {}
    for name, each in result.assertions.items():
        by = each.source.name
        found[name] = Score(name, 1.0 if each.value else 0.0, bool(each.value), each.reason or "", 1.0, by)
    for name, each in result.scores.items():
        if name not in ours:
            bound = thresholds.get(name)
            passed = None if bound is None else each.value >= bound
            found[name] = Score(name, each.value, passed, each.reason or "", bound, each.source.name)
    for name, each in result.labels.items():
        found[name] = Score(name, None, None, f"{each.value}: {each.reason or ''}".strip(": "), None, each.source.name)
    for failure in result.evaluator_failures:
        found[failure.name] = Score(
            failure.name, 0.0, False, failure.error_message[:500], None, failure.source.name, error=True
        )
    return found


def _usage_metrics(trace: Trace) -> dict[str, int | float]:
    """Return the numbers that pydantic-evals knows by these names. They are set, not added to what it counted."""
    metrics: dict[str, int | float] = {
        "requests": trace.steps,
        "input_tokens": trace.usage.input_tokens,
        "output_tokens": trace.usage.output_tokens,
    }
    return metrics | ({"cost": trace.cost_usd} if trace.cost_usd is not None else {})


def make_workspace(workspace: Path, case: CaseInput) -> None:
    """Make the workspace of an attempt; one that already exists belongs to an interrupted attempt and stays."""
    if workspace.exists():
        return
    part = workspace.with_name(f".{workspace.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for file in case.files:
        target = part / file.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.source.is_dir():
            shutil.copytree(file.source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(file.source, target)
    if case.state is not None:
        (part / "state.json").write_text(_state_text(case), encoding="utf-8")
    part.rename(workspace)  # whole or not at all, whenever the process is killed


def list_outputs(workspace: Path, case: CaseInput) -> list[str]:
    """Return the files that are new or changed in a workspace, relative, sorted, at most 256."""
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
    """Return the sizes of files of a folder in bytes, by name; those that are gone are left out."""
    sizes: dict[str, int] = {}
    for name in names:
        with suppress(OSError):
            sizes[name] = (folder / name).lstat().st_size
    return sizes


def _source_in_folder(name: str, sources: Mapping[str, Path]) -> Path | None:
    """Return the source of a file that came with a folder."""
    for target, source in sources.items():
        if name.startswith(f"{target.rstrip('/')}/"):
            return source / name[len(target.rstrip("/")) + 1 :]
    return None


def _state_text(case: CaseInput) -> str:
    return json.dumps(case.state, indent=1, ensure_ascii=False) + "\n"
