"""What a shell command line would do, read from its syntax tree; nothing is ever run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.guard.shell.assess import assess_shell

__all__ = ["assess_shell"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.assess"), name)
