"""Output for people, independent of the renderer: lines of styled text spans, and tables.

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
        hang: Indentation of continuation lines if the line is wrapped to fit the terminal; None disables wrapping.
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
        flexible: Indices of the columns that are shortened if the terminal is too narrow, the widest first.
        right: Indices of the columns that are aligned to the right.
        drop: Indices of the columns that are left out, in this order, if the flexible ones would have too little room.
        last_flexible: Index of a column that is shortened if that does not suffice.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]
    flexible: tuple[int, ...]
    right: frozenset[int] = frozenset()
    drop: tuple[int, ...] = ()
    last_flexible: int | None = None


_COLUMN_GAP = "  "
_MIN_FLEXIBLE_WIDTH = 8
_READABLE_WIDTH = 16
"""Columns are left out as long as the flexible one would be narrower."""
_PIECE = re.compile(r"\S+\s*|\s+")
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
_ALLOWED_CONTROLS = "\n\t\u200c\u200d"  # the last two join letters in Persian, Hindi and emoji

Block: TypeAlias = Line | Table


def line(*parts: str | Span, hang: int | None = None) -> Line:
    """Return a line of spans; a part that is a string has no style."""
    return Line(tuple((part, "") if isinstance(part, str) else part for part in parts), hang)


def paragraph(text: str, *, indent: int = 0, style: Style = "") -> list[Line]:
    """Return the lines of a text as indented output lines."""
    return [line(" " * indent, (part, style), hang=indent) for part in text.splitlines()]


def layout(block: Block, width: int | None) -> Iterator[Line]:
    """Yield the lines of a block, wrapped or with a shortened column to fit into `width` if possible.

    Args:
        width: Number of cells in a line of the terminal; None for no limit.
    """
    if isinstance(block, Line):
        if width is None or block.hang is None:
            yield block
        else:
            yield from _wrap_line(block, width, block.hang)
        return
    heading: tuple[Span, ...] = tuple((text, "dim") for text in block.head)
    rows = [heading, *block.rows]
    widths = [max(cells(row[column][0]) for row in rows) for column in range(len(block.head))]
    columns = list(range(len(widths)))
    if width is not None:
        columns = _fit_columns(block, widths, width)
    for row in rows:
        yield Line(tuple(_pad_row(block, row, widths, columns)))


def _fit_columns(table: Table, widths: list[int], width: int) -> list[int]:
    """Return the columns to show in a terminal of `width` cells; shorten their widths in place."""

    def measure_excess() -> int:
        return sum(widths[column] for column in columns) + len(_COLUMN_GAP) * (len(columns) - 1) - width

    columns = list(range(len(widths)))
    readable_width = sum(min(_READABLE_WIDTH, widths[column]) for column in table.flexible)
    for column in table.drop:
        if sum(widths[column] for column in table.flexible) - measure_excess() < readable_width:
            columns.remove(column)
    for _ in range(measure_excess()):
        _shorten(widths, max(table.flexible, key=widths.__getitem__), 1)
    if table.last_flexible is not None:
        _shorten(widths, table.last_flexible, measure_excess())
    return columns


def _shorten(widths: list[int], column: int, count: int) -> None:
    """Take `count` cells from the width of a column, at most down to what is still readable."""
    if count > 0:
        widths[column] = max(min(_MIN_FLEXIBLE_WIDTH, widths[column]), widths[column] - count)


def _wrap_line(long_line: Line, width: int, hang: int) -> Iterator[Line]:
    """Yield the lines into which a line is wrapped between words; a word wider than the terminal is not broken."""
    row: list[Span] = []
    used = 0
    for text, style in long_line.spans:
        for piece in _PIECE.findall(text):
            is_too_wide = not piece.isspace() and used + cells(piece.rstrip()) > width
            # `used > hang`, because a break before the first word would yield a line with only the indentation.
            if row and is_too_wide and used > hang:
                last_text, last_style = row[-1]
                yield Line((*row[:-1], (last_text.rstrip(), last_style)))
                row = [(" " * hang, "")]
                used, piece = hang, piece.lstrip()
            row.append((piece, style))
            used += cells(piece)
    yield Line(tuple(row))


def _pad_row(table: Table, row: Sequence[Span], widths: Sequence[int], columns: Sequence[int]) -> Iterator[Span]:
    """Yield the spans of a row, padded to the widths of the columns."""
    # No padding after the last text, because trailing spaces would wrap on a narrow terminal.
    last = max((column for column in columns if row[column][0]), default=-1)
    for column in columns:
        if column > last:
            return
        text, style = row[column]
        text = shorten(text, widths[column])
        padding = " " * (widths[column] - cells(text))
        if column in table.right:
            yield padding, ""
        yield text, style
        if column < last:
            yield (_COLUMN_GAP if column in table.right else padding + _COLUMN_GAP), ""


def shorten(text: str, width: int) -> str:
    """Return `text` shortened to at most `width` cells; if shortened, it ends with an ellipsis."""
    if cells(text) <= width:
        return text
    count, used = 0, 1
    while count < len(text) and used + _cell(text[count]) <= width:
        used += _cell(text[count])
        count += 1
    return text[:count].rstrip() + "…"


def is_visible(text: str) -> bool:
    """Return whether a terminal shows any character of a text as more than blank space."""
    return any(category(char)[0] not in "ZC" and char not in _BLANK_LETTERS for char in text)


def one_line(text: str, width: int = 200) -> str:
    """Return `text` as one line of at most `width` cells."""
    return shorten(" ".join(text.split()), width)


def cells(text: str) -> int:
    """Return the number of terminal cells of a text. A wide character takes 2 cells, a combining character none."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(char: str) -> int:
    # Combining and format characters are drawn in the cell of the preceding character.
    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def harmless(text: str) -> str:
    """Return `text` with control characters replaced, because they could move the cursor or hide text.

    Tabs and newlines remain.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in _ALLOWED_CONTROLS or category(char) not in ("Cc", "Cf") else "\ufffd" for char in text
    )


def escape_controls(text: str) -> str:
    r"""Return `text` with control characters escaped, for example as `\x1b`.

    For pipes and files: nothing is lost, and a terminal may safely show the content later.
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
    """Return a line with control characters replaced."""
    return replace(source_line, spans=tuple((harmless(text), style) for text, style in source_line.spans))
