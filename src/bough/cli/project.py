"""The project of the working folder, whose conversations commands show."""

from __future__ import annotations

from pathlib import Path

_MARKS = (".git", ".agents", ".bough", "bough.yaml")


def find_project() -> str:
    """Return the project of the working folder: the nearest folder at or above it with a mark, below the home.

    Without a mark, it is the working folder itself.
    """
    # Resolved as the working folder is: `.bough` in a home behind a link would make the whole home one project.
    folder, home = Path.cwd(), Path.home().resolve()
    for parent in (folder, *folder.parents):
        if parent == home or parent == Path(parent.anchor):
            break
        if any((parent / mark).exists() for mark in _MARKS):
            return str(parent)
    return str(folder)
