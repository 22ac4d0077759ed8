"""`evaluate_skill`: runs each case of a skill with and without the skill, then the trigger queries."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.conversation.agent import AgentLike
from bough.errors import InvalidInput, StoreError
from bough.evals.document import Fault
from bough.evals.eval_set import EvalSet
from bough.evals.formats.skill import read_skill_set, read_trigger_set
from bough.evals.loop import EvalOptions, evaluate
from bough.evals.report.write import write_junit
from bough.evals.run.folder import RunFolder, find_run, plain_name
from bough.evals.run.read import RunReader
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import AttemptResult
from bough.evals.skill.benchmark import SIDES, SkillSides, make_benchmark, summarize_triggers, trigger_pass_rate
from bough.evals.trace import Trace
from bough.execution.base import CodeExecutor
from bough.guard import Limits
from bough.settings import Settings
from bough.skills.trust.tree import read_tree
from bough.types import JsonObject

MAX_OUTPUT_BYTES = 32 << 20
_ITERATION = re.compile(r"iteration-(\d+)\Z")


def create_iteration(results: Path) -> Path:
    """Create the folder of the next iteration and return it.

    Raises:
        StoreError: The folder cannot be created.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        matches = [_ITERATION.match(path.name) for path in results.iterdir()]
        numbers = [int(match[1]) for match in matches if match is not None]
        folder = results / f"iteration-{max(numbers, default=0) + 1}"
        folder.mkdir()
    except OSError as error:
        raise StoreError(
            f"cannot write {results}: {error.strerror}", hint="set another folder with --results DIR"
        ) from error
    return folder


async def write_iteration(folder: Path, run: RunFolder, results: Sequence[AttemptResult], repeat: int) -> None:
    """Write the files of every attempt into the folder of an iteration. Reads each log once.

    Raises:
        StoreError: A file cannot be written.
    """
    async with RunReader.open(run) as reader:
        for result in results:
            attempt_folder = folder / f"eval-{plain_name(result.case)}" / result.side
            if repeat > 1:
                attempt_folder = attempt_folder / f"run-{result.attempt}"
            answer = ""
            if result.conversation is not None:
                answer = Trace.of(await reader.read_events(UUID(result.conversation))).answer
            try:
                workspace = run.workspace(result.case, result.attempt, result.side)
                _write_attempt(attempt_folder, result, answer, workspace)
            except OSError as error:
                raise StoreError(
                    f"cannot write {attempt_folder}: {error.strerror}", hint="check the free space"
                ) from error


def _write_attempt(folder: Path, result: AttemptResult, answer: str, workspace: Path) -> None:
    """Write `outputs`, `timing.json` and `grading.json`; outputs above 32 MiB in total are omitted."""
    outputs = folder / "outputs"
    outputs.mkdir(parents=True)
    total = 0
    for name in result.data.get("outputs") or ():
        source = workspace / name
        if source.is_symlink() or not source.is_file():
            continue
        total += source.stat().st_size
        if total > MAX_OUTPUT_BYTES:
            break
        (outputs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, outputs / name)
    (outputs / "answer.md").write_text(answer + "\n", encoding="utf-8")
    write_json(folder / "timing.json", _make_timing(result))
    write_json(folder / "grading.json", grade(result))


def _make_timing(result: AttemptResult) -> JsonObject:
    return {
        "total_tokens": result.tokens,
        "duration_ms": round(result.seconds * 1000),
        "cost_usd": result.cost_usd,
        "steps": result.steps,
        "conversation": result.conversation,
    }


def grade(result: AttemptResult) -> JsonObject:
    """Return the content of `grading.json`; without assertions the pass rate is null."""
    assertions: list[JsonObject] = result.data.get("assertions") or []
    passed = sum(bool(assertion["passed"]) for assertion in assertions)
    return {
        "assertion_results": assertions,
        "summary": {
            "passed": passed,
            "failed": len(assertions) - passed,
            "total": len(assertions),
            "pass_rate": result.assertion_rate,
        },
    }


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


TRIGGER_STEPS = 3
"""A skill that is not used within this many steps counts as not triggered."""


@dataclass(frozen=True, kw_only=True)
class SkillEvalRun:
    """The result of a skill's evals.

    Attributes:
        benchmark: Content of `benchmark.json`.
        iteration: The folder `iteration-N` with the results; None if the skill has only trigger queries.
        cases: The run of the cases on both sides; None without cases.
        queries: The run of the trigger queries; None without queries.
        triggers: Figures of the trigger queries, by split; empty without queries.
    """

    benchmark: JsonObject
    iteration: Path | None
    cases: EvalRun | None
    queries: EvalRun | None
    triggers: JsonObject
    threshold: float
    faults: tuple[Fault, ...] = ()

    @property
    def pass_rate(self) -> float | None:
        """The mean pass rate with the skill; None without cases."""
        return None if self.cases is None else self.cases.pass_rate

    @property
    def passed(self) -> bool:
        """Whether the pass rates with the skill and of the trigger queries are at or above the threshold."""
        rates = [rate for rate in (self.pass_rate, trigger_pass_rate(self.triggers)) if rate is not None]
        return bool(rates) and all(rate >= self.threshold - 1e-9 for rate in rates)

    def as_dict(self) -> JsonObject:
        """Return the result as JSON."""
        runs = [run.run for run in (self.cases, self.queries) if run is not None]
        return {
            "run": runs[0] if runs else None,
            "runs": runs,
            "iteration": None if self.iteration is None else self.iteration.name,
            "folder": None if self.iteration is None else str(self.iteration),
            "benchmark": self.benchmark,
            "triggers": self.triggers,
            "not_judged": 0 if self.cases is None else self.cases.summary.not_judged,
            "faults": [fault.as_dict() for fault in self.faults],
            "threshold": self.threshold,
            "passed": self.passed,
        }


