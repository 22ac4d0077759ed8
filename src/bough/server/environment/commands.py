"""Shell commands in a workspace. They run in the sandbox without network and secrets, and never become events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from bough.errors import BoughError, LimitExceeded, NotFound
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor, Guards
from bough.execution.named import executor_named
from bough.server.bodies.base import LenientForm, stamp
from bough.types import Clock, new_id

KEPT_SECONDS = 600.0
"""How long a command and its output can be read after its end."""

MAX_COMMANDS = 64
"""Maximum number of running commands of a tenant."""

_GUARDS = Guards(names=frozenset())
"""Guards no file names, so that clients can create repositories. `run_in_sandbox` guards an existing repository."""


class CommandForm(LenientForm):
    """A command line for bash; `timeout` is in seconds."""

    command: str = Field(min_length=1, max_length=1 << 20)
    cwd: str | None = Field(default=None, max_length=4096)
    timeout: float = Field(default=300, ge=0, le=86_400)


class CommandInfo(BaseModel):
    """A command that was started; `timeout` is in seconds."""

    kind: Literal["BashCommand"] = "BashCommand"
    id: UUID
    timestamp: str
    command: str
    cwd: str
    timeout: float


class OutputInfo(BaseModel):
    """A piece of a command's output. The last piece has the exit code: -1 if the command was stopped or did not run."""

    kind: Literal["BashOutput"] = "BashOutput"
    id: UUID
    timestamp: str
    command_id: UUID
    order: int
    exit_code: int | None
    stdout: str | None
    stderr: str | None


@dataclass
class Command:
    """A command with its output so far; `task` is None once it has ended."""

    tenant: str
    info: CommandInfo
    task: asyncio.Task[None] | None = None
    output: list[OutputInfo] = field(default_factory=list[OutputInfo])


class Commands:
    """The commands that this process runs, and those that ended in the last `KEPT_SECONDS`."""

    def __init__(self, executor: Callable[[], CodeExecutor], clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._commands: dict[UUID, Command] = {}

    def start(self, tenant: str, form: CommandForm, cwd: Path) -> CommandInfo:
        """Start a command.

        Raises:
            LimitExceeded: The tenant has the maximum number of commands.
        """
        running = sum(command.task is not None for command in self.list_for(tenant))
        if running >= MAX_COMMANDS:
            raise LimitExceeded(f"{MAX_COMMANDS} commands are running", hint="stop one", details={"limit": "commands"})
        info = CommandInfo(id=new_id(), timestamp=self._now(), command=form.command, cwd=str(cwd), timeout=form.timeout)
        command = self._commands[info.id] = Command(tenant=tenant, info=info)
        command.task = asyncio.create_task(self._run(command, cwd), name=f"command {info.id}")
        return info

    def find(self, tenant: str, id: UUID) -> Command:
        """Return a command of a tenant.

        Raises:
            NotFound: This process has no such command.
        """
        command = self._commands.get(id)
        if command is None or command.tenant != tenant:
            raise NotFound("this server process has no such command", hint="ask the process that started it")
        return command

    def list_for(self, tenant: str) -> list[Command]:
        """Return the commands of a tenant, oldest first."""
        return [command for command in self._commands.values() if command.tenant == tenant]

    async def wait(self, tenant: str, id: UUID) -> OutputInfo:
        """Wait until a command has ended, and return the last piece of its output."""
        command = self.find(tenant, id)
        if command.task is not None:
            await asyncio.wait({command.task})
        return command.output[-1]

    async def stop(self, tenant: str, id: UUID) -> None:
        """Kill a command and all its processes."""
        command = self.find(tenant, id)
        if command.task is not None:
            command.task.cancel()
            await asyncio.wait({command.task})

    async def aclose(self) -> None:
        """Kill all running commands."""
        for command in list(self._commands.values()):
            await self.stop(command.tenant, command.info.id)

    async def _run(self, command: Command, cwd: Path) -> None:
        exit_code, stdout, stderr = -1, "", "the command was stopped"
        try:
            result = await run_in_sandbox(self._executor(), cwd, command.info.command, command.info.timeout)
            exit_code = -1 if result.exit_code is None else result.exit_code
            stdout, stderr = _decode(result.stdout), _decode(result.stderr)
            if result.timed_out:
                stderr += f"\nCommand timed out after {command.info.timeout:g} seconds"
        except BoughError as error:
            stderr = error.message
        finally:
            command.task = None
            self._record_end(command, exit_code, stdout, stderr)

    def _record_end(self, command: Command, exit_code: int, stdout: str, stderr: str) -> None:
        """Record the output of an ended command, and forget the command after `KEPT_SECONDS`."""
        piece = OutputInfo(
            id=new_id(), timestamp=self._now(), command_id=command.info.id, order=0,
            exit_code=exit_code, stdout=stdout or None, stderr=stderr or None,
        )  # fmt: skip
        command.output.append(piece)
        loop = asyncio.get_running_loop()
        loop.call_later(KEPT_SECONDS, self._commands.pop, command.info.id, None)

    def _now(self) -> str:
        return stamp(self._clock.now())


async def run_in_sandbox(executor: CodeExecutor, folder: Path, command: str, seconds: float) -> CodeExecutionResult:
    """Run a bash command line in a folder, without network and secrets. An existing `.git` is guarded.

    Raises:
        NotFound: The folder does not exist.
        SandboxUnavailable: No sandbox works here.
    """
    if not await asyncio.to_thread(folder.is_dir):
        raise NotFound("cwd: the folder does not exist")
    guards = replace(_GUARDS, paths=(".git",)) if await asyncio.to_thread((folder / ".git").exists) else _GUARDS
    request = CodeExecutionInput(
        code=command, language="bash", workspace=folder, timeout_seconds=seconds, output_globs=(), guards=guards
    )
    return await executor.execute(request)


def _decode(output: bytes) -> str:
    return output.decode("utf-8", "replace")


class SharedExecutor:
    """The executor that runs commands and git for all callers of a server. It is started when it is first used."""

    def __init__(self, name: str, packages: Path | None = None) -> None:
        self._name = name
        self._packages = packages
        self._executor: CodeExecutor | None = None

    def __call__(self) -> CodeExecutor:
        """Return the executor.

        Raises:
            SandboxUnavailable: No sandbox works on this machine.
        """
        if self._executor is None:
            self._executor = executor_named(self._name, packages=self._packages)
        return self._executor

    async def aclose(self) -> None:
        """Close the executor if it was used."""
        if self._executor is not None:
            await self._executor.aclose()
