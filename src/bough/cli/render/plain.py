"""Text without colours, for pipes, files and terminals without colours."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from bough.cli.render.base import Report, show_nothing
from bough.cli.text import Line, escape_controls, harmless, harmless_line, layout, line
from bough.errors import BoughError
from bough.types import Json


class PlainRenderer:
    """Writes lines. On a terminal, tables fit its width, and control characters are replaced.

    In a pipe or file, nothing is shortened, and control characters are escaped.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._width = _width(out) if out.isatty() else None

    def report(self, report: Report) -> None:
        """Write the blocks to stdout and, if stdout is a terminal, the next commands to stderr."""
        for block in report.blocks:
            for output_line in layout(block, self._width):
                self.result(output_line)
        if report.next and self._out.isatty():
            self.note(line(("next: " + "  or  ".join(report.next), "dim")))

    def error(self, error: BoughError) -> None:
        """Write an error and its hint to stderr."""
        self.note(line(("error: ", "bad"), error.message, hang=7))
        if error.hint:
            self.note(line(("hint: ", "strong"), error.hint, hang=6))

    def note(self, line: Line) -> None:
        """Write a line to stderr."""
        self._write(self._err, line)

    def prompt(self, text: str) -> None:
        """Write the text to stderr, without a line break."""
        self._err.write(text)
        self._err.flush()

    def result(self, line: Line) -> None:
        """Write a line to stdout."""
        self._write(self._out, line)

    def text(self, text: str) -> None:
        """Write the text to stdout and flush."""
        self._out.write(harmless(text) if self._out.isatty() else escape_controls(text))
        self._out.flush()

    def record(self, value: Json) -> None:
        """Write nothing: records are for programs."""

    @contextmanager
    def busy(self, text: str) -> Generator[Callable[[str], None]]:
        """Show nothing: a spinner needs a terminal with colours."""
        yield show_nothing

    def _write(self, stream: TextIO, line: Line) -> None:
        if not stream.isatty():
            # Escaped, so that nothing is lost and a terminal may safely show the file.
            stream.write(escape_controls(line.plain.rstrip()) + "\n")
        else:
            for part in layout(harmless_line(line), _width(stream)):
                self._write_on_terminal(stream, part)
        stream.flush()

    def _write_on_terminal(self, stream: TextIO, line: Line) -> None:
        stream.write(line.plain.rstrip() + "\n")


def _width(terminal: TextIO) -> int:
    """Return the number of columns of a terminal; 80 if it reports none."""
    # A pseudo-terminal that no program has sized, as in some CI systems, reports 0 columns.
    return os.get_terminal_size(terminal.fileno()).columns or 80
