"""Folders for unfinished installations. They are locked while in use; those of killed processes are removed later."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from bough.errors import StoreError
from bough.skills.trust.snapshot import make_locked_folder, remove_tree

_PREFIX = "new-"


class StagingFolder:
    """A new folder in `parent`, as a context manager that removes it on exit.

    Args:
        parent: Created if missing; removed if it is empty at the end.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._folder = parent
        self._lock = -1

    def __enter__(self) -> Path:
        """Create the folder and lock it.

        Raises:
            StoreError: The folder cannot be created.
        """
        try:
            self._folder, self._lock = make_locked_folder(self._parent, _PREFIX)
        except OSError as error:
            raise StoreError(f"cannot write to {self._parent}: {error.strerror}", hint="make it writable") from error
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder."""
        # Removed before the lock is released, so that no other process removes it at the same time.
        remove_tree(self._folder)
        os.close(self._lock)
        _remove_empty(self._parent)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of killed processes in `parent`; folders in use are not removed."""
    try:
        folders = sorted(parent.iterdir())
    except OSError:
        return
    for folder in folders:
        if not folder.name.startswith(_PREFIX):
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # Fails while the installation runs. The kernel releases the lock when the process ends in any way.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(folder)
        except OSError:
            continue
        finally:
            os.close(lock)
    _remove_empty(parent)


def _remove_empty(parent: Path) -> None:
    try:
        parent.rmdir()
    except OSError:  # not empty or already removed, because another process uses it
        return
