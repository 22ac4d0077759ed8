"""The environment of a trial (a container or the local sandbox) and the agent's tools in it.

Source: ADK pull request 4575 (`ContainerBashTool`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from bough.agents.spec import AgentSpec
from bough.evals.harbor.reward import Reward
from bough.execution.base import CodeExecutor
from bough.execution.container.command import CommandOutcome
from bough.types import JsonObject

MAX_COMMAND_SECONDS = 3600.0
"""Maximum timeout that an agent can request for a command."""


class CommandRunner(Protocol):
    """Runs commands in a task's environment."""

    async def run_command(self, command: str, *, timeout_seconds: float | None = None) -> CommandOutcome:
        """Run a command in a shell, in the task's working folder."""
        ...


class ContainerBashTool:
    """Gives an agent a shell in the environment of its task.

    Attributes:
        runner: Runs the commands.
        timeout_seconds: Default timeout of a command.
    """

    def __init__(self, runner: CommandRunner, timeout_seconds: float = 300.0) -> None:
        self.runner = runner
        self.timeout_seconds = timeout_seconds

    async def bash(self, command: str, timeout_seconds: float | None = None) -> JsonObject:
        """Run a shell command in the working folder. Files and background processes remain after the command.

        Args:
            command: The command for bash.
            timeout_seconds: After this many seconds all running processes are ended; 300 by default.
        """
        seconds = self.timeout_seconds
        if timeout_seconds is not None:
            seconds = min(max(timeout_seconds, 0.1), MAX_COMMAND_SECONDS)
        outcome = await self.runner.run_command(command, timeout_seconds=seconds)
        return {
            "exit_code": outcome.exit_code,
            "stdout": outcome.stdout.decode(errors="replace"),
            "stderr": outcome.stderr.decode(errors="replace"),
            "timed_out": outcome.timed_out,
            **({"disk_full": True} if outcome.is_full else {}),
            "truncated": outcome.truncated,
        }


class TrialEnvironment(CommandRunner, Protocol):
    """The environment of one attempt at a task."""

    @property
    def executor(self) -> CodeExecutor:
        """The executor that runs skill scripts in the same environment."""
        ...

    @property
    def isolation(self) -> str:
        """Name of the isolation level."""
        ...

    async def start(self) -> None:
        """Create the environment."""
        ...

    async def solve(self) -> CommandOutcome:
        """Run the task's reference solution, whose files exist in the environment only meanwhile."""
        ...

    async def verify(self, env: Mapping[str, str]) -> Reward:
        """End the agent's processes, empty the reward folder, run the test script, and return the reward.

        Args:
            env: Environment variables of the test script, with references such as `${NAME}` already replaced.
        """
        ...

    async def aclose(self) -> None:
        """Remove the environment; idempotent."""
        ...


ReferenceAgent: TypeAlias = Literal["oracle", "nop"]
"""`oracle` shows that a task can be solved, `nop` that the task is not solved without an agent."""

_SOLUTION_TOOL = "run_solution"


def reference_agent(name: ReferenceAgent) -> AgentSpec:
    """Return a reference agent; `oracle` calls the tool `SolutionTool.run_solution`."""
    respond = _call_solution if name == "oracle" else _do_nothing
    return AgentSpec(name=name, model=FunctionModel(respond, model_name=name), system_prompt="", skills=())


class SolutionTool:
    """The tool of the oracle; runs the reference solution in the task's environment."""

    def __init__(self, environment: TrialEnvironment) -> None:
        self._environment = environment

    async def run_solution(self) -> JsonObject:
        """Run the task's reference solution."""
        outcome = await self._environment.solve()
        return {
            "exit_code": outcome.exit_code,
            "stdout": outcome.stdout.decode(errors="replace"),
            "stderr": outcome.stderr.decode(errors="replace"),
            "timed_out": outcome.timed_out,
        }


def _call_solution(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return _do_nothing(messages, info)
    return ModelResponse(parts=[ToolCallPart(_SOLUTION_TOOL, {})], usage=RequestUsage())


def _do_nothing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del messages, info
    return ModelResponse(parts=[TextPart("done")], usage=RequestUsage())
