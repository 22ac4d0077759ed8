"""The contract of a renderer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TextIO

from bough.cli.text import Block, Line
from bough.errors import BoughError
from bough.types import Json

SCHEMA_VERSION = 1
"""Of the JSON that `--json` prints; raised when a field changes its meaning or goes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a command found out.

    Attributes:
        command: For example `conv list`.
        data: The result for programs.
        blocks: The same for people.
        next: Commands that may come next.
        exit_code: Not 0 where the result is bad news.
    """

    command: str
    data: Json
    blocks: Sequence[Block] = ()
    next: tuple[str, ...] = ()
    exit_code: int = 0


class Renderer(Protocol):
    """Shows things. Results go to stdout, everything else to stderr."""

    def report(self, report: Report) -> None:
        """Show the result of a command."""
        ...

    def error(self, error: BoughError) -> None:
        """Show why a command failed."""
        ...

    def note(self, line: Line) -> None:
        """Show progress."""
        ...

    def prompt(self, text: str) -> None:
        """Ask for a line, which is typed after it."""
        ...

    def result(self, line: Line) -> None:
        """Show one line of a result that comes bit by bit."""
        ...

    def text(self, text: str) -> None:
        """Write a piece of a result as it is, without a new line after it."""
        ...

    def record(self, value: Json) -> None:
        """Write one record of a result that comes bit by bit, for programs."""
        ...

    def busy(self, text: str) -> AbstractContextManager[None]:
        """Show, for the length of a `with` block, that something is in progress."""
        ...


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that may be painted on."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
