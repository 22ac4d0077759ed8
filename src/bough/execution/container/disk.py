"""How much disk a container that stays takes, bounded by looking: quotas need a file system that has them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from bough.execution.process.disk_use import DiskUse

LOOK_SECONDS: Final = 1.0
"""How often it is looked at; less often where a look takes long."""

_SHARE: Final = 10
"""A look that took a second is followed by so many without one."""


class ContainerDisk:
    """The bytes of a container's own files, beside those of its image, and of the folder that it shows.

    Between two looks a program can write more than the bound. What is over it stays, and may be removed: only what has
    grown since it was found over the bound is over it again.

    Args:
        engine: The engine's client.
        container: Id of the container.
        workspace: The folder of this machine that it shows.
    """

    def __init__(self, engine: Any, container: str, workspace: Path, limit_bytes: int) -> None:
        self._engine = engine
        self._container = container
        self._workspace = DiskUse((str(workspace),))
        self._found = limit_bytes
        self._next = 0.0
        self._lock = threading.Lock()

    def is_full(self) -> bool:
        """Whether it is over its bound and has grown; looks at most once a second. Blocks."""
        with self._lock:
            begun = time.monotonic()
            if begun < self._next:
                return False
            used = self.measure()
            self._next = time.monotonic() + max(LOOK_SECONDS, _SHARE * (time.monotonic() - begun))
            if used <= self._found:
                return False
            self._found = used
            return True

    def measure(self) -> int:
        """Return the bytes in use. The engine walks the container's own files. Blocks."""
        listed = self._engine.api.containers(all=True, size=True, filters={"id": self._container})
        own = sum(int(each.get("SizeRw") or 0) for each in listed)
        return own + self._workspace.measure()
