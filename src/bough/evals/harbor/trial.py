"""Prepares the environment of each attempt at a task, and verifies the attempt after the agent."""

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
from bough.evals.document import write_atomically
from bough.evals.harbor.dockerfile import SandboxPlan, fill_variables
from bough.evals.harbor.image import BuiltImage
from bough.evals.harbor.place import ContainerBashTool, SolutionTool, TrialEnvironment
from bough.evals.harbor.reward import LOG_SEPARATOR, MAX_REWARD_BYTES, REWARD_JSON, REWARD_TEXT, Reward, parse_reward
from bough.evals.harbor.sandbox_place import SandboxEnvironment
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
_MAX_LOG_BYTES = 64 << 10
_MAX_LOG_LINES = 12
_MAX_LOG_LINE_CHARS = 400
_MAX_CHANGED_FILES = 100


@dataclass(frozen=True, kw_only=True)
class TrialSetting:
    """The configuration of all trials of a run.

    Attributes:
        images: Images by task name; used if `sandbox` is None.
        plans: Sandbox plans by task name; used with `sandbox`.
        sandbox: The executor for a run without a container engine.
        timeout_seconds: Overrides the agent's timeout of each task.
        secrets: Values for the variables of verifiers.
        repairs: Repairs made while reading skills, by task name.
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
    """Creates the environment of each attempt, and verifies the attempt even if the agent ended in an error.

    An attempt whose process was killed cannot continue, since its container no longer exists: it ends in an error.
    """

    def __init__(self, setting: TrialSetting) -> None:
        self._setting = setting
        self._folder: RunFolder | None = None
        self._isolation_by_attempt: dict[str, str] = {}

    def begin(self, folder: RunFolder) -> None:
        """Set the run's folder, and make its workspaces private, since containers write there as root."""
        self._folder = folder
        workspaces = folder.path / "work"
        workspaces.mkdir(exist_ok=True)
        if self._setting.sandbox is None:
            workspaces.chmod(0o700)

    @asynccontextmanager
    async def prepare(self, planned: PlannedAttempt, spec: AgentSpec, workspace: Path) -> AsyncGenerator[AgentSpec]:
        """Yield the agent with the tools of its task, and verify the result afterwards.

        Raises:
            BoughError: The image was not built, or the environment cannot be created.
            Conflict: An earlier process was interrupted during this attempt.
        """
        task = self._setting.tasks[planned.case.id]
        private_folder = await anyio.to_thread.run_sync(_make_private_folder, workspace)
        seconds = self._setting.timeout_seconds or task.agent_timeout_seconds
        # An earlier process already verified the attempt, so the agent needs no environment.
        if (private_folder / "reward.json").exists():
            yield spec.model_copy(update={"limits": Limits(wall_seconds=seconds)})
            return
        if (private_folder / "begun").exists():
            raise Conflict(
                "the attempt was interrupted, and its environment no longer exists",
                hint="run it again with --retry-errors",
            )
        environment = self._make_environment(planned, task, workspace, private_folder)
        try:
            await environment.start()
            # Written before the agent can act, because from then on the attempt must not run a second time.
            (private_folder / "begun").touch()
            try:
                yield self._equip(spec, environment, seconds)
            # An agent that ended in an error may still have solved the task, so it is verified too.
            except BoughError:
                await self._verify(task, environment, private_folder)
                raise
            await self._verify(task, environment, private_folder)
        finally:
            # Read last, since a sandbox knows its isolation only after a run.
            self._isolation_by_attempt[planned.name] = environment.isolation
            await environment.aclose()

    def findings(self, planned: PlannedAttempt, end: AttemptEnd) -> tuple[Sequence[Score], JsonObject]:
        """Return the reward of an attempt as a score, and the fields that the task adds to the result note."""
        if self._folder is None:
            return (), {}
        private_folder = _private_folder_for(self._folder.workspace(planned.case.id, planned.number, planned.side))
        wants_network = self._setting.tasks[planned.case.id].wants_network
        details: JsonObject = {
            "verified": False,
            "isolation": self._isolation_by_attempt.get(planned.name, ""),
            "offline": wants_network and (self._setting.sandbox is not None or not self._setting.allow_network),
            "repairs": list(self._setting.repairs.get(planned.case.id, ())),
        }
        if not (private_folder / "reward.json").exists():
            return (), {"harbor": details}
        reward = Reward.of(json.loads((private_folder / "reward.json").read_text("utf-8")))
        reward = replace(reward, agent_timed_out=end.limit == "wall_seconds")
        reason = reward.reason or f"{reward.value:g}"
        if reward.agent_timed_out:
            reason += " (agent timed out)"
        details |= self._describe_log(private_folder / "verifier.log", with_end=reward.value < 1)
        score = Score("reward", reward.value, reward.value >= 1.0, reason.strip(), 1.0, "verifier", reward.is_error)
        return (score,), {"harbor": {**details, **reward.as_dict()}}

    def _describe_log(self, log: Path, *, with_end: bool) -> JsonObject:
        """Return the path of the verifier's log and, with `with_end`, its last lines; empty without a log."""
        try:
            content = log.read_bytes()
        except FileNotFoundError:
            return {}
        if len(content) > _MAX_LOG_BYTES:  # cut at a line start, since a part of a secret would not be masked
            content = content[-_MAX_LOG_BYTES:].partition(b"\n")[2]
        text = content.decode("utf-8", "replace")
        if self._setting.secrets is not None:  # the test script may print secrets, which a report must not contain
            text = self._setting.secrets.masker().text(text)
        output, _, errors = text.rpartition(LOG_SEPARATOR)
        lines = [line for part in (output, errors) for line in part.splitlines() if line.strip()][-_MAX_LOG_LINES:]
        end = [line[:_MAX_LOG_LINE_CHARS] for line in lines] if with_end else []
        return {"log": str(log), "log_end": end}

    async def _verify(self, task: HarborTask, environment: TrialEnvironment, private_folder: Path) -> None:
        """Run the tests and write the reward to `private_folder`; if they cannot run, the reward is 0."""
        if self._setting.skip_tests:
            return
        try:
            reward = await environment.verify(self._fill_variables(task.verifier_env))
        except BoughError as error:
            reward = Reward(reason=f"the tests could not be run: {error.message}", is_error=True)
        await asyncio.to_thread(write_atomically, private_folder / "reward.json", json.dumps(reward.as_dict()) + "\n")

    def _fill_variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a verifier's variables with `${NAME}` replaced by the caller's secrets."""
        secrets = self._setting.secrets
        values = {} if secrets is None else {name: secrets.value(name) for name in secrets.names}
        return {name: fill_variables(value, values) for name, value in env.items()}

    def _equip(self, spec: AgentSpec, environment: TrialEnvironment, seconds: float) -> AgentSpec:
        """Return the agent with a shell in the environment, or with the solution's tool for the oracle."""
        tool = (
            SolutionTool(environment).run_solution
            if spec.name == "oracle"
            else ContainerBashTool(environment, COMMAND_SECONDS).bash
        )
        return spec.model_copy(
            update={
                "tools": (*spec.tools, tool),
                "executor": environment.executor,
                "discover_skills": False,
                "workspace_access": "none",
                "limits": Limits(wall_seconds=seconds),
            }
        )

    def _make_environment(
        self, planned: PlannedAttempt, task: HarborTask, workspace: Path, private_folder: Path
    ) -> TrialEnvironment:
        """Return the environment of an attempt, in the sandbox or in a container; not started yet."""
        setting, log = self._setting, private_folder / "verifier.log"
        if setting.sandbox is not None:
            plan = setting.plans[task.name]
            return SandboxEnvironment(task, plan, setting.sandbox, workspace=workspace, folder=private_folder, log=log)
        built = setting.images[task.name]
        if built.id is None:
            raise SandboxUnavailable(built.reason)
        if self._folder is None:
            raise InvalidInput("the run has no folder yet", hint="call `begin` before `prepare`")
        return ContainerEnvironment(
            task,
            built.id,
            workdir=built.workdir,
            workspace=workspace,
            log=log,
            network=task.wants_network and setting.allow_network,
            labels={"bough.lock": str(self._folder.path / "lock"), "bough.attempt": planned.name},
            docker_host=setting.docker_host,
        )


