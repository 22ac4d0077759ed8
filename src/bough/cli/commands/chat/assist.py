"""History of the texts sent in a project, and completion of commands, skills and files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History
from typing_extensions import override

from bough import git
from bough.cli.text import one_line
from bough.errors import BoughError

if TYPE_CHECKING:
    from bough.cli.commands.chat.commands import ChatCommands

MAX_ENTRIES = 5000
_MAX_FILES = 20_000
_MAX_SHOWN = 50
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


class ProjectHistory(History):
    """The texts that were sent in one working folder, in a file of bough's home that only its owner can read.

    One JSON string a line. A text that begins with a space is not stored.

    Args:
        home: bough's home.
        workspace: The working folder.
        mask: Replaces secrets in a text.
    """

    def __init__(self, home: Path, workspace: Path, mask: Callable[[str], str]) -> None:
        super().__init__()
        digest = hashlib.sha256(str(workspace.absolute()).encode()).hexdigest()[:16]
        self._file = home / "history" / f"{digest}.jsonl"
        self._mask = mask

    @override
    def load_history_strings(self) -> Iterable[str]:
        """Return the stored texts, the newest first, and shorten a file that has become too long."""
        try:
            rows = self._file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        if len(rows) > 2 * MAX_ENTRIES:
            self._replace(rows[-MAX_ENTRIES:])
        return [text for row in reversed(rows[-MAX_ENTRIES:]) if (text := _parse_entry(row))]

    @override
    def store_string(self, string: str) -> None:
        """Append a text. If the history cannot be written, the chat continues without it."""
        if string.startswith(" "):
            return
        row = json.dumps(self._mask(string), ensure_ascii=False) + "\n"
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        with open(fd, "a", encoding="utf-8") as file:
            file.write(row)  # one write, so that rows of two chats in one folder do not mix

    def _replace(self, rows: list[str]) -> None:
        temporary = self._file.with_suffix(f".{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)
        temporary.replace(self._file)


def _parse_entry(row: str) -> str:
    try:
        text = json.loads(row)
    except ValueError:  # cut off by a full disk
        return ""
    return text if isinstance(text, str) else ""


class ChatCompleter(Completer):
    """Completes `/commands` and `/skills` at the start of a message, and files of the workspace after `@`."""

    def __init__(self, commands: ChatCommands, workspace: Path) -> None:
        self._commands = commands
        self._workspace = workspace

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions of the word before the cursor, the best first."""
        before = document.text_before_cursor
        word = before.rsplit(maxsplit=1)[-1] if before and not before[-1].isspace() else ""
        if before.startswith("/") and word == before:
            yield from self._complete_command(word)
        elif word.startswith("@"):
            names = rank(word[1:], self._files)[:_MAX_SHOWN]
            yield from (Completion(f"@{name}", start_position=-len(word)) for name in names)

    def _complete_command(self, word: str) -> Iterator[Completion]:
        helps = {name: command.help for name, command in self._commands.table.items()}
        for skill in self._commands.list_skills():
            helps.setdefault(f"/{skill.name}", one_line(skill.description, 60))
        for name, help in helps.items():
            if name.startswith(word):
                yield Completion(name, start_position=-len(word), display_meta=help)

    @cached_property
    def _files(self) -> list[str]:
        return list_files(self._workspace)


def list_files(folder: Path) -> list[str]:
    """Return the relative paths of a folder's files; in a git repository without those that it ignores."""
    try:
        if git.find_repository(folder) is not None:
            listed = git.run(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
            return sorted(filter(None, listed.split("\0")))[:_MAX_FILES]
    except BoughError:  # git is missing or refuses the repository: list the files without it
        pass
    names: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        names += (os.path.relpath(os.path.join(parent, name), folder) for name in files)
        if len(names) >= _MAX_FILES:
            break
    return sorted(names)[:_MAX_FILES]


def rank(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that have the typed letters in this order: whole matches first, then the shortest."""
    letters = typed.lower()
    matches = [name for name in names if _has_in_order(name.lower(), letters)]
    return sorted(matches, key=lambda name: (letters not in name.lower(), len(name), name))


def _has_in_order(name: str, letters: str) -> bool:
    remaining = iter(name)
    return all(letter in remaining for letter in letters)
