"""What every executor has on top of `execute` and `aclose`: a `with` block, and a call that waits."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor
from bough.portal import portal


class CodeExecutorMixin:
    """Gives an executor `async with`, and `execute_sync` on the library's own event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: CodeExecutor, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def execute_sync(self: CodeExecutor, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` and wait for the result. Blocks; everything that is kept stays on one event loop.

        The executor is closed at the program's end where nobody closes it before.

        Raises:
            BoughError: As `execute` raises it; or this is the library's own event loop, which may not wait for itself.
        """
        loop = portal()
        loop.hold_weakly(self)
        return loop.call(self.execute, request)
