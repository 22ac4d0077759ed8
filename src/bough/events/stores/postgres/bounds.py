"""Time limits of the Postgres store, and the watchdog that ends calls without a response."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from psycopg import Connection, Error

CONNECT_SECONDS = 5.0
"""How long connecting, or waiting for a free connection, may take."""

ANSWER_SECONDS = 10.0
"""How long the server may take to respond. Its own statement timeout is the same."""

CALL_SECONDS = 15.0
"""How long a call of the store may take, including one repetition."""

LONG_CALL_SECONDS = 120.0
"""The limit for calls that read or delete whole logs, or read every conversation."""


@dataclass(eq=False)
class WatchedCall:
    """A call over a connection that must be answered before a deadline.

    Attributes:
        deadline: By the monotonic clock, in seconds.
        expired: Whether the deadline passed and the socket was shut down.
    """

    db: Connection[Any]
    deadline: float
    expired: bool = False


class Watchdog:
    """A thread that shuts down the socket of a connection that does not answer in time.

    The server's own timeouts, keepalives and `tcp_user_timeout` end most waits. None of them helps against a proxy that
    acknowledges every byte and never answers.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: list[WatchedCall] = []
        self._thread: threading.Thread | None = None
        self._next_wake = 0.0
        self._stopped = False

    @contextmanager
    def watch(self, db: Connection[Any], seconds: float) -> Generator[WatchedCall]:
        """End the connection's calls in the block after `seconds`. Costs taking a lock twice."""
        watched = WatchedCall(db, monotonic() + seconds)
        with self._condition:
            self._watched.append(watched)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="bough-watchdog", daemon=True)
                self._thread.start()
            elif watched.deadline < self._next_wake:  # otherwise the thread wakes early enough
                self._condition.notify()
        try:
            yield watched
        finally:
            with self._condition:
                self._watched.remove(watched)

    def stop(self) -> None:
        """End the thread. Idempotent; callable from any thread. Running calls are no longer ended."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while not self._stopped:
                started = monotonic()
                for watched in self._watched:
                    if not watched.expired and watched.deadline <= started:
                        watched.expired = True
                        # Under the lock: otherwise the call could end and its connection be reused before this.
                        _shut_down(watched.db)
                deadlines = [watched.deadline for watched in self._watched if not watched.expired]
                self._next_wake = min(deadlines, default=started + LONG_CALL_SECONDS)
                self._condition.wait(self._next_wake - started)


def _shut_down(db: Connection[Any]) -> None:
    """End all waits on a connection's socket at once: libpq reports that the server closed it."""
    with suppress(OSError, Error), socket.socket(fileno=os.dup(db.pgconn.socket)) as connected:
        connected.shutdown(socket.SHUT_RDWR)
