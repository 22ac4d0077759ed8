"""Limit the disk use of a kept container by measuring it, because quotas need a file system that supports them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from bough.execution.process.disk_use import DiskUse

POLL_SECONDS: Final = 1.0
"""The shortest pause between two measurements."""

_PAUSE_FACTOR: Final = 10
"""After a measurement, the next one starts no earlier than this many times its duration."""


class ContainerDisk:
    """The disk use of a container: the files it has added to its image, and its mounted workspace.

    If this process can read the added files (as root, with most engines), it counts their names as well. Otherwise the
    engine reports only their bytes.

    Between two measurements a program can exceed the limit. Its files remain, and may be removed by a later command.
    The limit is exceeded again only when the disk use grows further.

    Args:
        engine: The engine's client.
        container: Id of the container.
        workspace: The folder of this machine that is mounted in it.
    """

    def __init__(self, engine: Any, container: str, workspace: Path, limit_bytes: int) -> None:
        self._engine = engine
        self._container = container
        added_files = _find_added_files(engine, container)
        self._is_readable = added_files is not None
        self._use = DiskUse((str(workspace), *([] if added_files is None else [added_files])))
        self._threshold_bytes = limit_bytes
        self._next_check = 0.0
        self._lock = threading.Lock()

    def is_full(self) -> bool:
        """Whether the disk use exceeds the limit, and also exceeds the use at the last True. Blocks.

        Measures at most once a second; between two measurements the result is False.
        """
        with self._lock:
            started_at = time.monotonic()
            if started_at < self._next_check:
                return False
            used_bytes = self.measure()
            self._next_check = time.monotonic() + max(POLL_SECONDS, _PAUSE_FACTOR * (time.monotonic() - started_at))
            if used_bytes <= self._threshold_bytes:
                return False
            self._threshold_bytes = used_bytes
            return True

    def measure(self) -> int:
        """Return the bytes in use. The engine counts the added files if this process cannot read them. Blocks."""
        if self._is_readable:
            return self._use.measure()
        containers = self._engine.api.containers(all=True, size=True, filters={"id": self._container})
        added_bytes = sum(int(container.get("SizeRw") or 0) for container in containers)
        return added_bytes + self._use.measure()


def _find_added_files(engine: Any, container: str) -> str | None:
    """Return the engine's folder with the files that a container has added; None if it cannot be read. Blocks."""
    driver: dict[str, Any] = engine.api.inspect_container(container).get("GraphDriver") or {}
    data: dict[str, str] = driver.get("Data") or {}
    folder = data.get("UpperDir")
    return folder if folder and os.access(folder, os.R_OK | os.X_OK) else None
