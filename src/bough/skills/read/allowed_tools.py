"""Parsing `allowed-tools`, and deciding whether it permits a tool call.

Source: Agent Skills specification (`Bash(git:*) Read`: space-separated text, or a list).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from bough.skills.read.fields import as_text

_CHAINS = re.compile(r"[;&|<>`\n\r\0]|\$\(|\$\{")
_TOOL = re.compile(r"[^\s,()]+(?:\([^)]*\)?)?")


def parse_allowed_tools(value: Any) -> tuple[str, ...]:
    """Return the entries of `allowed-tools`, each `Tool` or `Tool(pattern)`; text is split at blanks and commas."""
    parts: list[str] = [as_text(item) for item in value] if isinstance(value, list) else [as_text(value)]  # pyright: ignore
    return tuple(dict.fromkeys(match for part in parts for match in _TOOL.findall(part) if match.lower() != "null"))


def allows(allowed: Sequence[str] | None, tool: str, argument: str = "") -> bool:
    """Whether a tool may be used: any tool if the field is absent, otherwise only tools that an entry names.

    A pattern applies to one simple command or path. An argument that chains, substitutes or redirects commands matches
    no pattern, because the pattern would cover only the first command.

    Args:
        argument: The shell command line or file path that the tool is called with.
    """
    return allowed is None or any(_entry_allows(entry, tool, argument) for entry in allowed)


def _entry_allows(entry: str, tool: str, argument: str) -> bool:
    """Whether an entry `Tool` or `Tool(pattern)` permits a call with this argument."""
    name, _, pattern_text = entry.partition("(")
    if not fnmatchcase(tool, name):
        return False
    pattern = pattern_text.removesuffix(")")
    if not pattern_text or pattern in ("", "*"):
        return True
    if _CHAINS.search(argument):
        return False
    if pattern.endswith(":*"):  # `git:*` is the command `git` with anything after it
        prefix = pattern[:-2]
        return argument == prefix or argument.startswith(prefix + " ")
    if "/" in pattern and ".." in argument.split("/"):
        return False
    return fnmatchcase(argument, pattern)
