"""Choose the program that runs a script, by its extension or its first line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal, TypeAlias

Language: TypeAlias = Literal["python", "bash", "sh", "node"]

_LANGUAGES: Final[Mapping[str, Language]] = {
    ".py": "python",
    ".sh": "bash",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
}
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash"})


@dataclass(frozen=True)
class ScriptProgram:
    """The program that runs a script.

    Attributes:
        language: The language of the script; always `python` if the file extension is unknown.
        command: The interpreter and its options from the first line; None for the usual interpreter of the language.
    """

    language: Language
    command: tuple[str, ...] | None = None


def find_script_program(name: str, head: bytes) -> ScriptProgram | None:
    """Return the program that runs a script; None if neither its extension nor its first line determines it.

    The first line of a shell script may choose another shell, but not another program. The executable bit is ignored.

    Args:
        name: The name of the file.
        head: The beginning of its text; empty if the text is unknown.
    """
    command = _read_shebang(head)
    language = _LANGUAGES.get(PurePath(name).suffix.lower())
    if language is None:
        return ScriptProgram("python", command) if command else None
    is_shell = bool(command) and PurePath(command[0]).name in _SHELLS
    return ScriptProgram(language, command if language == "bash" and is_shell else None)


def _read_shebang(head: bytes) -> tuple[str, ...]:
    """Return the words of a `#!` line without `env`, its `-S` and its variables; empty if there is no such line."""
    if not head.startswith(b"#!"):
        return ()
    words = head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").replace("\r", "").split()
    if words and PurePath(words[0]).name == "env":
        words = words[1:]
        if words and words[0] == "-S":
            words = words[1:]
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words = words[1:]
    return tuple(words)
