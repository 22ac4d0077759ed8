"""How far a command is that takes longer than a moment: on stderr, once a second, and nothing of short ones."""

from __future__ import annotations

from time import monotonic
from typing import IO, cast

from bough.cli.render import Renderer
from bough.cli.text import line

_INTERVAL_SECONDS = 1.0


class Progress:
    """Says how many of what have been done.

    Args:
        renderer: Shows it.
        what: What is counted.
        interval_seconds: Time between two lines, and before the first.
    """

    def __init__(self, renderer: Renderer, noun: str, *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._renderer = renderer
        self._what = noun
        self._interval_seconds = interval_seconds
        self._told_seconds = monotonic()

    def __call__(self, done: int, of: int | None = None) -> None:
        """Take in how many have been done, and how many there are where that is known."""
        if (now := monotonic()) - self._told_seconds >= self._interval_seconds:
            self._told_seconds = now
            total = "" if of is None else f" of {of}"
            self._renderer.note(line((f"{done}{total} {self._what}", "dim")))


class CountedFile:
    """A file of lines, of which those that are written or read are counted as they pass."""

    def __init__(self, file: IO[bytes], progress: Progress, of: int | None = None) -> None:
        self._file = file
        self._progress = progress
        self._of = of
        self._lines = 0

    @property
    def as_file(self) -> IO[bytes]:
        """This, for what takes a file and does no more with it than that."""
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
        self._progress(self._lines if self._of is None else min(self._lines, self._of), self._of)
