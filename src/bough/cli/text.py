"""Output for people, independent of the renderer: lines of styled spans, and tables.

A style names the meaning of a text, not its colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from unicodedata import category, east_asian_width

Style: TypeAlias = Literal["", "strong", "dim", "good", "warn", "bad", "id"]
Span: TypeAlias = tuple[str, Style]


@dataclass(frozen=True)
class Line:
    """One line: a sequence of spans.

    Attributes:
        hang: Indent of the continuation lines if the line is broken between words to fit the terminal; None for a line
            that is not broken.
    """

    spans: tuple[Span, ...] = ()
    hang: int | None = None

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.spans)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a heading.

    Attributes:
        head: Headings of the columns.
        flexible: Number of the column that is cut if the terminal is too narrow.
        right: Numbers of the columns that are aligned to the right.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]
    flexible: int
    right: frozenset[int] = frozenset()


_PIECE = re.compile(r"\S+\s*|\s+")
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
_ALLOWED_CONTROLS = "\n\t\u200c\u200d"  # the last two join letters in Persian, Hindi and emoji

Block: TypeAlias = Line | Table


def line(*parts: str | Span, hang: int | None = None) -> Line:
    """Return a line; a bare string is unstyled."""
    return Line(tuple((part, "") if isinstance(part, str) else part for part in parts), hang)


def paragraph(text: str, *, indent: int = 0, style: Style = "") -> list[Line]:
    """Return the lines of a text, indented."""
    return [line(" " * indent, (part, style), hang=indent) for part in text.splitlines()]


def layout(block: Block, width: int | None) -> Iterator[Line]:
    """Yield the lines of a block, broken or with a cut flexible column so that they fit into `width` if possible.

    Args:
        width: Number of cells of the terminal's lines; None for no limit.
    """
    if isinstance(block, Line):
        yield from _break_line(block, width) if width is not None and block.hang is not None else (block,)
        return
    heading: tuple[Span, ...] = tuple((text, "dim") for text in block.head)
    rows = [heading, *block.rows]
    widths = [max(cells(row[column][0]) for row in rows) for column in range(len(block.head))]
    if width is not None:
        widths[block.flexible] = max(8, width - sum(widths) + widths[block.flexible] - 2 * (len(widths) - 1))
    for row in rows:
        yield Line(tuple(_pad_row(block, row, widths)))


def _break_line(long: Line, width: int) -> Iterator[Line]:
    """Yield the lines into which a line is broken between words; a word wider than the terminal is not broken."""
    indent: list[Span] = [(" " * (long.hang or 0), "")]
    row: list[Span] = []
    used = 0
    for text, style in long.spans:
        for piece in _PIECE.findall(text):
            # A break before the first word would yield a line with only an indent.
            if row and used + cells(piece.rstrip()) > width and not piece.isspace() and used > (long.hang or 0):
                yield Line((*row[:-1], (row[-1][0].rstrip(), row[-1][1])))
                row, used, piece = list(indent), long.hang or 0, piece.lstrip()
            row.append((piece, style))
            used += cells(piece)
    yield Line(tuple(row))


def _pad_row(table: Table, row: Sequence[Span], widths: Sequence[int]) -> Iterator[Span]:
    """Yield the spans of a row, padded to the widths of the columns."""
    # Nothing after the last text, because trailing blanks would wrap on a narrow terminal.
    last = max((i for i, (text, _) in enumerate(row) if text), default=-1)
    for column, (text, style) in enumerate(row[: last + 1]):
        text = shorten(text, widths[column])
        padding = " " * (widths[column] - cells(text))
        if column in table.right:
            yield padding, ""
        yield text, style
        if column < last:
            yield ("  " if column in table.right else padding + "  "), ""


def shorten(text: str, width: int) -> str:
    """Return `text` cut to `width` cells; a cut is marked with an ellipsis."""
    if cells(text) <= width:
        return text
    count, used = 0, 1
    while count < len(text) and used + _cell(text[count]) <= width:
        used += _cell(text[count])
        count += 1
    return text[:count].rstrip() + "…"


def is_visible(text: str) -> bool:
    """Return whether a text has a character that a terminal shows as more than blank space."""
    return any(category(char)[0] not in "ZC" and char not in _BLANK_LETTERS for char in text)


def one_line(text: str, width: int = 200) -> str:
    """Return `text` as one line of at most `width` cells."""
    return shorten(" ".join(text.split()), width)


def cells(text: str) -> int:
    """Return the number of terminal cells of a text. Wide characters take 2 cells, combining characters none."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(char: str) -> int:
    # Combining and format characters are drawn into the cell of the character before them.
    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def harmless(text: str) -> str:
    """Return `text` without control characters, which could move the cursor or hide text; tabs and newlines remain."""
    if text.isprintable():
        return text
    return "".join(
        char if char in _ALLOWED_CONTROLS or category(char) not in ("Cc", "Cf") else "\ufffd" for char in text
    )


def escape_controls(text: str) -> str:
    r"""Return `text` with control characters escaped, for example as `\x1b`.

    For pipes and files: nothing is lost, and the content may be shown on a terminal later.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char in _ALLOWED_CONTROLS or category(char) not in ("Cc", "Cf")
        else char.encode("unicode_escape").decode()
        for char in text
    )


def harmless_line(source_line: Line) -> Line:
    """Return a line without control characters."""
    return replace(source_line, spans=tuple((harmless(text), style) for text, style in source_line.spans))
