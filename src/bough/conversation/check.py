"""Checks: commands that run in the sandbox and test the files of a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from bough.errors import InvalidInput
from bough.events.model import CheckRan
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor, Guards
from bough.types import JsonObject

CHECK_SECONDS: Final = 600.0
"""How long a check may take, unless its caller says otherwise."""

MAX_OUTPUT_BYTES: Final = 4 << 10
MAX_COMMAND_CHARACTERS: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class RunCheck:
    """A command that runs when an agent has finished.

    Attributes:
        command: A bash command, which passes with exit code 0.
        until: Whether a failure is sent to the agent, so that it continues until the check passes.
        session: If the run is a branch of an exploration, the session of that exploration.
        variant: The name of the branch's variant.
        repeat: The number of the branch among those of its variant.
    """

    command: str
    timeout_seconds: float = CHECK_SECONDS
    until: bool = False
    session: str | None = None
    variant: str | None = None
    repeat: int | None = None

    def __post_init__(self) -> None:
        check_command(self.command)
        seconds = cast("object", self.timeout_seconds)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
            raise InvalidInput(f"invalid time limit of a check: {seconds!r:.80}", hint="give a number above 0")

    def to_json(self) -> JsonObject:
        """Return the check as JSON, for the metadata of a task."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def parse(cls, value: object) -> RunCheck:
        """Return the check for a command, or for an object with the fields of this class.

        Raises:
            InvalidInput: The value is neither, or a field is invalid.
        """
        if isinstance(value, str):
            return cls(command=value)
        names = {field.name for field in fields(cls)}
        if not isinstance(value, Mapping) or not set(cast("Mapping[str, Any]", value)) <= names:
            raise InvalidInput(f"invalid check: {value!r:.80}", hint='give a command, or {"command": "make test"}')
        arguments: dict[str, Any] = dict(cast("Mapping[str, Any]", value))
        return cls(command=arguments.pop("command", ""), **arguments)


def check_command(command: object) -> str:
    """Return the command of a check. Raises `InvalidInput` if it is not text, empty or too long."""
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise InvalidInput(f"invalid check: {command!r:.80}", hint="give a command, for example 'make test'")
    if len(command) > MAX_COMMAND_CHARACTERS:
        raise InvalidInput(f"the check has {len(command)} characters", hint="put it into a script of the workspace")
    return command


async def run_in_folder(
    command: str, timeout_seconds: float, *, executor: CodeExecutor, folder: Path, guards: Guards, name: str
) -> CodeExecutionResult:
    """Run a check in a folder, without network and secrets, within the limits of the executor.

    Args:
        name: The id of the execution.

    Raises: see `CodeExecutor.execute`.
    """
    request = CodeExecutionInput(
        code=command,
        language="bash",
        workspace=folder,
        guards=guards,
        timeout_seconds=timeout_seconds,
        execution_id=name,
    )
    return await executor.execute(request)


def describe_result(check: RunCheck, result: CodeExecutionResult, tree: str | None) -> CheckRan:
    """Return the event of a check that has run."""
    return CheckRan(
        command=check.command,
        passed=result.ok,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        killed_by=result.killed_by or (None if result.signal is None else f"signal {result.signal}"),
        stdout=_read_end(result.stdout),
        stderr=_read_end(result.stderr),
        tree=tree,
        isolation=result.isolation.name.lower(),
        seconds=round(result.wall_seconds, 3),
        session=check.session,
        variant=check.variant,
        repeat=check.repeat,
    )


def _read_end(output: bytes) -> str:
    """Return the end of an output as text."""
    return output[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace")
