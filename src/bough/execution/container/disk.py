"""Bounding the disk use of a kept container by measuring it, since quotas need a file system that supports them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from bough.execution.process.disk_use import DiskUse

LOOK_SECONDS: Final = 1.0
"""The shortest interval between two measurements; longer if a measurement takes long."""

_SHARE: Final = 10
"""A measurement that took a second is followed by this many seconds without one."""


class ContainerDisk:
    """The bytes of a container's own files, without those of its image, and of the folder mounted in it.

    If this process can read the container's own files (as root, with most engines), their names count as well;
    otherwise only the bytes that the engine reports.

    Between two measurements a program can exceed the bound. The excess stays, and may be removed: only what has
    grown since then exceeds the bound again.

    Args:
        engine: The engine's client.
        container: Id of the container.
        workspace: The folder of this machine that is mounted in it.
    """

    def __init__(self, engine: Any, container: str, workspace: Path, limit_bytes: int) -> None:
        self._engine = engine
        self._container = container
        own = _find_own_files(engine, container)
        self._is_readable = own is not None
        self._use = DiskUse((str(workspace), *([] if own is None else [own])))
        self._found = limit_bytes
        self._next = 0.0
        self._lock = threading.Lock()

    def is_full(self) -> bool:
        """Whether it exceeds its bound and has grown; measures at most once a second. Blocks."""
        with self._lock:
            started_at = time.monotonic()
            if started_at < self._next:
                return False
            used = self.measure()
            self._next = time.monotonic() + max(LOOK_SECONDS, _SHARE * (time.monotonic() - started_at))
            if used <= self._found:
                return False
            self._found = used
            return True

    def measure(self) -> int:
        """Return the bytes in use. The engine counts the container's own files if they cannot be read here. Blocks."""
        if self._is_readable:
            return self._use.measure()
        listed = self._engine.api.containers(all=True, size=True, filters={"id": self._container})
        own = sum(int(container.get("SizeRw") or 0) for container in listed)
        return own + self._use.measure()


def _find_own_files(engine: Any, container: str) -> str | None:
    """Return the engine's folder with a container's own files; None if it cannot be read. Blocks."""
    driver: dict[str, Any] = engine.api.inspect_container(container).get("GraphDriver") or {}
    data: dict[str, str] = driver.get("Data") or {}
    folder = data.get("UpperDir")
    return folder if folder and os.access(folder, os.R_OK | os.X_OK) else None
