"""Taking turns between processes.

SQLite's own lock goes to the process that asks first after a release, mostly the process that has just released it; one
that waits would starve beside a busy one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from pathlib import Path

from bough.errors import StoreError

_NEXT, _TURN = 0, 1
_POLL_SECONDS = 0.0002
_PATIENCE_SECONDS = 30.0


class Turnstile:
    """One process writes, one is next. Who has just written queues behind the one that waits.

    It is about fairness alone: SQLite's lock keeps writers apart. So a process that hangs in its turn is passed
    after a while, and the locks, which belong to a small file beside the store, vanish with their process.
    """

    def __init__(self, path: Path) -> None:
        """Open the file beside the store.

        Raises:
            StoreError: It cannot be made or opened.
        """
        file = path.with_name(f"{path.name}-turn")
        try:
            self._fd = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot open {file}: {error.strerror}", hint="fix the permissions of the store's folder"
            ) from error

    @contextmanager
    def take_turn(self) -> Generator[None]:
        """Wait for the turn, and pass it on afterwards."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        is_next = self._lock(_NEXT, deadline)
        has_turn = self._lock(_TURN, deadline)
        if is_next:
            lockf(self._fd, LOCK_UN, 1, _NEXT)
        try:
            yield
        finally:
            if has_turn:
                lockf(self._fd, LOCK_UN, 1, _TURN)

    def close(self) -> None:
        """Give up everything."""
        os.close(self._fd)

    def _lock(self, byte: int, deadline: float) -> bool:
        while True:
            try:
                lockf(self._fd, LOCK_EX | LOCK_NB, 1, byte)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
            else:
                return True
