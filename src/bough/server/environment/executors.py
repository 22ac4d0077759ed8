"""The executor that runs commands and git for all callers of a server; made at the first use."""

from __future__ import annotations

from bough.execution.base import CodeExecutor
from bough.execution.named import executor_named


class SharedExecutor:
    """An executor by its setting's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: CodeExecutor | None = None

    def __call__(self) -> CodeExecutor:
        """Return it.

        Raises:
            SandboxUnavailable: No sandbox works here.
        """
        if self._made is None:
            self._made = executor_named(self._name)
        return self._made

    async def aclose(self) -> None:
        """Close it, if it was made."""
        if self._made is not None:
            await self._made.aclose()
