"""The inline metadata of a Python script: dependencies and Python version.

Source: PEP 723, inline script metadata.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


@dataclass(frozen=True, slots=True)
class InlineMetadata:
    """A script's dependencies, as requirement specifiers, and the Python version it requires."""

    dependencies: tuple[str, ...] = ()
    requires_python: str | None = None


def inline_metadata(source: str) -> InlineMetadata | None:
    """Return a script's inline metadata; None if it has none or it is invalid. O(n)."""
    blocks = [match for match in _BLOCK.finditer(source.replace("\r\n", "\n")) if match["type"] == "script"]
    if len(blocks) != 1:
        return None
    lines = blocks[0]["content"].splitlines()
    try:
        data: dict[str, Any] = tomllib.loads(
            "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
        )
    except tomllib.TOMLDecodeError:
        return None
    names, python = data.get("dependencies", []), data.get("requires-python")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):  # pyright: ignore
        return None
    return InlineMetadata(tuple(names), python if isinstance(python, str) else None)  # pyright: ignore
