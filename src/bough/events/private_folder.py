"""A temporary folder that ends with what it was made for, or with its process."""

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
    """A folder that only this user can enter, removed at `remove`, when nobody refers to it, and at exit.

    What a killed process left behind is removed by the next one that makes such a folder.

    Args:
        prefix: What its name begins with; folders of one prefix are of one kind.

    Raises:
        StoreError: There is no place for temporary files.
    """

    def __init__(self, prefix: str) -> None:
        try:
            _remove_abandoned(prefix)
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            (self.path / _OWNER).write_text(owner(), "utf-8")
        except OSError as error:
            raise StoreError(
                f"cannot make a temporary folder: {error.strerror}", hint="free space in the folder for temporary files"
            ) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        """Remove the folder with everything in it. More than once is nothing."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked process that ends must not remove what its parent uses
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError, UnicodeDecodeError):
                    if is_gone((Path(entry.path) / _OWNER).read_text("utf-8")):
                        shutil.rmtree(entry.path, ignore_errors=True)
