"""Running code that a model chose: the contract, and executors that keep it away from the machine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.execution.base import (
        CodeExecutionInput,
        CodeExecutionResult,
        CodeExecutor,
        ExecutionLimits,
        File,
        Guards,
        Isolation,
        Mount,
        Network,
    )
    from bough.execution.container.container import ContainerCodeExecutor, TaskContainerExecutor
    from bough.execution.local import LocalSandboxCodeExecutor
    from bough.execution.sandbox.rung import RungReport
    from bough.execution.unsafe import UnsafeLocalCodeExecutor

__all__ = [
    "CodeExecutionInput",
    "CodeExecutionResult",
    "CodeExecutor",
    "ContainerCodeExecutor",
    "ExecutionLimits",
    "File",
    "Guards",
    "Isolation",
    "LocalSandboxCodeExecutor",
    "Mount",
    "Network",
    "RungReport",
    "TaskContainerExecutor",
    "UnsafeLocalCodeExecutor",
]

_HOMES = {
    "ContainerCodeExecutor": "container.container",
    "LocalSandboxCodeExecutor": "local",
    "RungReport": "sandbox.rung",
    "TaskContainerExecutor": "container.container",
    "UnsafeLocalCodeExecutor": "unsafe",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'base')}", __name__), name)
