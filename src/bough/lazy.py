"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    A package imports its names under `if TYPE_CHECKING` (`from bough.tasks.model import Task as Task`) for type
    checkers and editors, and calls this function in the `else` branch with the same names.

    Args:
        package: The package's `__name__`.
        modules: The exported names of each module, separated by spaces. Names under `package` itself are submodules.
    """
    modules_by_name = {name: module for module, names in modules.items() for name in names.split()}
    names = sorted(modules_by_name, key=lambda name: (not name.isupper(), name))

    def load(name: str) -> Any:
        """Import a name on first use.

        Raises:
            Unavailable: The name needs a package that is not installed.
        """
        if name not in modules_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules_by_name[name]
        try:
            return import_module(f"{package}.{name}") if module == package else getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            from bough.extras import explain_missing_package

            raise explain_missing_package(error, f"{package}.{name}") from error

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return load, list_names, names
