"""The protocol of a renderer, and the report that it shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TextIO

from bough.cli.text import Block, Line
from bough.errors import BoughError
from bough.types import Json

SCHEMA_VERSION = 1
"""Version of the JSON that `--json` prints; raised when a field changes its meaning or is removed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a command.

    Attributes:
        command: For example `conv list`.
        data: The result for programs.
        blocks: The result for people.
        next: Commands that a user may want to run next.
        exit_code: Not 0 if the result is negative without being an error, for example a difference.
    """

    command: str
    data: Json
    blocks: Sequence[Block] = ()
    next: tuple[str, ...] = ()
    exit_code: int = 0


class Renderer(Protocol):
    """Writes output: results to stdout, everything else to stderr."""

    def report(self, report: Report) -> None:
        """Show the result of a command."""
        ...

    def error(self, error: BoughError) -> None:
        """Show why a command failed."""
        ...

    def note(self, line: Line) -> None:
        """Show a line that is not a result: progress, a warning, or the subject of a question."""
        ...

    def prompt(self, text: str) -> None:
        """Show a question whose answer is typed on the same line."""
        ...

    def result(self, line: Line) -> None:
        """Show one line of a result that is streamed."""
        ...

    def text(self, text: str) -> None:
        """Write a piece of a streamed text, without a line break after it."""
        ...

    def record(self, value: Json) -> None:
        """Write one record of a streamed result, for programs."""
        ...

    def busy(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show that something is in progress until the `with` block ends. Yields a function that changes the text."""
        ...


def show_nothing(text: str) -> None:
    """Do nothing: where no spinner is shown, its text is not either."""


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, and the user has not disabled them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
