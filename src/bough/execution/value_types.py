"""Check the types of a request's values, because callers without a type checker may pass other types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bough.errors import InvalidInput
from bough.execution.base import CodeExecutionInput, ExecutionLimits, File, Guards, Mount, Network

_NOTHING: Final = type(None)
_FIELD_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "code": (str, _NOTHING),
    "script": (str, _NOTHING),
    "argv": (tuple, list),
    "command": (tuple, list, _NOTHING),
    "language": (str,),
    "input_files": (tuple, list),
    "mounts": (tuple, list),
    "workspace": (str, _NOTHING),
    "working_dir": (str,),
    "timeout_seconds": (int, float, _NOTHING),
    "env": (dict,),
    "stdin": (bytes,),
    "execution_id": (str, _NOTHING),
    "output_globs": (tuple, list, _NOTHING),
    "limits": (ExecutionLimits,),
    "network": (Network,),
    "stateful": (bool, _NOTHING),
    "guards": (Guards,),
}
_ENTRY_TYPES: Final[dict[str, type]] = {
    "argv": str,
    "command": str,
    "input_files": File,
    "mounts": Mount,
    "env": str,
    "output_globs": str,
}


def check_types(request: CodeExecutionInput) -> None:
    """Check that every field of a request, and every entry of its collections, has the right type; O(values).

    Raises:
        InvalidInput: A value has another type.
    """
    for name, types in _FIELD_TYPES.items():
        _check_values(name, [getattr(request, name)], types)
    for name, entry_type in _ENTRY_TYPES.items():
        _check_values(f"an entry of {name}", getattr(request, name) or (), (entry_type,))
    _check_values("a value of env", request.env.values(), (str,))
    for file in request.input_files:
        _check_values("the path of an input file", [file.path], (str,))
        _check_values("the content of an input file", [file.content], (bytes,))
        _check_values("the mode of an input file", [file.mode], (int,))
    for mount in request.mounts:
        _check_values("a folder of a mount", [mount.source, mount.target], (str,))


def _check_values(subject: str, values: Iterable[Any], types: tuple[type, ...]) -> None:
    for value in values:
        if not isinstance(value, types):
            names = " or ".join("None" if expected is _NOTHING else expected.__name__ for expected in types)
            raise InvalidInput(f"{subject} has the type {type(value).__name__}.", hint=f"It must be {names}.")
