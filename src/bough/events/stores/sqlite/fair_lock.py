"""A fair lock between processes that write.

SQLite's own lock goes to the process that asks first after a release, mostly the one that has just released it, so that
a waiting process would starve next to a busy one.
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


class FairLock:
    """Lets one process write and another be next; a process that has just written queues behind the next one.

    Only for fairness: SQLite's lock excludes concurrent writers. So a process that hangs in its turn is skipped after a
    while. The locks are on a small file next to the store, and are released when their process ends.
    """

    def __init__(self, path: Path) -> None:
        """Open the lock file next to the store.

        Raises:
            StoreError: The file cannot be created or opened.
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
        """Wait for the turn, and release it after the block."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        is_next = self._lock(_NEXT, deadline)
        has_turn = self._lock(_TURN, deadline)
        # Only after the turn is taken: a process that left this place earlier could be overtaken.
        if is_next:
            lockf(self._fd, LOCK_UN, 1, _NEXT)
        try:
            yield
        finally:
            if has_turn:
                lockf(self._fd, LOCK_UN, 1, _TURN)

    def close(self) -> None:
        """Close the lock file, which releases all locks."""
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
