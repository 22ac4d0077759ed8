"""A tool call before it runs, and the names of arguments that contain commands, code and paths."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from bough.guard.risk import names
from bough.types import Json, JsonObject


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """A tool call to review.

    Attributes:
        id: The tool call's id.
        arguments: A JSON object, as recorded.
        workspace: Absolute path of the conversation's working folder.
        reads_skills: Whether the tool only reads skills that the agent may use. A person has decided about these, so
            no policy confirms the call unless the analyzer rates it above LOW.
    """

    id: str
    tool: str
    arguments: JsonObject = field(default_factory=dict[str, Json])
    workspace: Path
    reads_skills: bool = False


COMMAND_NAMES = frozenset({"command", "cmd"})
"""Names of arguments with a command line, for all tools."""

CODE_NAMES = names("code source_code script_code program cell cell_source snippet")
"""Names of arguments with program code, for all tools."""

PATH_NAMES = names(
    "path paths file files file_path filepath filename directory dir folder cwd working_dir working_directory "
    "target target_path destination dest source src output output_path root notebook_path"
)
"""Names of arguments with paths, for all tools."""


def list_texts(value: Json) -> tuple[str, ...]:
    """Return the texts in a list, or a single text as a tuple; empty for other values."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)):
        return tuple(item for item in cast(list[Json], value) if isinstance(item, str))
    return ()


def join_command(value: Json) -> str:
    """Return the command line in an argument: a text, or a list of words, which are quoted and joined."""
    return value if isinstance(value, str) else shlex.join(list_texts(value))


_OTHER_NAMES: Mapping[str, frozenset[str]] = {
    "run_command": frozenset({"Bash", "bash", "terminal", "execute_bash"}),
    "read_file": frozenset({"Read", "read"}),
    "write_file": frozenset({"Write", "write"}),
    "edit_file": frozenset({"Edit", "edit"}),
    "list_files": frozenset({"LS", "Glob", "ls", "glob"}),
    "search_files": frozenset({"Grep", "grep"}),
}


def list_tool_names(tool: str) -> frozenset[str]:
    """Return the name of a tool, and its names in other agents. Hooks and allow-lists may use any of these names."""
    return _OTHER_NAMES.get(tool, frozenset()) | {tool}
