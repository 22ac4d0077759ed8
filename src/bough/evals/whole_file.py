"""Files that are written whole or not at all, whenever the process ends."""

from __future__ import annotations

import os
from pathlib import Path

from bough.errors import StoreError


def write_whole(path: Path, text: str) -> None:
    """Write a text under a temporary name, make it durable, and give it its name.

    Raises:
        StoreError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write {path}: {error.strerror}", hint="check the folder and the free space"
        ) from error
