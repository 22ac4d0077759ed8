"""A tool call as the guard sees it, before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from bough.guard.names import names
from bough.types import Json, JsonObject


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """One tool call that asks to run.

    Attributes:
        id: The tool call's id.
        arguments: A JSON object, as recorded.
        workspace: Absolute path of the conversation's working folder.
    """

    id: str
    tool: str
    arguments: JsonObject = field(default_factory=dict[str, Json])
    workspace: Path


COMMAND_NAMES = frozenset({"command", "cmd"})
"""Arguments that hold a command line, whatever the tool."""

CODE_NAMES = names("code source_code script_code program cell cell_source snippet")
"""Arguments that hold code of a program, whatever the tool."""

PATH_NAMES = names(
    "path paths file files file_path filepath filename directory dir folder cwd working_dir working_directory "
    "target target_path destination dest source src output output_path root notebook_path"
)
"""Arguments that hold paths, whatever the tool."""


def texts_of(value: Json) -> tuple[str, ...]:
    """Return a text, or the texts of a list; nothing for other values."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)):
        return tuple(item for item in cast(list[Json], value) if isinstance(item, str))
    return ()


def command_text(value: Json) -> str:
    """Return a command line given as a text, or as a list of words (quoted so that the words stay apart)."""
    return value if isinstance(value, str) else shlex.join(texts_of(value))


_OTHER_NAMES: Mapping[str, frozenset[str]] = {
    "run_command": frozenset({"Bash", "bash", "terminal", "execute_bash"}),
    "read_file": frozenset({"Read", "read"}),
    "write_file": frozenset({"Write", "write"}),
    "edit_file": frozenset({"Edit", "edit"}),
    "list_files": frozenset({"LS", "Glob", "ls", "glob"}),
    "search_files": frozenset({"Grep", "grep"}),
}


def names_of(tool: str) -> frozenset[str]:
    """Return the tool's name and what other agents call it, so that their hooks and allow-lists mean it as well."""
    return _OTHER_NAMES.get(tool, frozenset()) | {tool}
