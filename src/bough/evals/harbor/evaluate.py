"""`run_harbor`: runs an agent on Harbor tasks, each in a separate container or in the local sandbox.

Source: ADK pull request 4575 (SkillsBench runner: filter, rebuild, build only, skip tests, prune interval, summary).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import anyio

from bough.agents.spec import AgentSpec
from bough.conversation.agent import settle_spec
from bough.errors import InvalidInput, SandboxUnavailable
from bough.evals.case import CaseInput, SetCase, TurnInput
from bough.evals.document import Fault
from bough.evals.eval_set import EvalSet
from bough.evals.harbor.dockerfile import SandboxPlan, plan_sandbox
from bough.evals.harbor.image import BuildSummary, ImageBuilder
from bough.evals.harbor.place import ReferenceAgent, reference_agent
from bough.evals.harbor.task import HarborTask, TaskListing, list_tasks
from bough.evals.harbor.trial import Trials, TrialSetting
from bough.evals.loop import EvalOptions, evaluate
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import AttemptResult
from bough.execution.container.engine import connect, engine_errors
from bough.execution.local import LocalSandboxCodeExecutor
from bough.guard import Limits
from bough.settings import Settings
from bough.skills.find.check import check
from bough.types import JsonObject

OWN_TASKS: Final = Path(__file__).parent / "tasks"
"""Five tasks with skills; the oracle solves all of them."""

TRACE_METRICS: Final = {"skill_discovery_score": 1.0, "no_tool_errors": 1.0}
"""Metrics, with their thresholds, that score an attempt when tests are skipped."""

_NO_SKILLS: Final = "it has no skills, so without its tests there is nothing to score"


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The result of one attempt at a task.

    Attributes:
        reward: 0 to 1; None if the tests were skipped or did not run.
        status: `passed` (solved), `failed`, `error` or `skipped`.
        log: Path of the test script's log; None if it did not run.
        log_end: The last lines of the log, if the reward is below 1.
    """

    task: str
    reward: float | None
    status: str
    reason: str
    seconds: float
    conversation: str | None
    log: str | None = None
    log_end: tuple[str, ...] = ()

    def as_dict(self) -> JsonObject:
        """Return the result as JSON."""
        return {
            "task": self.task,
            "reward": self.reward,
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "conversation": self.conversation,
            "log": self.log,
            "log_end": list(self.log_end),
        }


