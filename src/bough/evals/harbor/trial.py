"""Prepares the environment of each attempt at a task, and verifies the attempt when the agent has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from bough.agents.spec import AgentSpec
from bough.errors import BoughError, Conflict, InvalidInput, SandboxUnavailable
from bough.evals.document import write_whole
from bough.evals.harbor.dockerfile import SandboxPlan, fill_variables
from bough.evals.harbor.image import BuiltImage
from bough.evals.harbor.place import ContainerBashTool, SolutionTool, TrialPlace
from bough.evals.harbor.reward import LOG_SEPARATOR, MAX_REWARD_BYTES, REWARD_JSON, REWARD_TEXT, Reward, parse_reward
from bough.evals.harbor.sandbox_place import SandboxPlace
from bough.evals.harbor.task import HarborTask
from bough.evals.run.attempt import AttemptEnd
from bough.evals.score import Score
from bough.execution import CodeExecutor, ExecutionLimits, TaskContainerExecutor
from bough.execution.container.command import CommandOutcome
from bough.execution.request import WORK
from bough.guard import Limits
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.evals.run.folder import RunFolder
    from bough.evals.run.plan import PlannedAttempt
    from bough.execution.base import CodeExecutor
    from bough.guard import Secrets


COMMAND_SECONDS = 300.0
_LOG_BYTES = 64 << 10
_LOG_LINES = 12
_LOG_LINE_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class TrialSetting:
    """What the trials of a run share.

    Attributes:
        images: Images by task; used if `sandbox` is None.
        plans: Sandbox plans by task.
        sandbox: The executor for a run without a container engine.
        timeout_seconds: Overrides the agent's timeout of each task.
        secrets: Values for the variables of verifiers.
        repairs: Repairs made while reading skills, by task.
    """

    tasks: Mapping[str, HarborTask]
    images: Mapping[str, BuiltImage] = field(default_factory=dict[str, BuiltImage])
    plans: Mapping[str, SandboxPlan] = field(default_factory=dict[str, SandboxPlan])
    sandbox: CodeExecutor | None = None
    skip_tests: bool = False
    allow_network: bool = False
    timeout_seconds: float | None = None
    secrets: Secrets | None = None
    docker_host: str | None = None
    repairs: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


class Trials:
    """Creates the environment of each attempt, and verifies the attempt however the agent ended.

    An attempt whose run was killed cannot continue, since its container is gone: it ends in an error.
    """

    def __init__(self, setting: TrialSetting) -> None:
        self._setting = setting
        self._folder: RunFolder | None = None
        self._isolation: dict[str, str] = {}

    def begin(self, folder: RunFolder) -> None:
        """Remember the run's folder; make its workspaces private, since containers write there as root."""
        self._folder = folder
        work = folder.path / "work"
        work.mkdir(exist_ok=True)
        if self._setting.sandbox is None:
            work.chmod(0o700)

    @asynccontextmanager
    async def prepare(self, planned: PlannedAttempt, spec: AgentSpec, workspace: Path) -> AsyncGenerator[AgentSpec]:
        """Yield the agent with the tools of its task, and verify the result afterwards.

        Raises:
            BoughError: The image was not built, or the environment cannot be created.
            Conflict: An earlier process was interrupted in this attempt.
        """
        task = self._setting.tasks[planned.case.id]
        private = await anyio.to_thread.run_sync(_make_private_folder, workspace)
        seconds = self._setting.timeout_seconds or task.agent_timeout_seconds
        # An earlier process already verified the attempt, so the agent needs no environment.
        if (private / "reward.json").exists():
            yield spec.model_copy(update={"limits": Limits(wall_seconds=seconds)})
            return
        if (private / "begun").exists():
            raise Conflict("the attempt was interrupted and its place is gone", hint="--retry-errors tries again")
        place = self._make_place(planned, task, workspace, private)
        try:
            await place.start()
            # Written after the start: from here on the agent may have acted, and the attempt must not run twice.
            (private / "begun").touch()
            try:
                yield self._equip(spec, place, seconds)
            # An agent that ended in an error may still have solved the task, so it is verified too.
            except BoughError:
                await self._verify(task, place, private)
                raise
            await self._verify(task, place, private)
        finally:
            self._isolation[planned.name] = place.isolation  # a sandbox knows its isolation only after a run
            await place.aclose()

    def findings(self, planned: PlannedAttempt, end: AttemptEnd) -> tuple[Sequence[Score], JsonObject]:
        """Return the reward of an attempt as a score, and the task's fields of the result note."""
        if self._folder is None:
            return (), {}
        private = _private_folder(self._folder.workspace(planned.case.id, planned.number, planned.side))
        network = self._setting.tasks[planned.case.id].wants_network
        details: JsonObject = {
            "verified": False,
            "isolation": self._isolation.get(planned.name, ""),
            "offline": network and (self._setting.sandbox is not None or not self._setting.allow_network),
            "repairs": list(self._setting.repairs.get(planned.case.id, ())),
        }
        if not (private / "reward.json").exists():
            return (), {"harbor": details}
        reward = Reward.of(json.loads((private / "reward.json").read_text("utf-8")))
        reward = replace(reward, agent_timed_out=end.limit == "wall_seconds")
        reason = (reward.reason or f"{reward.value:g}") + (" (agent timed out)" if reward.agent_timed_out else "")
        details |= self._describe_log(private / "verifier.log", with_end=reward.value < 1)
        score = Score("reward", reward.value, reward.value >= 1.0, reason.strip(), 1.0, "verifier", reward.is_error)
        return (score,), {"harbor": {**details, **reward.as_dict()}}

    def _describe_log(self, log: Path, *, with_end: bool) -> JsonObject:
        """Return the path of the verifier's log and, if requested, its last lines."""
        try:
            content = log.read_bytes()
        except FileNotFoundError:
            return {}
        if len(content) > _LOG_BYTES:  # from the start of a line: half a secret would not be masked
            content = content[-_LOG_BYTES:].partition(b"\n")[2]
        text = content.decode("utf-8", "replace")
        if self._setting.secrets is not None:  # the test script may print secrets, which a report must not contain
            text = self._setting.secrets.masker().text(text)
        output, _, errors = text.rpartition(LOG_SEPARATOR)
        lines = [line for part in (output, errors) for line in part.splitlines() if line.strip()][-_LOG_LINES:]
        end = [line[:_LOG_LINE_CHARS] for line in lines] if with_end else []
        return {"log": str(log), "log_end": end}

    async def _verify(self, task: HarborTask, place: TrialPlace, private: Path) -> None:
        if self._setting.skip_tests:
            return
        try:
            reward = await place.verify(self._fill(task.verifier_env))
        except BoughError as error:
            reward = Reward(reason=f"the tests could not be run: {error.message}", is_error=True)
        await asyncio.to_thread(write_whole, private / "reward.json", json.dumps(reward.as_dict()) + "\n")

    def _fill(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a verifier's variables with `${NAME}` replaced by the caller's secrets."""
        secrets = self._setting.secrets
        values = {} if secrets is None else {name: secrets.value(name) for name in secrets.names}
        return {name: fill_variables(value, values) for name, value in env.items()}

    def _equip(self, spec: AgentSpec, place: TrialPlace, seconds: float) -> AgentSpec:
        tool = (
            SolutionTool(place).run_solution
            if spec.name == "oracle"
            else ContainerBashTool(place, COMMAND_SECONDS).bash
        )
        return spec.model_copy(
            update={
                "tools": (*spec.tools, tool),
                "executor": place.executor,
                "discover_skills": False,
                "workspace_access": "none",
                "limits": Limits(wall_seconds=seconds),
            }
        )

    def _make_place(self, planned: PlannedAttempt, task: HarborTask, workspace: Path, private: Path) -> TrialPlace:
        setting, log = self._setting, private / "verifier.log"
        if setting.sandbox is not None:
            plan = setting.plans[task.name]
            return SandboxPlace(task, plan, setting.sandbox, workspace=workspace, folder=private, log=log)
        built = setting.images[task.name]
        if built.id is None:
            raise SandboxUnavailable(built.reason)
        if self._folder is None:
            raise InvalidInput("the run has no folder yet", hint="call begin first")
        return ContainerPlace(
            task,
            built.id,
            workdir=built.workdir,
            workspace=workspace,
            log=log,
            network=task.wants_network and setting.allow_network,
            labels={"bough.lock": str(self._folder.path / "lock"), "bough.attempt": planned.name},
            docker_host=setting.docker_host,
        )


def _private_folder(workspace: Path) -> Path:
    """Return the folder next to a workspace for files hidden from the agent."""
    return workspace.with_name(f"{workspace.name}.task")


def _make_private_folder(workspace: Path) -> Path:
    private = _private_folder(workspace)
    private.mkdir(parents=True, exist_ok=True)
    return private


ROOT: Final = "0:0"
VERIFIER_HOME: Final = "/run/bough/verifier-home"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM: Final = ("/bin/", "/sbin/", "/usr/", "/lib/", "/lib64/", "/etc/")
_UNMOUNTABLE: Final = ("", "/")
"""Working folders that cannot be a mount target."""


class ContainerPlace:
    """A trial in a separate container.

    Args:
        image: Id of the task's image; `workdir`: its working folder.
        workspace: The attempt's folder on this machine, mounted at the working folder.
        log: Receives the output of the test script.
    """

    isolation = "container"

    def __init__(
        self,
        task: HarborTask,
        image: str,
        *,
        workdir: str,
        workspace: Path,
        log: Path,
        network: bool,
        labels: Mapping[str, str],
        docker_host: str | None = None,
    ) -> None:
        self._task = task
        self._log = log
        self._made: frozenset[str] = frozenset()
        self._cwd = task.workdir or workdir or "/"
        self._executor = TaskContainerExecutor(
            image,
            workspace=workspace,
            workdir=WORK if self._cwd in _UNMOUNTABLE else self._cwd,
            user=task.agent_user,
            env=task.env,
            limits=ExecutionLimits(memory_bytes=task.memory_bytes, processes=256, work_bytes=task.storage_bytes),
            cpus=task.cpus,
            disk_bytes=task.storage_bytes,
            network=network,
            labels=labels,
            docker_host=docker_host,
        )

    @property
    def executor(self) -> CodeExecutor:
        """The executor that runs skill scripts in the same container."""
        return self._executor

    async def start(self) -> None:
        """Create the container and its folders for logs."""
        await self._executor.start()
        await self._executor.replace_folders("/logs", inside=("agent", "verifier"))
        # Taken after the set-up, so that only the agent's changes are reported later.
        self._made = frozenset(await self._executor.list_changes())

    async def run_command(self, command: str, *, timeout_seconds: float | None = None) -> CommandOutcome:
        """Run a command as the task's agent."""
        return await self._executor.run_command(command, cwd=self._cwd, timeout_seconds=timeout_seconds)

    async def solve(self) -> CommandOutcome:
        """Run `solution/solve.sh` as root."""
        await self._executor.replace_folders("/solution")
        await self._executor.put_folder(self._task.folder / "solution", "/solution")
        try:
            return await self._executor.run_command(
                "bash /solution/solve.sh",
                user=ROOT,
                cwd=self._cwd,
                env={**self._task.env, **self._task.solution_env},
                timeout_seconds=self._task.agent_timeout_seconds,
            )
        finally:
            await self._executor.replace_folders("/solution")

    async def verify(self, env: Mapping[str, str]) -> Reward:
        """Run `tests/test.sh` and return the reward that it wrote."""
        container = self._executor
        # The order keeps the agent from writing its own reward: first all of its processes end, then the folders
        # that the reward is read from are emptied, and only then do the tests become visible.
        await container.end_processes()
        changed = _list_system_files(await container.list_changes(), self._made)
        await container.replace_folders("/logs", inside=("agent", "verifier"))
        await container.replace_folders("/tests")
        await container.replace_folders(VERIFIER_HOME)
        await container.put_folder(self._task.folder / "tests", "/tests")
        outcome = await container.run_command(
            "exec bash /tests/test.sh",
            user=self._task.verifier_user,
            cwd=self._cwd,
            env={"PATH": _PATH, "HOME": VERIFIER_HOME, "PYTHONNOUSERSITE": "1", **env},
            timeout_seconds=self._task.verifier_timeout_seconds,
        )
        await container.end_processes()  # daemons started by the tests could still write the reward
        self._log.write_bytes(outcome.stdout + LOG_SEPARATOR.encode() + outcome.stderr)
        try:
            contents = [await container.read_file(path, MAX_REWARD_BYTES) for path in (REWARD_JSON, REWARD_TEXT)]
        except InvalidInput as error:
            return Reward(reason=error.message, is_error=True, changed=tuple(changed[:100]))
        reward = parse_reward(
            *contents, exit_code=outcome.exit_code, timed_out=outcome.timed_out, is_full=outcome.is_full
        )
        return replace(reward, changed=tuple(changed[:100]))

    async def aclose(self) -> None:
        """Remove the container."""
        await self._executor.aclose()


def _list_system_files(changed: Sequence[str], initial: frozenset[str]) -> list[str]:
    """Return changed system files that were not in `initial`; parents of changed files are omitted."""
    new = [path for path in changed if path.startswith(_SYSTEM) and path not in initial]
    return [path for path in new if not any(other.startswith(path + "/") for other in new)]
