"""Markdown for notebooks, in which no text of a user, a model or a program can become a link, an image or HTML."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Final
from unicodedata import category

MAX_CELL_CHARS: Final = 300
"""Maximum length of a text in a line or a cell; longer texts are cut."""

MAX_BLOCK_CHARS: Final = 20_000
"""Maximum length of a text in a block; the middle of a longer text is omitted."""

# Character references, not backslashes, because notebooks find formulas and bare links before they process backslashes.
_ESCAPED: Final = str.maketrans(
    {character: f"&#{ord(character)};" for character in set(string.punctuation) - set(",;'?/%")}
)
_JOINERS: Final = "\u200c\u200d"
"""Invisible characters that Persian, Hindi and emoji need."""


def plain(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return a text as one line, without control characters and characters that change the writing direction."""
    beginning = text[: max_chars + 1]
    line = " ".join("".join(map(_replace_invisible, beginning)).split())
    return line if len(text) <= max_chars else f"{line[:max_chars]}…"


def escape(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return a text as one line for a paragraph or a table cell, in which all punctuation is shown literally."""
    return plain(text, max_chars).translate(_ESCAPED)


def fence(text: str, max_chars: int = MAX_BLOCK_CHARS) -> str:
    """Return a fenced block that shows a text of several lines literally."""
    if len(text) > max_chars:
        half = max_chars // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
    # Split before characters are replaced, because only some renderers end a line at a form feed or a line separator.
    lines = ["".join(map(_replace_invisible, line)) for line in text.splitlines()]
    longest = max((len(run) for line in lines for run in _find_backtick_runs(line)), default=0)
    fence_marks = "`" * max(3, longest + 1)
    return "\n".join([f"{fence_marks}text", *lines, fence_marks])


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, escaped. Rows without a value are omitted; empty if no row remains."""
    lines = [f"| {escape(name)} | {escape(value)} |" for name, value in rows if value]
    return "\n".join(["| | |", "|---|---|", *lines]) if lines else ""


def join(*blocks: str) -> str:
    """Join the blocks that are not empty into one document."""
    return "\n\n".join(block for block in blocks if block)


def _replace_invisible(character: str) -> str:
    if character == "\t":
        return "    "
    kind = category(character)
    if kind in ("Zl", "Zp") or character in "\n\r\v\f":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if kind in ("Cc", "Cf", "Cs") and character not in _JOINERS else character


def _find_backtick_runs(line: str) -> list[str]:
    """Return the runs of backticks in a line."""
    return re.findall("`+", line)
