"""Folders for what is not finished: locked while they are used, and swept by the next process when they are not."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from types import TracebackType

from bough.errors import StoreError
from bough.skills.trust.snapshot import remove_tree

_PREFIX = "new-"


class StagingFolder:
    """A folder of its own below `place`, as a context manager; gone afterwards, whatever happened.

    Args:
        place: Made when it is not there; removed with the last folder in it.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._folder = place
        self._guard = -1

    def __enter__(self) -> Path:
        """Make the folder and lock it.

        Raises:
            StoreError: It cannot be made.
        """
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._place, prefix=_PREFIX))
            self._guard = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self._place} cannot be written: {error.strerror}", hint="free or unlock it") from error
        fcntl.flock(self._guard, fcntl.LOCK_EX)
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder."""
        remove_tree(self._folder)
        os.close(self._guard)
        _remove_empty(self._place)


def sweep(place: Path) -> None:
    """Remove what killed processes left below `place`; folders in use stay."""
    try:
        left = sorted(place.iterdir())
    except OSError:
        return
    for folder in left:
        if not folder.name.startswith(_PREFIX):
            continue
        try:
            guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
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
    except OSError:  # not empty, or gone: another process uses it
        return
