"""What bough's own tests are built from, for tests of agents, skills and plug-ins elsewhere; imported lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.testing.scripted import Asked, ScriptedModel, tool_call

__all__ = ["Asked", "ScriptedModel", "tool_call"]

_HOMES = {
    "Asked": "bough.testing.scripted",
    "ScriptedModel": "bough.testing.scripted",
    "tool_call": "bough.testing.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
