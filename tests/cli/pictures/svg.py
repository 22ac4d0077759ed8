"""A screen as an SVG picture of text that follows the reader's choice of light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from pyte.screens import Char

_WIDTH, _HEIGHT, _MARGIN = 8.4, 18, 14
_STYLE = """
svg { --back: #ffffff; --fore: #24292f; --faint: #656d76; --red: #b3261e; --magenta: #8a3ffc; --border: #d0d7de }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --fore: #e6edf3; --faint: #8b949e; --red: #ff7b72; --magenta: #d2a8ff; --border: #30363d }
}
rect { fill: var(--back); stroke: var(--border) }
text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--fore); white-space: pre }
.b { font-weight: 700 } .f { fill: var(--faint) } .r { fill: var(--red) } .m { fill: var(--magenta) }
.i { font-style: italic } .u { text-decoration: underline } .k { fill: var(--fore) }
.bar { fill: var(--fore); stroke: none } .v { fill: var(--back) }
"""


class _Run(NamedTuple):
    """Characters of one style, from a column on."""

    column: int
    text: str
    style: str


def draw(rows: Sequence[Mapping[int, Char]], columns: int, *, title: str, command: str = "") -> str:
    """Return an SVG picture of the rows, without empty rows at the end.

    Args:
        title: Says what the picture shows, for those who cannot see it.
        command: Stands above the rows, after a `$`.
    """
    lines = [list(_split_runs(row, columns)) for row in rows]
    while lines and not any(run.text.strip() for run in lines[-1]):
        lines.pop()
    if command:
        lines.insert(0, [_Run(0, "$", "f"), _Run(2, command, "b")])
    width, height = columns * _WIDTH + 2 * _MARGIN, len(lines) * _HEIGHT + 2 * _MARGIN
    body = "".join(_draw_line(number, runs) for number, runs in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1f} {height}" width="{width:.1f}" '
        f'height="{height}" role="img"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect x=".5" y=".5" width="{width - 1:.1f}" height="{height - 1}" rx="8"/>{body}</svg>\n'
    )


def _draw_line(number: int, runs: Iterable[_Run]) -> str:
    top = _MARGIN + number * _HEIGHT
    parts: list[str] = []
    for run in runs:
        left, length = _MARGIN + run.column * _WIDTH, len(run.text) * _WIDTH
        if "v" in run.style.split():
            parts.append(f'<rect class="bar" x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_HEIGHT}"/>')
        elif not run.text.strip():
            continue
        # The length keeps columns straight in every font.
        style = f' class="{run.style}"' if run.style else ""
        parts.append(
            f'<text{style} x="{left:.1f}" y="{top + 13}" textLength="{length:.1f}" xml:space="preserve">'
            f"{escape(run.text)}</text>"
        )
    return "".join(parts)


def _split_runs(row: Mapping[int, Char], columns: int) -> Iterable[_Run]:
    """Yield the runs of a row; blanks at the edges of unmarked text are left out."""
    blank = Char(" ")
    characters = [(column, row.get(column, blank)) for column in range(columns)]
    for style, group in groupby(characters, key=lambda item: _choose_style(item[1])):
        members = list(group)
        text = "".join(character.data for _, character in members)
        if "v" in style.split() or "u" in style.split():
            yield _Run(members[0][0], text, style)
            continue
        stripped = text.strip(" ")
        if stripped:
            yield _Run(members[0][0] + len(text) - len(text.lstrip(" ")), stripped, style)


def _choose_style(character: Char) -> str:
    flags = {
        "b": character.bold,
        "f": character.blink,
        "r": character.fg == "red",
        "m": character.fg == "magenta",
        "i": character.italics,
        "u": character.underscore,
        "v": character.reverse,
    }
    return " ".join(name for name, is_set in flags.items() if is_set)
