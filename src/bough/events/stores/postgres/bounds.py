"""How long a call of the Postgres store takes at most, and what ends one that nobody answers."""

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
"""How long a connection may take to come about, or to become free."""

ANSWER_SECONDS = 10.0
"""How long a server may take to answer; what it does itself it gives up by then."""

CALL_SECONDS = 15.0
"""How long a call of the store may take, its one repetition included."""

PATIENT_SECONDS = 120.0
"""The same for calls that read or remove whole logs, or look at every conversation."""


@dataclass(eq=False)
class BoundedWait:
    """A connection that somebody waits for.

    Attributes:
        ends: When the wait is over, by the monotonic clock.
        expired: Whether it was over, and its socket was shut down.
    """

    db: Connection[Any]
    ends: float
    expired: bool = False


class Watchdog:
    """A thread that shuts down the socket of a connection whose answer does not come in time.

    The bounds that the server keeps itself, keepalives and `tcp_user_timeout` end most waits. None of them ends one for
    something in between that acknowledges every byte and answers nothing, as a proxy does.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: list[BoundedWait] = []
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._stopped = False

    @contextmanager
    def watch(self, db: Connection[Any], seconds: float) -> Generator[BoundedWait]:
        """Let the block wait for a connection for so long. Costs two turns of a lock."""
        watched = BoundedWait(db, monotonic() + seconds)
        with self._condition:
            self._watched.append(watched)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="bough-watchdog", daemon=True)
                self._thread.start()
            elif watched.ends < self._wakes:
                self._condition.notify()
        try:
            yield watched
        finally:
            with self._condition:
                self._watched.remove(watched)

    def stop(self) -> None:
        """End the thread. Callable from any thread, more than once; whatever is waited for is waited for."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while not self._stopped:
                now = monotonic()
                for watched in self._watched:
                    if not watched.expired and watched.ends <= now:
                        watched.expired = True
                        _shut_down(watched.db)  # under the lock: the waiter cannot have continued meanwhile
                waiting = [watched.ends for watched in self._watched if not watched.expired]
                self._wakes = min(waiting, default=now + PATIENT_SECONDS)
                self._condition.wait(self._wakes - now)


def _shut_down(db: Connection[Any]) -> None:
    """End whatever waits for a connection's socket, at once: libpq finds that the server has gone."""
    with suppress(OSError, Error), socket.socket(fileno=os.dup(db.pgconn.socket)) as connected:
        connected.shutdown(socket.SHUT_RDWR)
