"""The tool `bash`: a command in the task's own environment.

Source: seed 003 (`ContainerBashTool`).
"""

from __future__ import annotations

from typing import Protocol

from bough.execution.container.command import CommandOutcome
from bough.types import JsonObject

MAX_SECONDS = 3600.0


class CommandRunner(Protocol):
    """Something that runs a command where a task is."""

    async def run_command(self, command: str, *, timeout_seconds: float | None = None) -> CommandOutcome:
        """Run a command by a shell, in the task's working folder."""
        ...


class ContainerBashTool:
    """Gives an agent a shell in the environment of its task.

    Attributes:
        runner: Where commands run.
        timeout_seconds: Of a command that names none.
    """

    def __init__(self, runner: CommandRunner, timeout_seconds: float = 300.0) -> None:
        self.runner = runner
        self.timeout_seconds = timeout_seconds

    async def bash(self, command: str, timeout_seconds: float | None = None) -> JsonObject:
        """Run a shell command in the working folder. Files stay; so do programs that are left running.

        Args:
            command: What bash runs.
            timeout_seconds: After so many seconds everything that runs is ended; 300 unless said otherwise.
        """
        seconds = self.timeout_seconds if timeout_seconds is None else min(max(timeout_seconds, 0.1), MAX_SECONDS)
        done = await self.runner.run_command(command, timeout_seconds=seconds)
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout.decode(errors="replace"),
            "stderr": done.stderr.decode(errors="replace"),
            "timed_out": done.timed_out,
            **({"disk_full": True} if done.is_full else {}),
            "truncated": done.truncated,
        }
