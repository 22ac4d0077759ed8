"""Locks between processes, which the kernel releases when a process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bough.errors import Conflict

_POLL_SECONDS: Final = 0.01


def try_lock(path: Path, *, exclusive: bool, wait_seconds: float = 0.0) -> int | None:
    """Return the descriptor of a locked file; closing it releases the lock.

    Two locks of one process exclude each other, like locks of two processes.

    Returns:
        None if the lock was not free within `wait_seconds`.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    # Opened each time: a lock belongs to the open file, so two threads of a process exclude each other too.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
        except BaseException:
            os.close(fd)
            raise
        else:
            return fd
        time.sleep(_POLL_SECONDS)


@contextmanager
def hold_lock(path: Path, message: str, *, exclusive: bool, wait_seconds: float = 0.0) -> Generator[None]:
    """Hold a lock in the `with` block.

    Args:
        message: The message of the error if the lock is not free in time.

    Raises:
        Conflict: The lock was not free within `wait_seconds`.
        OSError: The file cannot be opened, or its file system has no locks.
    """
    fd = try_lock(path, exclusive=exclusive, wait_seconds=wait_seconds)
    if fd is None:
        raise Conflict(message, hint="wait for it to end, then try again")
    try:
        yield
    finally:
        os.close(fd)
