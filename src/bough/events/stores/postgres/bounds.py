"""Time limits of the Postgres store, and the watchdog that ends calls without an answer."""

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
"""How long a server may take to answer. Its own statement timeout is the same."""

CALL_SECONDS = 15.0
"""How long a call of the store may take, including one repetition."""

PATIENT_SECONDS = 120.0
"""The limit for calls that read or delete whole logs, or read every conversation."""


@dataclass(eq=False)
class BoundedWait:
    """A wait for an answer on a connection.

    Attributes:
        ends: The deadline by the monotonic clock.
        expired: Whether the deadline passed and the socket was shut down.
    """

    db: Connection[Any]
    ends: float
    expired: bool = False


class Watchdog:
    """A thread that shuts down the socket of a connection that does not answer in time.

    The server's own timeouts, keepalives and `tcp_user_timeout` end most waits. None of them helps against a proxy that
    acknowledges every byte and never answers.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: list[BoundedWait] = []
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._stopped = False

    @contextmanager
    def watch(self, db: Connection[Any], seconds: float) -> Generator[BoundedWait]:
        """Bound the waits of a block on a connection to `seconds`. Costs taking a lock twice."""
        watched = BoundedWait(db, monotonic() + seconds)
        with self._condition:
            self._watched.append(watched)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="bough-watchdog", daemon=True)
                self._thread.start()
            elif watched.ends < self._wakes:  # else the thread wakes early enough anyway
                self._condition.notify()
        try:
            yield watched
        finally:
            with self._condition:
                self._watched.remove(watched)

    def stop(self) -> None:
        """End the thread. Idempotent; callable from any thread. Running waits are no longer bounded."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while not self._stopped:
                started = monotonic()
                for watched in self._watched:
                    if not watched.expired and watched.ends <= started:
                        watched.expired = True
                        _shut_down(
                            watched.db
                        )  # under the lock, so that the wait cannot end and the connection be reused meanwhile
                waiting = [watched.ends for watched in self._watched if not watched.expired]
                self._wakes = min(waiting, default=started + PATIENT_SECONDS)
                self._condition.wait(self._wakes - started)


def _shut_down(db: Connection[Any]) -> None:
    """End all waits on a connection's socket at once: libpq reports that the server closed it."""
    with suppress(OSError, Error), socket.socket(fileno=os.dup(db.pgconn.socket)) as connected:
        connected.shutdown(socket.SHUT_RDWR)
