"""Executors by the names that settings use."""

from __future__ import annotations

from bough.errors import InvalidInput
from bough.execution.base import CodeExecutor


def executor_named(name: str) -> CodeExecutor:
    """Return a new executor: `sandbox` or, by explicit wish, `unsafe`.

    Raises:
        InvalidInput: There is no executor of that name.
    """
    match name:
        case "sandbox":
            from bough.execution.local import LocalSandboxCodeExecutor

            return LocalSandboxCodeExecutor()
        case "unsafe":
            from bough.execution.unsafe import UnsafeLocalCodeExecutor

            return UnsafeLocalCodeExecutor()
        case _:
            raise InvalidInput(f"there is no executor {name!r}", hint="choose sandbox or unsafe")
