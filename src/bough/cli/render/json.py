"""JSON on stdout for programs. Writes nothing else to stdout, and nothing to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import TextIO

from bough.cli.render.base import SCHEMA_VERSION, Report, show_nothing
from bough.cli.text import Line
from bough.errors import BoughError
from bough.types import Json, escape_json_controls


class JsonRenderer:
    """Writes one JSON value per line: the envelope of a command, or the records of a stream.

    Args:
        command: The command that an error's envelope names.
    """

    def __init__(self, out: TextIO, command: str = "bough") -> None:
        self._out = out
        self._command = command

    def report(self, report: Report) -> None:
        """Write the envelope: schema version, command, data, next."""
        self.record(_envelope(report.command, report.data, report.next))

    def listing(self, command: str, name: str, items: Iterable[Json]) -> None:
        """Write the envelope of a command whose data is a list. The list is streamed, because it may be long.

        Nothing is written if the first item raises.
        """
        start, end = _dump(_envelope(command, {name: []}, ())).split("[]", 1)
        remaining_items = iter(items)
        # The first item is created before anything is written, so that its error is the only line on stdout.
        first_items = [_dump(item) for item in islice(remaining_items, 1)]
        self._out.write("".join([start, "[", *first_items]))
        for item in remaining_items:
            self._out.write(", " + _dump(item))
        self._out.write("]" + end + "\n")
        self._out.flush()

    def error(self, error: BoughError) -> None:
        """Write the envelope with `error` (code, message, hint, and details if there are any) in place of `data`."""
        self.record(
            {
                "schema_version": SCHEMA_VERSION,
                "command": self._command,
                "error": {"hint": "", **error.as_dict()},
                "next": [],
            }
        )

    def record(self, value: Json) -> None:
        """Write one line of a stream."""
        self._out.write(_dump(value) + "\n")
        self._out.flush()

    def note(self, line: Line) -> None:
        """Write nothing: programs do not read progress."""

    def prompt(self, text: str) -> None:
        """Write nothing: programs are not asked questions."""

    def result(self, line: Line) -> None:
        """Write nothing: the data is in the envelope."""

    def text(self, text: str) -> None:
        """Write nothing: the text is in the record of the result."""

    @contextmanager
    def busy(self, text: str) -> Generator[Callable[[str], None]]:
        """Show nothing."""
        yield show_nothing


def _envelope(command: str, data: Json, next: tuple[str, ...]) -> Json:
    return {"schema_version": SCHEMA_VERSION, "command": command, "data": data, "next": list(next)}


def _dump(value: Json) -> str:
    return escape_json_controls(json.dumps(value, ensure_ascii=False, default=str))