@dataclass(frozen=True, kw_only=True)
class HarborRun:
    """A run of tasks.

    Attributes:
        run: Id of the run; None if only images were built.
        engine: `container` or `sandbox`.
        builds: The images; empty in the sandbox.
        tasks: One result for each attempt, in the order of the plan.
        left_out: Tasks that could not be run, each with the reason.
        verified: False if tests were skipped and scores come from the trace.
        cases: The eval run whose attempts are `tasks`; None if only images were built.
    """

    run: str | None
    folder: Path | None
    engine: str
    isolation: str
    builds: BuildSummary
    tasks: tuple[TaskScore, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    faults: tuple[Fault, ...] = ()
    threshold: float = 1.0
    verified: bool = True
    cases: EvalRun | None = None

    @property
    def solved(self) -> int:
        """Number of attempts with reward 1."""
        return sum(task.status == "passed" for task in self.tasks)

    @property
    def mean_reward(self) -> float:
        """The mean over all attempts, where an error counts as 0; without tests, the share of attempts that passed."""
        if not self.tasks:
            return 0.0
        if not self.verified:
            return self.solved / len(self.tasks)
        return sum(task.reward or 0.0 for task in self.tasks) / len(self.tasks)

    @property
    def passed(self) -> bool:
        """Whether the mean reward is at least the threshold; for a run that only builds, whether every image exists."""
        if self.run is None:
            return all(image.id is not None for image in self.builds.images)
        return bool(self.tasks) and self.mean_reward >= self.threshold - 1e-9

    def as_dict(self) -> JsonObject:
        """Return the result as JSON."""
        return {
            "run": self.run,
            "folder": None if self.folder is None else str(self.folder),
            "engine": self.engine,
            "isolation": self.isolation,
            "verified": self.verified,
            "builds": self.builds.as_dict(),
            "tasks": [task.as_dict() for task in self.tasks],
            "left_out": [{"task": task, "reason": reason} for task, reason in self.left_out],
            "solved": self.solved,
            "mean_reward": round(self.mean_reward, 6),
            "threshold": self.threshold,
            "passed": self.passed,
        }


async def run_harbor(
    folder: str | Path,
    agent: AgentSpec | ReferenceAgent,
    *,
    filter: str = "*",
    sandbox: bool = False,
    jobs: int = 1,
    rebuild: bool = False,
    build_only: bool = False,
    skip_tests: bool = False,
    prune_interval: int = 0,
    timeout: float | None = None,
    allow_network: bool = False,
    repeat: int = 1,
    folder_of_runs: Path | None = None,
    settings: Settings | None = None,
    docker_host: str | None = None,
    resume: str | None = None,
    options: EvalOptions | None = None,
) -> HarborRun:
    """Run an agent on the tasks of a folder; the results are events in the logs of the attempts.

    Args:
        agent: A spec, `oracle` to run each task's own solution, or `nop` to do nothing.
        sandbox: Use the local sandbox, for tasks that need no image.
        build_only: Stop after the builds.
        skip_tests: Score by the trace alone; leaves out tasks without skills, which a trace cannot score.
        prune_interval: Remove untagged images after this many builds.
        timeout: Seconds for the agent; overrides the timeout of each task.
        allow_network: Give network access to tasks and builds that request it.
        docker_host: Address of the engine; None uses the environment variable `DOCKER_HOST`.
        options: Other options of the run; only verifiers receive its secrets.

    Raises:
        NotFound: The folder does not exist.
        InvalidInput: The folder has no task, or none can run in the sandbox.
        SandboxUnavailable: No container engine answers.
    """
    folder = Path(folder)
    listing = await anyio.to_thread.run_sync(list_tasks, folder, filter)
    left_out = [(fault.case, fault.message) for fault in listing.faults if fault.severity == "error"]
    if skip_tests:
        left_out += [(task.name, _NO_SKILLS) for task in listing.tasks if not task.skill_roots]
        listing = replace(listing, tasks=tuple(task for task in listing.tasks if task.skill_roots))
    plans: dict[str, SandboxPlan] = {}
    if sandbox:
        plans, refused_tasks = _plan_all(listing.tasks)
        left_out += refused_tasks
        listing = replace(listing, tasks=tuple(task for task in listing.tasks if task.name in plans))
    if not listing.tasks:
        raise InvalidInput(
            f"{folder} has no task to run", hint=left_out[0][1] if left_out else "see the faults of its tasks"
        )
    builds = BuildSummary()
    if not sandbox:
        build_options = {"rebuild": rebuild, "allow_network": allow_network, "prune_interval": prune_interval}
        builds = await anyio.to_thread.run_sync(lambda: _build_images(listing.tasks, docker_host, **build_options))
    run_options = options or EvalOptions()
    shared_fields: dict[str, Any] = {
        "engine": "sandbox" if sandbox else "container",
        "builds": builds,
        "left_out": tuple(left_out),
        "faults": listing.faults,
        "threshold": run_options.threshold,
        "verified": not skip_tests,
    }
    if build_only:
        return HarborRun(run=None, folder=None, isolation="", **shared_fields)
    setting = TrialSetting(
        tasks={task.name: task for task in listing.tasks},
        images={image.task: image for image in builds.images},
        plans=plans,
        sandbox=LocalSandboxCodeExecutor() if sandbox else None,
        skip_tests=skip_tests,
        allow_network=allow_network,
        timeout_seconds=timeout,
        secrets=run_options.secrets,
        docker_host=docker_host,
        repairs={task.name: list(_list_skill_problems(task)) for task in listing.tasks},
    )
    run_options = replace(run_options, jobs=jobs, repeat=repeat)
    settings = settings or Settings.load()
    try:
        run = await _run_trials(
            folder, listing, agent, setting, settings, folder_of_runs, resume, run_options, shared_fields
        )
    finally:
        if setting.sandbox is not None:
            await setting.sandbox.aclose()
    task_scores = tuple(_score_from_result(result) for result in run.cases)
    isolations = [str(result.data["harbor"]["isolation"]) for result in run.cases if "harbor" in result.data]
    isolation = isolations[0] if isolations else ""
    return HarborRun(run=run.run, folder=run.folder, isolation=isolation, tasks=task_scores, cases=run, **shared_fields)


async def _run_trials(
    folder: Path,
    listing: TaskListing,
    agent: AgentSpec | ReferenceAgent,
    setting: TrialSetting,
    settings: Settings,
    folder_of_runs: Path | None,
    resume: str | None,
    options: EvalOptions,
    shared_fields: Mapping[str, Any],
) -> EvalRun:
    """Run the attempts at the tasks with one environment each.

    Args:
        shared_fields: Fields of the `HarborRun`, of which `run.json` records engine, builds and left-out tasks.
    """
    spec = reference_agent(agent) if isinstance(agent, str) else settle_spec(agent, settings)
    spec = spec.model_copy(update={"discover_skills": False, "skill_roots": ()})
    trials = Trials(setting)
    max_timeout_seconds = max(task.agent_timeout_seconds for task in listing.tasks)
    metrics = {**options.metrics, **(TRACE_METRICS if setting.skip_tests else {})}
    builds: BuildSummary = shared_fields["builds"]
    trial_options = replace(
        options,
        kind="harbor",
        judge="none",
        metrics=metrics,
        limits=Limits(wall_seconds=(setting.timeout_seconds or max_timeout_seconds) + 1),
        # The agent must not see the verifiers' secrets; TrialSetting passes them to the verifier only.
        secrets=None,
        begin=trials.begin,
        prepare=trials.prepare,
        findings=trials.findings,
        record={
            "engine": shared_fields["engine"],
            "verified": not setting.skip_tests,
            "builds": builds.as_dict(),
            "left_out": [list(pair) for pair in cast("Sequence[tuple[str, str]]", shared_fields["left_out"])],
        },
    )
    return await evaluate(
        make_harbor_set(folder, listing, setting.plans),
        spec,
        settings=settings,
        folder=folder_of_runs,
        resume=resume,
        options=trial_options,
        **({} if setting.sandbox is None else {"executor": setting.sandbox}),
    )


def make_harbor_set(folder: Path, listing: TaskListing, plans: Mapping[str, SandboxPlan] | None = None) -> EvalSet:
    """Return tasks as the cases of a set.

    Args:
        plans: Sandbox plans by task name; their files are copied into the workspaces.
    """
    plans = plans or {}
    cases = tuple(
        SetCase(
            id=task.name,
            input=CaseInput(
                turns=(TurnInput(user=task.instruction),),
                files=tuple(plans[task.name].files) if task.name in plans else (),
                skill_roots=task.skill_roots,
                setup="harbor",
            ),
            metadata={"sha256": task.sha256},
        )
        for task in listing.tasks
    )
    digest = sha256(json.dumps([[case.id, case.metadata["sha256"]] for case in cases]).encode()).hexdigest()
    return EvalSet(
        name=folder.absolute().name, cases=cases, faults=listing.faults, path=folder, sha256=digest, format="harbor"
    )


def read_harbor_set(folder: Path, *, sandbox: bool) -> EvalSet:
    """Return the tasks of a folder as `run_harbor` would run them.

    Args:
        sandbox: Return only tasks that need no image.

    Raises:
        NotFound: The folder does not exist.
        InvalidInput: The folder has no task.
    """
    listing = list_tasks(folder)
    if not sandbox:
        return make_harbor_set(folder, listing)
    plans, _ = _plan_all(listing.tasks)
    sandbox_tasks = tuple(task for task in listing.tasks if task.name in plans)
    return make_harbor_set(folder, replace(listing, tasks=sandbox_tasks), plans)


def _build_images(tasks: Sequence[HarborTask], docker_host: str | None, **build_options: Any) -> BuildSummary:
    """Remove stale containers, then build the images; blocks.

    Raises:
        SandboxUnavailable: No engine answers; the hint says how many tasks can run without an engine.
    """
    try:
        builder = ImageBuilder(docker_host, **build_options)
    except SandboxUnavailable as error:
        plans, _ = _plan_all(tasks)
        hint = error.hint
        if plans:
            hint = f"{hint}; --sandbox runs {len(plans)} of {len(tasks)} tasks without an engine"
        raise SandboxUnavailable(error.message, hint=hint) from error
    try:
        # Before the builds, since containers of killed runs occupy the disk that builds need.
        remove_stale_containers(docker_host)
        return builder.build_all(tasks)
    finally:
        builder.close()


def _plan_all(tasks: Sequence[HarborTask]) -> tuple[dict[str, SandboxPlan], list[tuple[str, str]]]:
    """Return the sandbox plans by task name, and the tasks that need an image, each with the reason."""
    plans: dict[str, SandboxPlan] = {}
    refused_tasks: list[tuple[str, str]] = []
    for task in tasks:
        plan = plan_sandbox(task.environment, image=task.image, workdir=task.workdir, env=task.env)
        if plan.refused_instruction is None:
            plans[task.name] = plan
        else:
            refused_tasks.append((task.name, f"{plan.refused_instruction!r} needs an image"))
    return plans, refused_tasks


def _list_skill_problems(task: HarborTask) -> Iterator[str]:
    """Yield the problems found while reading the skills of a task, repaired or not."""
    for root in task.skill_roots:
        for checked in check(root, recursive=True):
            for diagnostic in checked.diagnostics:
                yield f"{Path(diagnostic.path).parent.name}: {diagnostic.message}"


def _score_from_result(result: AttemptResult) -> TaskScore:
    reward = result.scores.get("reward")
    harbor: JsonObject = result.data.get("harbor") or {}
    return TaskScore(
        task=result.case,
        reward=None if reward is None or reward.value is None else float(reward.value),
        status=result.status,
        reason=result.reason or ("" if reward is None else reward.reason),
        seconds=result.seconds,
        conversation=result.conversation,
        log=harbor.get("log"),
        log_end=tuple(harbor.get("log_end") or ()),
    )


def remove_stale_containers(docker_host: str | None) -> None:
    """Remove the containers of killed runs, recognised by the free lock of their run. Blocks."""
    engine = connect(docker_host)
    try:
        for container in engine.containers.list(all=True, filters={"label": "bough=task"}, ignore_removed=True):
            lock = container.labels.get("bough.lock")
            if lock and not _is_lock_held(Path(lock)):
                with suppress(*engine_errors()):
                    container.remove(force=True, v=True)
    finally:
        engine.close()


def _is_lock_held(lock: Path) -> bool:
    """Return whether another process holds a lock; False if the file of the lock does not exist."""
    try:
        # Closing the file releases the lock.
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
