"""Colours on a terminal: only those readable on light and dark backgrounds, and only where they carry meaning."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

from bough.cli.render.base import show_nothing, wants_colour
from bough.cli.render.plain import PlainRenderer
from bough.cli.text import Line, Style

STYLES: Mapping[Style, str] = {
    "": "",
    "strong": "bold",
    "dim": "dim",
    "good": "",
    "warn": "bold magenta",
    "bad": "bold red",
    "id": "magenta",
}
"""Of a terminal's 8 colours, only red and magenta have a contrast of 3:1 or more on both black and white (xterm's
palette; yellow, cyan and green have 1.7:1 to 2.2:1 on white, blue 2.2:1 on black). So `good` has no colour."""


class RichRenderer(PlainRenderer):
    """Adds colours to the plain renderer's output on each stream that is a terminal."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        super().__init__(out, err)
        self._consoles = {id(stream): _console(stream) for stream in (out, err) if wants_colour(stream)}

    @contextmanager
    def busy(self, text: str) -> Generator[Callable[[str], None]]:
        """Show a spinner on stderr until the block ends."""
        console = self._consoles.get(id(self._err))
        if console is None:
            yield show_nothing
            return
        with console.status(Text(text, "dim"), spinner="dots", spinner_style="dim") as status:
            yield lambda text: status.update(Text(text, "dim"))

    def _write_on_terminal(self, stream: TextIO, line: Line) -> None:
        console = self._consoles.get(id(stream))
        if console is None:
            super()._write_on_terminal(stream, line)
            return
        # `soft_wrap` disables Rich's line breaks, because the line is already laid out.
        console.print(Text.assemble(*((text, STYLES[style]) for text, style in line.spans)), soft_wrap=True)


def _console(stream: TextIO) -> Console:
    # `markup=False` prints "[bold]" in a title or an answer literally.
    return Console(file=stream, highlight=False, markup=False, emoji=False)
