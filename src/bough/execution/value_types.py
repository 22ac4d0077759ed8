"""Checking the types of a request's values, since callers without a type checker pass other ones."""

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
    """Check that every value, and every entry of a list, has the type of its field; O(values).

    Raises:
        InvalidInput: A value has another type; the message names field and type.
    """
    for name, kinds in _FIELD_TYPES.items():
        _check_values(name, [getattr(request, name)], kinds)
    for name, kind in _ENTRY_TYPES.items():
        _check_values(f"an entry of {name}", getattr(request, name) or (), (kind,))
    _check_values("a value of env", request.env.values(), (str,))
    for file in request.input_files:
        _check_values("the path of an input file", [file.path], (str,))
        _check_values("the content of an input file", [file.content], (bytes,))
        _check_values("the mode of an input file", [file.mode], (int,))
    for mount in request.mounts:
        _check_values("a folder of a mount", [mount.source, mount.target], (str,))


def _check_values(field: str, values: Iterable[Any], kinds: tuple[type, ...]) -> None:
    for value in values:
        if not isinstance(value, kinds):
            names = " or ".join("None" if kind is _NOTHING else kind.__name__ for kind in kinds)
            raise InvalidInput(f"{field} is of the kind {type(value).__name__}.", hint=f"It must be {names}.")
