"""A Python that is newer than the one that runs the tests, where the machine has one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class NewerPython:
    """A Python 3.12 or newer.

    Attributes:
        path: The program.
        version: For example `3.13`.
    """

    path: Path
    version: str


@cache
def find_newer_python() -> NewerPython | None:
    """Return a Python 3.12 or newer of this machine; one behind a shim of pyenv counts, where the shim itself fails."""
    for version in [f"3.{minor}" for minor in range(20, 11, -1)]:
        for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
            behind = folder.parent.glob(f"versions/*/bin/python{version}") if folder.name == "shims" else ()
            for python in (folder / f"python{version}", *behind):
                if python.exists() and _starts(python):
                    return NewerPython(python, version)
    return None


def _starts(python: Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
