"""Which tools may be called at all, by lists of entries as skills and agents have them.

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
from bough.guard.request import COMMAND_NAMES, PATH_NAMES, ToolRequest, command_text, list_texts, tool_names
from bough.skills.read.allowed_tools import allows, parse_allowed_tools
from bough.types import Json


@dataclass(frozen=True)
class AllowList:
    """Allows a call if each of the lists has an entry for it.

    Attributes:
        lists: Each a tuple of `Tool` or `Tool(pattern)`. No lists allow everything, an empty list nothing.
    """

    lists: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, *entries: str) -> AllowList:
        """Return the list of these entries. A text may hold several, separated by blanks or commas."""
        return cls((parse_allowed_tools(list(entries)),))

    def permits(self, request: ToolRequest) -> bool:
        """Whether the call may run. A command line matches patterns only if each of its commands does."""
        return all(_permitted(entries, request) for entries in self.lists)

    def may_permit(self, tool: str) -> bool:
        """Whether a call of the tool may run with some arguments."""
        names = tool_names(tool)
        return all(any(_names_tool(entry, name) for entry in entries for name in names) for entries in self.lists)

    def narrow(self, other: AllowList) -> AllowList:
        """Return the calls that both allow."""
        return AllowList(tuple(dict.fromkeys(self.lists + other.lists)))

    def to_json(self) -> Json:
        """Return the lists."""
        return [list(entries) for entries in self.lists]


def allow_list_from_json(value: Json) -> AllowList:
    """Return the allow-list that `to_json` wrote; None allows everything.

    Raises:
        InvalidInput: It is not a list of lists of texts.
    """
    if value is None:
        return AllowList(())
    lists = cast(list[Json], value) if isinstance(value, list) else None
    if lists is None or not all(
        isinstance(entries, list) and all(isinstance(e, str) for e in cast(list[Json], entries)) for entries in lists
    ):
        raise InvalidInput(f"{value!r} is not an allow-list", hint='give lists of entries: [["Read", "Bash(git:*)"]]')
    return AllowList(tuple(tuple(cast(Iterable[str], entries)) for entries in lists))


def _permitted(entries: tuple[str, ...], request: ToolRequest) -> bool:
    names = tool_names(request.tool)
    whole = [entry for entry in entries if _covers_all(entry)]
    if any(allows(whole, name) for name in names):
        return True
    subjects = _subjects(request)
    # Without subjects, nothing is known about the call, so a pattern must not match it.
    return bool(subjects) and all(any(allows(entries, name, subject) for name in names) for subject in subjects)


def _names_tool(entry: str, tool: str) -> bool:
    """Whether an entry names the tool, with or without a pattern."""
    return allows([entry.partition("(")[0]], tool)


def _covers_all(entry: str) -> bool:
    return re.fullmatch(r"[^(]*(\((\*|:\*)?\)?)?", entry) is not None


def _subjects(request: ToolRequest) -> tuple[str, ...]:
    """Return what patterns are matched against: each command of a command line, or each path, normalised."""
    if COMMAND_NAMES & request.arguments.keys():
        commands = (value for name, value in request.arguments.items() if name in COMMAND_NAMES)
        # Empty as a whole if one command line cannot be parsed: the others must not make the call pass.
        subject_lists = [_commands(command_text(value), request.workspace) for value in commands]
        return tuple(subject for subjects in subject_lists for subject in subjects) if all(subject_lists) else ()
    paths = (value for name, value in request.arguments.items() if name in PATH_NAMES)
    return tuple(_relative(path, request.workspace) for value in paths for path in list_texts(value))


def _relative(path: str, workspace: Path) -> str:
    place = os.path.normpath(os.path.join(workspace, path))
    return os.path.relpath(place, workspace) if place.startswith(f"{workspace}/") else place


def _commands(text: str, workspace: Path) -> tuple[str, ...]:
    """Return the commands of a command line; empty if it cannot be parsed, redirects or sets variables."""
    from bough.guard.shell.parse import parse_shell

    script = parse_shell(text, {"PWD": (str(workspace),)})
    # `PATH=. git status` and `git log > ~/.bashrc` begin like `git`, but do more than the pattern `Bash(git:*)` allows.
    if script.problem or script.assignments or script.functions:
        return ()
    if any(command.redirects or not command.words[0].is_known for command in script.commands):
        return ()
    return tuple(" ".join(word.text for word in command.words) for command in script.commands)
