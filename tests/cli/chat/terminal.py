"""A terminal with a screen: `bough` runs in a pseudo-terminal, pyte draws what it writes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte

_WAIT_SECONDS = 60


class Screen(pyte.HistoryScreen):
    """A screen with everything that scrolled away, on which faint text has the attribute `blink`: pyte has no other."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, history=10_000, ratio=0.5)

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        """Set the attributes of the characters that follow; 2 is faint, and 22 ends it."""
        marked = [other for one in attributes for other in {2: (5,), 22: (22, 25)}.get(one, (one,))]
        super().select_graphic_rendition(*marked, **options)


class Terminal:
    """A process on a terminal of its own.

    Attributes:
        written: Every byte that the process wrote.
    """

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        self.written: bytes = b""
        self._screen = Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        environment = {**env, "TERM": env.get("TERM", "xterm-256color"), "LANG": "C.UTF-8", "COLUMNS": "", "LINES": ""}
        self.process: Any = pexpect.spawn(
            argv[0], [*argv[1:]], cwd=str(cwd), env=environment, dimensions=(rows, columns), timeout=_WAIT_SECONDS
        )
        self.process.delaybeforesend = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close(force=True)

    def send(self, keys: str | bytes) -> None:
        """Press keys."""
        data = keys.encode() if isinstance(keys, str) else keys
        while data:
            count = os.write(self.process.child_fd, data[:1024])
            data = data[count:]

    def paste(self, text: str) -> None:
        """Paste a text as terminals do that mark it."""
        self.send(b"\x1b[200~" + text.replace("\n", "\r").encode() + b"\x1b[201~")

    def resize(self, columns: int, rows: int = 24) -> None:
        """Change the size of the window."""
        self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    @property
    def rows(self) -> list[str]:
        """The rows that are visible."""
        return [row.rstrip() for row in self._screen.display]

    def has_row(self, start: str) -> bool:
        """Whether a visible row begins with a text."""
        return any(row.startswith(start) for row in self._screen.display)

    @property
    def scrollback(self) -> list[str]:
        """The rows that scrolled away, and those that are visible."""
        gone: list[str] = []
        for row in self._screen.history.top:
            last = max(row.keys(), default=-1)
            gone.append("".join(row[column].data for column in range(last + 1)).rstrip())
        return gone + self.rows

    @property
    def cells(self) -> list[dict[int, pyte.screens.Char]]:
        """The characters of the rows that scrolled away, and of those that are visible, by column."""
        visible = (self._screen.buffer[row] for row in range(self._screen.lines))
        return [dict(row) for row in (*self._screen.history.top, *visible)]

    @property
    def text(self) -> str:
        """Everything on the screen and above it."""
        return "\n".join(self.scrollback)

    @property
    def cell_colours(self) -> set[tuple[str, str]]:
        """Foreground and background of every visible character."""
        return {
            (cell.fg, cell.bg) for row in self._screen.buffer.values() for cell in row.values() if cell.data.strip()
        }

    def wait(self, wanted: str | Path | Callable[[Terminal], Any]) -> None:
        """Read until a text is on the screen or above it, a file exists, or a condition is true.

        Raises:
            AssertionError: The process ended, or nothing came for a minute.
        """
        give_up = (
            time.monotonic() + _WAIT_SECONDS
        )  # the status line is drawn every second, so that reads never time out
        while not self._has(wanted):
            assert time.monotonic() < give_up, f"no {wanted!r}:\n{self.text}"
            try:
                self._read()
            except pexpect.EOF:
                raise AssertionError(f"ended before {wanted!r}:\n{self.text}") from None
            except pexpect.TIMEOUT:
                raise AssertionError(f"no {wanted!r}:\n{self.text}") from None

    def end(self) -> int:
        """Read to the end of the process and return its exit code; of a signal 128 and its number."""
        with contextlib.suppress(pexpect.EOF):
            while True:
                self._read()
        self.process.wait()
        return self.process.exitstatus if self.process.signalstatus is None else 128 + self.process.signalstatus

    def _has(self, wanted: str | Path | Callable[[Terminal], Any]) -> bool:
        if isinstance(wanted, Path):
            return wanted.exists()
        return wanted in self.text if isinstance(wanted, str) else bool(wanted(self))

    def _read(self) -> None:
        # A file has no bytes to wait for: the status line is drawn every second, which ends this read.
        data: bytes = self.process.read_nonblocking(65536, timeout=_WAIT_SECONDS)
        self.written += data
        self._stream.feed(data)
