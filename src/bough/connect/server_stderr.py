"""Standard error of MCP servers: captured, masked and logged. None of it is written to a terminal unescaped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from bough.execution.process.capture import Pipe

_LOG: Final = logging.getLogger("bough.connect")

LIMIT_BYTES: Final = 32 << 10
"""How much of a server's standard error is saved: half from its beginning, half from its end."""

MAX_LINE: Final = 500
"""Lines with more characters are cut."""

MIN_HIDDEN: Final = 8
"""Shorter values are not masked: they may be words such as `true`, which would then be masked everywhere."""


class ServerStderr:
    """Captures the standard error of one server. Create it in the event loop that starts the server.

    Args:
        name: The server's name, for the log.
        mask: Returns a text with its secrets masked.
    """

    def __init__(self, name: str, mask: Callable[[str], str]) -> None:
        self._name = name
        self._mask = mask
        self._pipe = Pipe(LIMIT_BYTES)
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor to pass to the server as its standard error."""
        return self._pipe.write_fd

    def lines(self) -> list[str]:
        """Return the lines so far, with secrets masked and control characters escaped."""
        self._pipe.drain()
        # Masked first: a secret that is cut or escaped would no longer be recognized.
        text = self._mask(self._pipe.captured.value().decode("utf-8", "replace"))
        return [escape(line)[:MAX_LINE] for line in text.splitlines() if line.strip()]

    def close(self) -> None:
        """Log the lines and stop reading. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # Logged before the pipe is closed: what the server wrote last is still in it.
        for line in self.lines():
            _LOG.info("MCP server %s: %s", self._name, line, extra={"server": self._name})
        self._pipe.close()


def escape(text: str) -> str:
    r"""Return `text` with every unprintable character as an escape sequence, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def hide_values(env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces the values of environment variables by their names."""
    # A value may contain another one: replacing the shorter one first would leave the rest of the longer one readable.
    longest_first = sorted(env.items(), key=lambda pair: -len(pair[1]))

    def hide(text: str) -> str:
        for name, value in longest_first:
            if len(value) >= MIN_HIDDEN:
                text = text.replace(value, f"<secret:{name}>")
        return text

    return hide
