"""Calls approved for the rest of a session: those of one shape, at no higher risk, in this process only."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from bough.guard.request import CODE_NAMES, COMMAND_NAMES, PATH_NAMES, join_command, list_texts
from bough.types import JsonObject

_RANKS = {"LOW": 0, "MEDIUM": 1, "UNKNOWN": 1, "HIGH": 2}
_SHELL = frozenset(";|&<>`$(){}\n\\")
"""Characters that make a command line do more than run its first word with arguments."""


class Always:
    """The shapes of calls that are approved without asking."""

    def __init__(self) -> None:
        self._shapes: dict[str, int] = {}

    def remember(self, call: JsonObject) -> str | None:
        """Remember the shape of a call and return it; None if it cannot be remembered, for example at high risk."""
        shape, rank = find_shape(call), _rank(call)
        if shape is None or rank >= _RANKS["HIGH"]:
            return None
        self._shapes[shape] = max(rank, self._shapes.get(shape, 0))
        return shape

    def list(self) -> list[str]:
        """Return the remembered shapes, oldest first."""
        return [*self._shapes]

    def clear(self) -> None:
        """Forget all shapes, so that a person is asked about every call again."""
        self._shapes.clear()

    def find(self, call: JsonObject) -> str | None:
        """Return the remembered shape that covers a call; None if a person must be asked."""
        shape = find_shape(call)
        approved_rank = None if shape is None else self._shapes.get(shape)
        return shape if approved_rank is not None and _rank(call) <= approved_rank else None


def find_shape(call: JsonObject) -> str | None:
    """Return the shape of a call: the tool, with its program and subcommand, its skill and script, or its folders.

    None for code, and for a command line that does more than run one program: such calls have no common shape.
    """
    tool, arguments = str(call.get("tool")), call.get("arguments")
    values: JsonObject = arguments if isinstance(arguments, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    if any(name.lower() in CODE_NAMES for name in values):
        return None
    if tool == "run_skill_script":
        parts = [values.get(name) for name in ("skill_name", "script_path")]
        return f"{tool}: {' '.join(map(str, parts))}" if all(isinstance(name, str) for name in parts) else None
    commands = [join_command(value) for name, value in values.items() if name.lower() in COMMAND_NAMES]
    if commands:
        shapes = [_command_shape(command) for command in commands]
        return None if None in shapes else f"{tool}: {'; '.join(filter(None, shapes))}"
    paths = [text for name, value in values.items() if name.lower() in PATH_NAMES for text in list_texts(value)]
    folders = sorted({str(PurePath(path).parent) for path in paths})
    return f"{tool}: {' '.join(folders)}" if folders else tool


def _command_shape(command: str) -> str | None:
    if not _SHELL.isdisjoint(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return " ".join([words[0], *(word for word in words[1:2] if not word.startswith("-"))]) if words else None


def _rank(call: JsonObject) -> int:
    return _RANKS.get(str(call.get("risk") or "UNKNOWN"), _RANKS["HIGH"])
