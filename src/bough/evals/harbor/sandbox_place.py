"""A trial in the local sandbox, for machines without a container engine and tasks that need no image.

The workspace is mounted at the task's working folder, a folder for logs at `/logs`. Every command is a separate run
of the sandbox, so the agent's processes end before the tests start. Commands do not run as root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio

from bough.evals.harbor.dockerfile import SandboxPlan
from bough.evals.harbor.reward import LOG_SEPARATOR, MAX_REWARD_BYTES, Reward, parse_reward
from bough.evals.harbor.task import HarborTask
from bough.execution import CodeExecutionInput, CodeExecutionResult, CodeExecutor, ExecutionLimits, Isolation, Mount
from bough.execution.base import NO_GUARDS, CodeExecutorMixin
from bough.execution.container.command import CommandOutcome

COMMAND_SECONDS: Final = 300.0


class MountingExecutor(CodeExecutorMixin):
    """Adds a task's folders as mounts to every run of another executor, which it does not close.

    Nothing in the workspace is guarded: it is deleted after the task, and a task may need to create a repository.
    """

    stateful = False

    def __init__(self, inner: CodeExecutor, mounts: Sequence[Mount]) -> None:
        self._inner, self._mounts = inner, tuple(mounts)
        self.name = inner.name
        self.default_timeout_seconds = inner.default_timeout_seconds

    @property
    def isolation(self) -> Isolation:
        """The isolation of the inner executor."""
        return self._inner.isolation

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` with the task's mounts added; raises the errors of the inner executor."""
        return await self._inner.execute(replace(request, mounts=(*request.mounts, *self._mounts), guards=NO_GUARDS))

    async def healthy(self) -> bool:
        """Whether the inner executor is healthy."""
        return await self._inner.healthy()

    async def reinitialize(self) -> None:
        """Do nothing; the inner executor stays open."""

    async def aclose(self) -> None:
        """Do nothing; the inner executor stays open."""


class SandboxEnvironment:
    """A trial in the local sandbox.

    Args:
        executor: The sandbox; not closed here.
        folder: Folder for the logs; created here.
    """

    def __init__(
        self, task: HarborTask, plan: SandboxPlan, executor: CodeExecutor, *, workspace: Path, folder: Path, log: Path
    ) -> None:
        self._task, self._plan = task, plan
        self._workspace, self._folder, self._log = workspace, folder, log
        self._limits = ExecutionLimits(
            memory_bytes=task.memory_bytes, processes=256, work_bytes=task.storage_bytes, file_size_bytes=1 << 30
        )
        mounts = (
            Mount(source=str(workspace), target=plan.workdir, writable=True),
            Mount(source=str(folder / "logs"), target="/logs", writable=True),
        )
        self._executor = MountingExecutor(executor, mounts)

    @property
    def executor(self) -> CodeExecutor:
        """The executor that runs skill scripts with the same mounts."""
        return self._executor

    @property
    def isolation(self) -> str:
        """The isolation level of the sandbox."""
        return self._executor.isolation.name.lower()

    async def start(self) -> None:
        """Create the folders of the task and of the logs."""
        await anyio.to_thread.run_sync(self._make_folders)

    async def run_command(self, command: str, *, timeout_seconds: float | None = None) -> CommandOutcome:
        """Run a command in the working folder."""
        return await self._run(command, env=self._plan.env, timeout_seconds=timeout_seconds)

    async def solve(self) -> CommandOutcome:
        """Run `solution/solve.sh`."""
        return await self._run(
            "exec bash /solution/solve.sh",
            env={**self._plan.env, **self._task.solution_env},
            timeout_seconds=self._task.agent_timeout_seconds,
            mounts=(Mount(source=str(self._task.folder / "solution"), target="/solution"),),
        )

    async def verify(self, env: Mapping[str, str]) -> Reward:
        """Run `tests/test.sh` and return the reward that it wrote."""
        await anyio.to_thread.run_sync(self._make_folders)
        outcome = await self._run(
            "exec bash /tests/test.sh",
            env=dict(env),
            timeout_seconds=self._task.verifier_timeout_seconds,
            mounts=(Mount(source=str(self._task.folder / "tests"), target="/tests"),),
        )
        self._log.write_bytes(outcome.stdout + LOG_SEPARATOR.encode() + outcome.stderr)
        try:
            contents = [
                await anyio.to_thread.run_sync(self._read_reward_file, name) for name in ("reward.json", "reward.txt")
            ]
        except OSError as error:
            return Reward(reason=f"the reward is not a regular file: {error.strerror}", is_error=True)
        return parse_reward(
            *contents, exit_code=outcome.exit_code, timed_out=outcome.timed_out, is_full=outcome.is_full
        )

    async def aclose(self) -> None:
        """Do nothing; the attempt's folders belong to the run."""

    async def _run(
        self, command: str, *, env: Mapping[str, str], timeout_seconds: float | None, mounts: tuple[Mount, ...] = ()
    ) -> CommandOutcome:
        """Run a bash command in the task's working folder; without a timeout, `COMMAND_SECONDS` applies."""
        result = await self._executor.execute(
            CodeExecutionInput(
                code=f"cd {self._plan.workdir} && {command}",
                language="bash",
                workspace=str(self._workspace),
                mounts=mounts,
                env=dict(env),
                timeout_seconds=COMMAND_SECONDS if timeout_seconds is None else timeout_seconds,
                output_globs=(),
                limits=self._limits,
            )
        )
        return CommandOutcome(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            timed_out=result.timed_out,
            is_full=result.killed_by == "work_bytes",
            truncated=result.stdout_truncated or result.stderr_truncated,
        )

    def _make_folders(self) -> None:
        """Create the folders of the plan, and an empty folder for logs."""
        for name in self._plan.folders:
            (self._workspace / name).mkdir(parents=True, exist_ok=True)
        logs = self._folder / "logs"
        # The agent may have replaced the folder by a link; rmtree refuses links and would leave it.
        if logs.is_symlink() or logs.is_file():
            logs.unlink()
        shutil.rmtree(logs, ignore_errors=True)
        for folder in (logs, logs / "agent", logs / "verifier"):
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # the sandbox may run commands as another user

    def _read_reward_file(self, name: str) -> bytes | None:
        """Return the content of a reward file; None if missing.

        Raises:
            OSError: The file or its folder is a link, or the file is not regular.
        """
        # The agent can write here: O_NOFOLLOW refuses links to other files, O_NONBLOCK avoids blocking on a pipe.
        folder = os.open(self._folder / "logs" / "verifier", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)
        with open(fd, "rb") as source:
            if not os.path.isfile(f"/proc/self/fd/{fd}"):
                raise OSError(0, "it is a pipe or a device")
            return source.read(MAX_REWARD_BYTES)
