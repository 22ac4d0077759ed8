"""Terminal input: the Escape key during a run, and a typed line as an answer."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

ESCAPE = b"\x1b"


@contextmanager
def escape_pressed(do: Callable[[], None]) -> Generator[None]:
    """Call `do` in the running event loop when Escape is pressed in the block; do nothing if stdin is not a terminal.

    Arrow and function keys begin with the same byte; bytes that follow it tell them apart.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # The bytes of one key arrive together. Reading one byte at a time would take an arrow key for Escape.
        if os.read(fd, 64) == ESCAPE:
            do()

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:  # also after an error: a terminal left in this mode shows nothing that is typed
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
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)  # typed before the question was shown: not its answer
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
