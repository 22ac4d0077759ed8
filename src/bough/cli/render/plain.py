"""Text without colour, for pipes, files and terminals that do not want any."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from bough.cli.render.base import Report
from bough.cli.text import Line, escape_controls, harmless, harmless_line, layout, line
from bough.errors import BoughError
from bough.types import Json


class PlainRenderer:
    """Writes lines. On a terminal tables fit its width and control characters are left out.

    In a pipe nothing is left out, and control characters are escaped.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._width = _width(out) if out.isatty() else None

    def report(self, report: Report) -> None:
        """Write the blocks to stdout; where they are read by a person, what may come next to stderr."""
        for block in report.blocks:
            for output_line in layout(block, self._width):
                self.result(output_line)
        if report.next and self._out.isatty():
            self.note(line(("next: " + "  or  ".join(report.next), "dim")))

    def error(self, error: BoughError) -> None:
        """Write what is wrong and how to fix it."""
        self.note(line(("error: ", "bad"), error.message, hang=7))
        if error.hint:
            self.note(line(("hint: ", "strong"), error.hint, hang=6))

    def note(self, line: Line) -> None:
        """Write a line to stderr."""
        self._write(self._err, line)

    def prompt(self, text: str) -> None:
        """Write to stderr, and stay on the line."""
        self._err.write(text)
        self._err.flush()

    def result(self, line: Line) -> None:
        """Write a line to stdout."""
        self._write(self._out, line)

    def text(self, text: str) -> None:
        """Write to stdout at once."""
        self._out.write(harmless(text) if self._out.isatty() else escape_controls(text))
        self._out.flush()

    def record(self, value: Json) -> None:
        """Nothing: people read lines."""

    @contextmanager
    def busy(self, text: str) -> Generator[None]:
        """Show nothing: there is nobody to watch."""
        yield

    def _write(self, stream: TextIO, line: Line) -> None:
        if not stream.isatty():
            stream.write(escape_controls(line.plain.rstrip()) + "\n")
        else:
            for part in layout(harmless_line(line), _width(stream)):
                self._write_on_terminal(stream, part)
        stream.flush()

    def _write_on_terminal(self, stream: TextIO, line: Line) -> None:
        stream.write(line.plain.rstrip() + "\n")


def _width(terminal: TextIO) -> int:
    """Return how many columns a terminal has; 80 for one that does not say."""
    return os.get_terminal_size(terminal.fileno()).columns or 80
