"""Keys and lines: the Escape key while something runs, and a line that answers a question."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

ESCAPE = b"\x1b"


@contextmanager
def escape_pressed(do: Callable[[], None]) -> Generator[None]:
    """Call `do` in the running event loop when Escape is pressed in the block; nothing where stdin is not a terminal.

    Arrow and function keys begin with the same byte and are told apart by what follows it.
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
        if os.read(fd, 64) == ESCAPE:
            do()

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def lines_typed() -> Generator[None]:
    """Have the terminal give whole lines, shown as they are typed; what was typed before is forgotten."""
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    attributes = [*before]
    attributes[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)  # discards what was typed: nobody had seen the question
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
