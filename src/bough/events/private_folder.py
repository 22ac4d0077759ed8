"""A temporary folder that is removed with the object that uses it, or after its process has ended."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from bough.errors import StoreError
from bough.events.owner import is_gone, owner

_OWNER = "owner"


class PrivateFolder:
    """A folder that only this user can enter. Removed by `remove`, by garbage collection and at exit.

    The next process that creates a folder with the same prefix removes those of killed processes.

    Args:
        prefix: Prefix of the folder's name.

    Raises:
        StoreError: The folder cannot be created.
    """

    def __init__(self, prefix: str) -> None:
        try:
            _remove_abandoned(prefix)
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            (self.path / _OWNER).write_text(owner(), "utf-8")
        except OSError as error:
            raise StoreError(
                f"cannot create a temporary folder: {error.strerror}",
                hint="free space in the folder for temporary files",
            ) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        """Remove the folder and its contents. Idempotent."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked process must not remove its parent's folder at its own exit
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    """Remove the folders with this prefix whose owner's process no longer exists."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError, UnicodeDecodeError):
                    if is_gone((Path(entry.path) / _OWNER).read_text("utf-8")):
                        shutil.rmtree(entry.path, ignore_errors=True)
