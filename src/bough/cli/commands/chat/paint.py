"""Render lines, Markdown and diffs as ANSI text of a given width, in colours readable on any background."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Sequence
from typing import ClassVar

from pygments.token import Comment, Generic, Keyword, Name, String, Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from bough.cli.render.rich import STYLES
from bough.cli.text import Block, Line, cells, harmless, harmless_line, layout, line

PROSE_COLUMNS = 100
"""Longer lines are hard to read, so prose is wrapped here on wider terminals."""

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CODE = ANSISyntaxTheme(
    {
        Token: Style(),
        Comment: Style(dim=True),
        Keyword: Style(bold=True),
        Name.Tag: Style(bold=True),
        String: Style(color="magenta"),
        Generic.Deleted: Style(color="red"),
        Generic.Inserted: Style(bold=True),
        Generic.Subheading: Style(color="magenta"),
    }
)
_THEME = Theme(
    {
        "markdown.code": "magenta",
        "markdown.code_block": "none",
        "markdown.block_quote": "dim",
        "markdown.h1": "bold underline",
        "markdown.h1.border": "none",
        **{f"markdown.h{level}": "bold" for level in range(2, 8)},
        "markdown.hr": "dim",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.list": "none",
        "markdown.link": "magenta",
        "markdown.link_url": "magenta underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "left")


class _PlainCodeBlock(CodeBlock):
    """Code without a background, because a background of a theme hides text on some terminals."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=_CODE, word_wrap=True, background_color="default", padding=(0, 2))


class _AnswerMarkdown(Markdown):
    """Markdown whose line breaks are kept, because models write lines as they should be read."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
    }


class Painter:
    """Renders to ANSI text that ends with a line break.

    Args:
        has_colours: Whether to write colours and other attributes.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours

    def blocks(self, blocks: Sequence[Block], width: int) -> str:
        """Return lines and tables, laid out to the width."""
        rows = [harmless_line(row) for block in blocks for row in layout(block, width)]
        return self._render(Text("\n").join(_make_text(row) for row in rows), width, soft_wrap=True) if rows else ""

    def markdown(self, text: str, width: int) -> str:
        """Return rendered Markdown, at most 100 columns wide; empty if nothing would be visible."""
        if not text.strip():
            return ""
        columns = min(width, PROSE_COLUMNS)
        painted = self._render(_AnswerMarkdown(harmless(text)), columns)
        # Rich fills lines with spaces up to the width, which a narrower terminal would wrap; tables have empty lines.
        rows = [row.rstrip() if _ESCAPE.sub("", row).strip() else "" for row in painted.splitlines()]
        return "".join(f"{row}\n" for i, row in enumerate(rows) if row or rows[i - 1 : i] != [""])

    def _render(self, renderable: RenderableType, width: int, *, soft_wrap: bool = False) -> str:
        file = io.StringIO()
        console = Console(
            file=file,
            width=max(width, 1),
            force_terminal=self._has_colours,
            color_system="standard" if self._has_colours else None,
            no_color=not self._has_colours,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            theme=_THEME,
        )
        console.print(renderable, soft_wrap=soft_wrap)
        return file.getvalue()


def diff_lines(before: str, after: str, *, context: int = 2, max_lines: int | None = None) -> list[Line]:
    """Return the lines of a unified diff of two texts, without file names.

    Args:
        max_lines: Show at most this many; a last line counts the rest.
    """
    rows = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=context, lineterm=""))[2:]
    visible_rows = rows if max_lines is None or len(rows) <= max_lines + 1 else rows[:max_lines]
    lines = [_diff_line(row) for row in visible_rows]
    if len(visible_rows) < len(rows):
        lines.append(line((f"    … {len(rows) - len(visible_rows)} more lines", "dim")))
    return lines


def _diff_line(row: str) -> Line:
    match row[:1]:
        case "+":
            return line("    ", (row, "strong"), hang=5)
        case "-":
            return line("    ", (row, "bad"), hang=5)
        case _:
            return line("    ", (row, "dim"), hang=5)


def fit(row: str, width: int) -> list[str]:
    """Return a plain line as rows of at most `width` cells."""
    rows, used = [""], 0
    for char in row:
        size = cells(char)
        if used + size > width:
            rows.append("")
            used = 0
        rows[-1] += char
        used += size
    return rows


def _make_text(row: Line) -> Text:
    return Text.assemble(*((text, STYLES[style]) for text, style in row.spans))
