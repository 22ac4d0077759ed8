"""Terminal input: the Escape key during a run, and a typed line that answers a question."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

ESCAPE = b"\x1b"


@contextmanager
def escape_pressed(do: Callable[[], None]) -> Generator[None]:
    """Call `do` in the running event loop when Escape is pressed in the block. Does nothing without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # Arrow and function keys send the byte of Escape and more bytes, which arrive together.
        if os.read(fd, 64) == ESCAPE:
            do()

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:  # also after an error, because a terminal in this mode does not show typed text
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def lines_typed() -> Generator[None]:
    """Make the terminal deliver whole lines and echo them. Input typed before the block is discarded."""
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    attributes = [*before]
    attributes[3] |= termios.ICANON | termios.ECHO
    # TCSAFLUSH discards pending input, because text typed before the question was shown does not answer it.
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
