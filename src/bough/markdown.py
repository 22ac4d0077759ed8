"""Markdown for notebooks, in which no text of a user, a model or a program can become a link, an image or HTML."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Final
from unicodedata import category

MAX_CELL_CHARS: Final = 300
"""The longest text in a line or a cell; a longer one is cut."""

MAX_BLOCK_CHARS: Final = 20_000
"""The longest text in a block; of a longer one its beginning and its end are shown."""

# As numbers and not behind backslashes: the formulas and bare links of notebooks are found before backslashes count.
_ESCAPED: Final = str.maketrans(
    {character: f"&#{ord(character)};" for character in set(string.punctuation) - set(",;'?/%")}
)
_JOINERS: Final = "\u200c\u200d"
"""Invisible characters that Persian, Hindi and emoji need."""


def plain(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return a text in one line, without control characters and without marks that change the direction of writing."""
    beginning = text[: max_chars + 1]
    line = " ".join("".join(map(_visible, beginning)).split())
    return line if len(text) <= max_chars else f"{line[:max_chars]}…"


def escape(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return a text in one line, for a paragraph or a cell of a table: every mark is shown as it is."""
    return plain(text, max_chars).translate(_ESCAPED)


def fence(text: str, max_chars: int = MAX_BLOCK_CHARS) -> str:
    """Return a block that shows a text of several lines as it is."""
    if len(text) > max_chars:
        half = max_chars // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
    # Split first: a form feed or a line separator would end a line of the block in some renderers and not in others.
    lines = ["".join(map(_visible, line)) for line in text.splitlines()]
    longest = max((len(run) for line in lines for run in _runs(line)), default=0)
    marks = "`" * max(3, longest + 1)
    return "\n".join([f"{marks}text", *lines, marks])


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, which are escaped here. Empty values are left out; empty without rows."""
    lines = [f"| {escape(name)} | {escape(value)} |" for name, value in rows if value]
    return "\n".join(["| | |", "|---|---|", *lines]) if lines else ""


def join(*blocks: str) -> str:
    """Return blocks as one document, without the empty ones."""
    return "\n\n".join(block for block in blocks if block)


def _visible(character: str) -> str:
    if character == "\t":
        return "    "
    kind = category(character)
    if kind in ("Zl", "Zp") or character in "\n\r\v\f":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if kind in ("Cc", "Cf", "Cs") and character not in _JOINERS else character


def _runs(line: str) -> list[str]:
    """Return the runs of backticks in a line."""
    return re.findall("`+", line)
