"""Chats on a terminal with a screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.chat.terminal import Terminal

BOUGH = Path(sys.executable).with_name("bough")


@pytest.fixture
def open_chat() -> Iterator[Callable[..., Terminal]]:
    """Start `bough chat` of a `Cli` on a terminal, type `early` at once, and wait until it takes input."""
    with ExitStack() as terminals:

        def start(
            cli: Any,
            *args: str,
            columns: int = 80,
            rows: int = 24,
            ready: str = "> ",
            early: str = "",
            **environment: str,
        ) -> Terminal:
            env = {"EDITOR": "", "VISUAL": "", "NO_COLOR": "", **environment}
            argv = [str(BOUGH), "chat", *args]
            terminal = Terminal(argv, cwd=cli.folder, env=cli.env(**env), columns=columns, rows=rows)
            terminals.enter_context(terminal)
            terminal.send(early)
            terminal.wait(lambda shown: shown.has_row(ready))
            return terminal

        yield start
