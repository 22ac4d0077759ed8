"""Where a trial happens, as far as its phases have to know: a container, or the local sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bough.evals.harbor.bash_tool import CommandRunner
from bough.evals.harbor.reward import Reward
from bough.execution.base import CodeExecutor
from bough.execution.container.command import CommandOutcome


class TrialPlace(CommandRunner, Protocol):
    """The environment of one attempt at a task."""

    @property
    def executor(self) -> CodeExecutor:
        """Runs scripts of skills beside the agent's commands."""
        ...

    @property
    def isolation(self) -> str:
        """How well it keeps the agent away from the machine."""
        ...

    async def start(self) -> None:
        """Make it."""
        ...

    async def solve(self) -> CommandOutcome:
        """Run the task's own solution, which is there for as long as it runs."""
        ...

    async def verify(self, env: Mapping[str, str]) -> Reward:
        """End what the agent left, then run the test script in a place for its reward that is new; return the reward.

        Args:
            env: Of the test script, variables filled in.
        """
        ...

    async def aclose(self) -> None:
        """Remove it; closing twice is fine."""
        ...