async def evaluate_skill(
    folder: Path,
    agent: AgentLike | None = None,
    *,
    skills: Sequence[Path] = (),
    results: Path | None = None,
    trigger_runs: int = 3,
    settings: Settings | None = None,
    executor: CodeExecutor | None = None,
    runs: Path | None = None,
    resume: str | None = None,
    options: EvalOptions | None = None,
    **overrides: Any,
) -> SkillEvalRun:
    """Run the cases of a skill with and without the skill, then its trigger queries, and write the results.

    Args:
        skills: Folders of skills available to both sides.
        results: Folder for `iteration-N`; None for `<skill>-workspace` next to the skill.
        trigger_runs: How often each trigger query runs; 0 skips the queries.
        runs: Folder of runs.
        resume: Continue this run of the cases or of the trigger queries.
        options: The options of the run.
        overrides: Single fields of `options`, by name.

    Raises:
        InvalidInput: The folder is not a skill, or has no evals.
        NotFound: The run to resume does not exist.
        Conflict: The run has other evals, another agent or another version of the skill.
    """
    folder = folder.absolute()  # noqa: ASYNC240 - only reads the current folder
    options = replace(options or EvalOptions(), **overrides)
    settings = settings or Settings.load()
    case_set = read_skill_set(folder)
    query_set = read_trigger_set(folder)
    if not case_set.cases and not query_set.cases:
        raise InvalidInput(f"{folder} has no evals", hint="`bough skills new` creates a skill with example evals")
    sides = SkillSides(folder, skills)
    record = {"skill": {"name": case_set.name, "sha256": read_tree(folder).digest}}
    shared_options: dict[str, Any] = {"agent_for": sides.agent_for, "begin": sides.begin, "record": record}
    arguments: dict[str, Any] = {"settings": settings, "executor": executor, "folder": runs}
    cases_resume, queries_resume = _find_runs(settings.home / "evals" if runs is None else runs, resume)
    cases_run: EvalRun | None = None
    if case_set.cases:
        case_options = replace(options, kind="skill", sides=SIDES, skill_folder=folder, keep=True, **shared_options)
        cases_run = await evaluate(case_set, agent, options=case_options, resume=cases_resume, **arguments)
    shared_options["record"] = {**record, "cases_run": None if cases_run is None else cases_run.run}
    queries_run = await _run_queries(
        query_set, agent, replace(options, **shared_options), trigger_runs, arguments, queries_resume
    )
    triggers = {} if queries_run is None else summarize_triggers(query_set, queries_run.cases)
    if cases_run is not None and queries_run is not None:
        await write_junit(RunFolder(cases_run.folder))  # again, with the queries as a second suite
    metadata: JsonObject = {
        "run": None if cases_run is None else cases_run.run,
        "skill": record["skill"],
        "model": None if cases_run is None else RunFolder(cases_run.folder).read_record()["model"],
        "repeat": options.repeat,
    }
    benchmark = make_benchmark(() if cases_run is None else cases_run.cases, metadata=metadata, triggers=triggers)
    iteration: Path | None = None
    if cases_run is not None:
        results_folder = folder.parent / f"{folder.name}-workspace" if results is None else results
        iteration = create_iteration(results_folder)
        await _write_results(iteration, cases_run, benchmark, options)
    return SkillEvalRun(
        benchmark=benchmark,
        iteration=iteration,
        cases=cases_run,
        queries=queries_run,
        triggers=triggers,
        threshold=options.threshold,
        faults=tuple(dict.fromkeys((*case_set.faults, *query_set.faults))),
    )


def _find_runs(root: Path, name: str | None) -> tuple[str | None, str | None]:
    """Return (run of the cases, run of the trigger queries) to resume for a name; None for a run to start.

    Raises:
        NotFound: No run matches.
        InvalidInput: Several runs match.
    """
    if name is None:
        return None, None
    run = find_run(root, name)
    record = run.read_record()
    if record.get("kind") == "triggers":
        return record.get("cases_run"), run.run
    queries_run = run.find_queries()
    return run.run, None if queries_run is None else queries_run.run


async def _run_queries(
    query_set: EvalSet,
    agent: AgentLike | None,
    options: EvalOptions,
    trigger_runs: int,
    arguments: dict[str, Any],
    resume: str | None,
) -> EvalRun | None:
    """Run the trigger queries; return None if there are none or `trigger_runs` is 0.

    Args:
        arguments: Further arguments of `evaluate`.
    """
    if not query_set.cases or trigger_runs < 1:
        return None
    query_options = replace(
        options,
        kind="triggers",
        repeat=trigger_runs,
        judge="none",
        metrics={},
        filter=None,
        limit=None,
        limits=Limits(steps=TRIGGER_STEPS, wall_seconds=600),
    )
    return await evaluate(query_set, agent, options=query_options, resume=resume, **arguments)


async def _write_results(iteration: Path, run: EvalRun, benchmark: JsonObject, options: EvalOptions) -> None:
    """Write the folder of an iteration; remove the workspaces of the run unless `options.keep` is set."""
    run_folder = RunFolder(run.folder)
    await write_iteration(iteration, run_folder, run.cases, options.repeat)
    write_json(iteration / "benchmark.json", benchmark)
    for name in ("report.html", "run.json"):
        shutil.copyfile(run_folder.path / name, iteration / name)
    if not options.keep:
        shutil.rmtree(run_folder.path / "work", ignore_errors=True)
