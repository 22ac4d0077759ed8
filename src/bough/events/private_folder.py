"""A temporary folder that is removed with the object that uses it, or after its process has ended."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from bough.errors import StoreError
from bough.events.owner import is_gone, owner

_OWNER = "owner"
_OTHERS = "others"
"""A file with the paths of folders elsewhere that go with the private folder, as lines of JSON."""


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

    def add_folder(self, path: Path) -> None:
        """Remove a folder elsewhere together with this one, also if the process is killed.

        Raises:
            StoreError: It cannot be recorded.
        """
        try:
            with (self.path / _OTHERS).open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(os.fspath(path))}\n")
        except OSError as error:
            raise StoreError(f"cannot write to {self.path}: {error.strerror}", hint="free some space") from error

    def remove(self) -> None:
        """Remove the folder and its contents. Idempotent."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked process must not remove its parent's folder at its own exit
        _remove_with_others(path)


def _remove_with_others(path: Path) -> None:
    """Remove a private folder, and the folders that were added to it."""
    with suppress(OSError, ValueError):
        # Another user can create a folder of this name. It must not decide what is removed.
        if os.lstat(path).st_uid == os.geteuid():
            for text in (path / _OTHERS).read_text("utf-8").splitlines():
                shutil.rmtree(json.loads(text), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    """Remove the folders with this prefix whose owner's process no longer exists."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError, UnicodeDecodeError):
                    if is_gone((Path(entry.path) / _OWNER).read_text("utf-8")):
                        _remove_with_others(Path(entry.path))
