"""A trial in the local sandbox, for machines without a container engine and tasks that need no image of their own.

The workspace is mounted at the task's working folder, a folder for logs at `/logs`. Every command is a run of its own,
so nothing of the agent runs on when the tests come; and there is no root.
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
from bough.execution.base import NO_GUARDS
from bough.execution.container.command import CommandOutcome
from bough.execution.mixin import CodeExecutorMixin

COMMAND_SECONDS: Final = 300.0


class MountingExecutor(CodeExecutorMixin):
    """An executor that shows a task's folders in every run of another one, which stays open.

    Nothing in the workspace is guarded: it is thrown away with its task, which may be to make a repository.
    """

    stateful = False

    def __init__(self, inner: CodeExecutor, mounts: Sequence[Mount]) -> None:
        self._inner, self._mounts = inner, tuple(mounts)
        self.name = inner.name
        self.default_timeout_seconds = inner.default_timeout_seconds

    @property
    def isolation(self) -> Isolation:
        """That of the other."""
        return self._inner.isolation

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` with the folders in their places; raises as the other does."""
        return await self._inner.execute(replace(request, mounts=(*request.mounts, *self._mounts), guards=NO_GUARDS))

    async def healthy(self) -> bool:
        """Whether the other works."""
        return await self._inner.healthy()

    async def reinitialize(self) -> None:
        """Nothing is held here."""

    async def aclose(self) -> None:
        """Nothing is held here."""


class SandboxPlace:
    """A trial in the local sandbox.

    Args:
        executor: The sandbox; it stays open.
        folder: For the logs; made here.
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
        """Runs scripts of skills with the same mounts."""
        return self._executor

    @property
    def isolation(self) -> str:
        """What the sandbox reaches."""
        return self._executor.isolation.name.lower()

    async def start(self) -> None:
        """Make the folders of the task and of the logs."""
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
        """Run `tests/test.sh`; see `TrialPlace.verify`."""
        await anyio.to_thread.run_sync(self._make_folders)
        done = await self._run(
            "exec bash /tests/test.sh",
            env=dict(env),
            timeout_seconds=self._task.verifier_timeout_seconds,
            mounts=(Mount(source=str(self._task.folder / "tests"), target="/tests"),),
        )
        self._log.write_bytes(done.stdout + LOG_SEPARATOR.encode() + done.stderr)
        try:
            contents = [await anyio.to_thread.run_sync(self._read, name) for name in ("reward.json", "reward.txt")]
        except OSError as error:
            return Reward(reason=f"the reward is not a regular file: {error.strerror}", is_error=True)
        return parse_reward(*contents, exit_code=done.exit_code, timed_out=done.timed_out, is_full=done.is_full)

    async def aclose(self) -> None:
        """Nothing is held here; the attempt's folders belong to the run."""

    async def _run(
        self, command: str, *, env: Mapping[str, str], timeout_seconds: float | None, mounts: tuple[Mount, ...] = ()
    ) -> CommandOutcome:
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
        """Make what the plan asks for, and the folder of logs anew."""
        for name in self._plan.folders:
            (self._workspace / name).mkdir(parents=True, exist_ok=True)
        logs = self._folder / "logs"
        if logs.is_symlink() or logs.is_file():
            logs.unlink()
        shutil.rmtree(logs, ignore_errors=True)
        for folder in (logs, logs / "agent", logs / "verifier"):
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # the run's own user, whoever that is, writes there

    def _read(self, name: str) -> bytes | None:
        """Return the content of a reward file; None where there is none.

        Raises:
            OSError: It, or the folder it lies in, is a link.
        """
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