def _private_folder_for(workspace: Path) -> Path:
    """Return the folder next to a workspace for files hidden from the agent."""
    return workspace.with_name(f"{workspace.name}.task")


def _make_private_folder(workspace: Path) -> Path:
    private_folder = _private_folder_for(workspace)
    private_folder.mkdir(parents=True, exist_ok=True)
    return private_folder


ROOT: Final = "0:0"
VERIFIER_HOME: Final = "/run/bough/verifier-home"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM_FOLDERS: Final = ("/bin/", "/sbin/", "/usr/", "/lib/", "/lib64/", "/etc/")
_UNMOUNTABLE: Final = ("", "/")
"""Working folders that cannot be a mount target."""


class ContainerEnvironment:
    """A trial in a separate container.

    Args:
        image: Id of the task's image.
        workdir: Working folder of the image; empty if it sets none.
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
        self._initial_changes: frozenset[str] = frozenset()
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
        # Listed after the set-up, so that only the agent's changes are reported later.
        self._initial_changes = frozenset(await self._executor.list_changes())

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
        # This order prevents the agent from writing its own reward: first its processes end, then the folders of the
        # reward are emptied, and only then do the tests become visible.
        await container.end_processes()
        changed_files = _list_changed_system_files(await container.list_changes(), self._initial_changes)
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
            return Reward(reason=error.message, is_error=True, changed=tuple(changed_files[:_MAX_CHANGED_FILES]))
        reward = parse_reward(
            *contents, exit_code=outcome.exit_code, timed_out=outcome.timed_out, is_full=outcome.is_full
        )
        return replace(reward, changed=tuple(changed_files[:_MAX_CHANGED_FILES]))

    async def aclose(self) -> None:
        """Remove the container."""
        await self._executor.aclose()


def _list_changed_system_files(changed: Sequence[str], initial: frozenset[str]) -> list[str]:
    """Return the system files in `changed` and not in `initial`, without the folders that contain them."""
    new_paths = [path for path in changed if path.startswith(_SYSTEM_FOLDERS) and path not in initial]
    return [path for path in new_paths if not any(other.startswith(path + "/") for other in new_paths)]
