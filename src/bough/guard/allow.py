"""Allow-lists of tool calls, in the format that skills and agents use.

Source: Agent Skills specification (`allowed-tools`: `Bash(git:*) Read`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bough.errors import InvalidInput
from bough.guard.request import COMMAND_NAMES, PATH_NAMES, ToolRequest, join_command, list_texts, list_tool_names
from bough.skills.read.allowed_tools import allows, parse_allowed_tools
from bough.types import Json


@dataclass(frozen=True)
class AllowList:
    """Allows a call if each of its lists has an entry for the call.

    Attributes:
        lists: Tuples of entries, `Tool` or `Tool(pattern)`. Without lists every call is allowed; an empty list allows
            no call.
    """

    lists: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, *entries: str) -> AllowList:
        """Return the list of these entries. A text may contain several, separated by spaces or commas."""
        return cls((parse_allowed_tools(list(entries)),))

    def permits(self, request: ToolRequest) -> bool:
        """Whether the call is allowed. A command line matches a list only if each of its commands does."""
        return all(_permits(entries, request) for entries in self.lists)

    def may_permit(self, tool: str) -> bool:
        """Whether some calls of the tool are allowed."""
        names = list_tool_names(tool)
        return all(any(_is_for_tool(entry, name) for entry in entries for name in names) for entries in self.lists)

    def narrow(self, other: AllowList) -> AllowList:
        """Return an allow-list of the calls that both allow."""
        return AllowList(tuple(dict.fromkeys(self.lists + other.lists)))

    def to_json(self) -> Json:
        """Return the lists as a log records them."""
        return [list(entries) for entries in self.lists]


def allow_list_from_json(value: Json) -> AllowList:
    """Return the allow-list that `to_json` recorded; None allows every call.

    Raises:
        InvalidInput: The value is not a list of lists of texts.
    """
    if value is None:
        return AllowList(())
    lists = cast(list[Json], value) if isinstance(value, list) else None
    if lists is None or not all(
        isinstance(entries, list) and all(isinstance(entry, str) for entry in cast(list[Json], entries))
        for entries in lists
    ):
        raise InvalidInput(f"{value!r} is not an allow-list", hint='give lists of entries: [["Read", "Bash(git:*)"]]')
    return AllowList(tuple(tuple(cast(Iterable[str], entries)) for entries in lists))


def _permits(entries: tuple[str, ...], request: ToolRequest) -> bool:
    """Whether a list allows a call: by an entry without a pattern, or by patterns for all its commands or paths."""
    names = list_tool_names(request.tool)  # the name, and the names under which entries may list it
    unrestricted = [entry for entry in entries if _has_no_pattern(entry)]
    if any(allows(unrestricted, name) for name in names):
        return True
    subjects = _list_subjects(request)
    # Without a known command or path, no pattern may allow the call.
    return bool(subjects) and all(any(allows(entries, name, subject) for name in names) for subject in subjects)


def _is_for_tool(entry: str, tool: str) -> bool:
    """Whether an entry is for the tool, with or without a pattern."""
    return allows([entry.partition("(")[0]], tool)


def _has_no_pattern(entry: str) -> bool:
    """Whether an entry covers all calls of its tool: `Tool`, `Tool(*)` or `Tool(:*)`."""
    return re.fullmatch(r"[^(]*(\((\*|:\*)?\)?)?", entry) is not None


def _list_subjects(request: ToolRequest) -> tuple[str, ...]:
    """Return the texts that patterns must match: each command of the command lines, or each normalised path."""
    if COMMAND_NAMES & request.arguments.keys():
        commands = (value for name, value in request.arguments.items() if name in COMMAND_NAMES)
        # Empty if one command line cannot be parsed: matches of the others must not allow the call.
        subject_lists = [_list_commands(join_command(value), request.workspace) for value in commands]
        return tuple(subject for subjects in subject_lists for subject in subjects) if all(subject_lists) else ()
    paths = (value for name, value in request.arguments.items() if name in PATH_NAMES)
    return tuple(_normalise_path(path, request.workspace) for value in paths for path in list_texts(value))


def _normalise_path(path: str, workspace: Path) -> str:
    """Return a path relative to the workspace, or an absolute path if it is outside. Links are not followed."""
    absolute = os.path.normpath(os.path.join(workspace, path))
    return os.path.relpath(absolute, workspace) if absolute.startswith(f"{workspace}/") else absolute


def _list_commands(text: str, workspace: Path) -> tuple[str, ...]:
    """Return the commands of a command line; empty if it cannot be parsed, redirects, or defines anything."""
    from bough.guard.shell.parse import parse_shell

    script = parse_shell(text, {"PWD": (str(workspace),)})
    # `PATH=. git status` and `git log > ~/.bashrc` run git, but do more than the pattern `Bash(git:*)` allows.
    if script.problem or script.assignments or script.functions:
        return ()
    if any(command.redirects or not command.words[0].is_known for command in script.commands):
        return ()
    return tuple(" ".join(word.text for word in command.words) for command in script.commands)
