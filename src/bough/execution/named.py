"""Create executors by the names in settings and in logs."""

from __future__ import annotations

import os
import re

from bough.errors import InvalidInput
from bough.execution.base import CodeExecutor

DEFAULT_IMAGE = "python:3.13-slim"
"""The image of the setting `container` without an image. No image is ever pulled."""

CHOICES = "sandbox, unsafe, container, container:IMAGE"

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_NAME_BY_RECORDED = {"local-sandbox": "sandbox", "unsafe-local": "unsafe"}


def executor_named(name: str, *, packages: str | os.PathLike[str] | None = None) -> CodeExecutor:
    """Return a new executor for `sandbox`, `container`, `container:IMAGE` or `unsafe`.

    `container` uses the image `DEFAULT_IMAGE`. The first run checks whether the engine has the image. Only `sandbox`
    takes `packages`, the environment whose packages programs can import.

    Raises:
        InvalidInput: The name is none of these, the executor cannot use packages, or the packages are invalid.
    """
    kind, colon, image = name.partition(":")
    if packages is not None and kind in ("container", "unsafe"):
        hint = "use the executor sandbox, or container:IMAGE with an image that has them"
        raise InvalidInput(f"the executor {name} cannot use the packages of an environment", hint=hint)
    if kind == "container" and (not colon or _IMAGE.fullmatch(image)):
        from bough.execution.container.container import ContainerCodeExecutor

        return ContainerCodeExecutor(image or DEFAULT_IMAGE)
    if kind == "container":
        raise InvalidInput(f"{image!r} is not an image name", hint=f"for example container:{DEFAULT_IMAGE}")
    match name:
        case "sandbox":
            from bough.execution.local import LocalSandboxCodeExecutor

            return LocalSandboxCodeExecutor(packages=packages)
        case "unsafe":
            from bough.execution.unsafe import UnsafeLocalCodeExecutor

            return UnsafeLocalCodeExecutor()
        case _:
            raise InvalidInput(f"invalid executor {name!r}", hint=f"choose one of: {CHOICES}")


def make_recorded_executor(name: str) -> CodeExecutor | None:
    """Return a new executor for a name in a log; None for an executor that the caller's code defines."""
    executor_name = _NAME_BY_RECORDED.get(name, name)
    if executor_name in ("sandbox", "unsafe") or executor_name.startswith("container"):
        return executor_named(executor_name)
    return None
