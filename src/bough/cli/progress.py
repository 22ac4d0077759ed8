"""Progress of long commands on stderr, once a second. Commands of less than a second show none."""

from __future__ import annotations

from time import monotonic
from typing import IO, cast

from bough.cli.render import Renderer
from bough.cli.text import line

_INTERVAL_SECONDS = 1.0


class Progress:
    """Shows how many items have been processed.

    Args:
        noun: The items, for example `events`.
        interval_seconds: Time before the first line, and between two lines.
    """

    def __init__(self, renderer: Renderer, noun: str, *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._renderer = renderer
        self._noun = noun
        self._interval_seconds = interval_seconds
        self._last_shown = monotonic()

    def __call__(self, done: int, of: int | None = None) -> None:
        """Report the number of processed items, and their total if known."""
        current_time = monotonic()
        if current_time - self._last_shown >= self._interval_seconds:
            self._last_shown = current_time
            total = "" if of is None else f" of {of}"
            self._renderer.note(line((f"{done}{total} {self._noun}", "dim")))


class CountedFile:
    """A file of lines that counts the lines written or read."""

    def __init__(self, file: IO[bytes], progress: Progress, of: int | None = None) -> None:
        self._file = file
        self._progress = progress
        self._of = of
        self._lines = 0

    @property
    def as_file(self) -> IO[bytes]:
        """This object, for functions that only write or only read lines."""
        return cast("IO[bytes]", self)

    def write(self, data: bytes) -> int:
        """Write a line."""
        self._count()
        return self._file.write(data)

    def readline(self, limit: int = -1) -> bytes:
        """Return the next line."""
        self._count()
        return self._file.readline(limit)

    def _count(self) -> None:
        self._lines += 1
        # The count of lines may exceed the number of events, because some lines of a bundle are not events.
        self._progress(self._lines if self._of is None else min(self._lines, self._of), self._of)
