"""Folders for unfinished installations: locked while in use, removed afterwards, also if a process was killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from bough.errors import StoreError
from bough.skills.trust.snapshot import make_locked_folder, remove_tree

_PREFIX = "new-"


class StagingFolder:
    """A new folder below `place`, as a context manager that removes it on exit.

    Args:
        place: Created if missing; removed with its last folder.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._folder = place
        self._guard = -1

    def __enter__(self) -> Path:
        """Create the folder and lock it.

        Raises:
            StoreError: It cannot be created.
        """
        try:
            self._folder, self._guard = make_locked_folder(self._place, _PREFIX)
        except OSError as error:
            raise StoreError(f"cannot write to {self._place}: {error.strerror}", hint="make it writable") from error
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder."""
        # Removed before the lock is released, so that no other process removes it at the same time.
        remove_tree(self._folder)
        os.close(self._guard)
        _remove_empty(self._place)


def remove_leftovers(place: Path) -> None:
    """Remove the folders that killed processes left below `place`; folders in use stay."""
    try:
        folders = sorted(place.iterdir())
    except OSError:
        return
    for folder in folders:
        if not folder.name.startswith(_PREFIX):
            continue
        try:
            guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # Fails while the installation runs; the kernel releases the lock when its process ends, however it ends.
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(folder)
        except OSError:
            continue
        finally:
            os.close(guard)
    _remove_empty(place)


def _remove_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:  # not empty or already removed, because another process uses it
        return
