"""A trial in a container: runs the agent's commands, then ends its processes, runs the tests and reads the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bough.errors import InvalidInput
from bough.evals.harbor.reward import LOG_SEPARATOR, MAX_REWARD_BYTES, REWARD_JSON, REWARD_TEXT, Reward, parse_reward
from bough.evals.harbor.task import HarborTask
from bough.execution import CodeExecutor, ExecutionLimits, TaskContainerExecutor
from bough.execution.container.command import CommandOutcome
from bough.execution.request import WORK

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
