"""Run code that a model wrote: the contract of executors, and executors that isolate the code from the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.execution.base import CodeExecutionInput as CodeExecutionInput
    from bough.execution.base import CodeExecutionResult as CodeExecutionResult
    from bough.execution.base import CodeExecutor as CodeExecutor
    from bough.execution.base import ExecutionLimits as ExecutionLimits
    from bough.execution.base import File as File
    from bough.execution.base import Guards as Guards
    from bough.execution.base import Isolation as Isolation
    from bough.execution.base import Mount as Mount
    from bough.execution.base import Network as Network
    from bough.execution.container.container import ContainerCodeExecutor as ContainerCodeExecutor
    from bough.execution.container.container import TaskContainerExecutor as TaskContainerExecutor
    from bough.execution.local import LocalSandboxCodeExecutor as LocalSandboxCodeExecutor
    from bough.execution.sandbox.rung import RungReport as RungReport
    from bough.execution.unsafe import UnsafeLocalCodeExecutor as UnsafeLocalCodeExecutor
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.execution.base": (
                "CodeExecutionInput CodeExecutionResult CodeExecutor ExecutionLimits File Guards Isolation Mount "
                "Network"
            ),
            "bough.execution.container.container": "ContainerCodeExecutor TaskContainerExecutor",
            "bough.execution.local": "LocalSandboxCodeExecutor",
            "bough.execution.sandbox.rung": "RungReport",
            "bough.execution.unsafe": "UnsafeLocalCodeExecutor",
        },
    )
