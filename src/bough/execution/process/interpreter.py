"""Which Python runs inside, and what of the machine must be shown for it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True)
class Interpreter:
    """A Python and the folder it lives in.

    Attributes:
        path: The executable, the same inside and outside.
        folder: A folder to show read-only at the same place; None when `/usr` holds everything.
    """

    path: str
    folder: str | None = None


def find_interpreter() -> Interpreter:
    """Return the machine's own Python where there is one, else the one bough runs on, home folder or not.

    Packages of a virtual environment are not part of it: a script sees the standard library, and what the machine's own
    Python has installed.
    """
    for path in _SYSTEM_PYTHONS:
        if os.path.realpath(path).startswith("/usr/") and os.access(path, os.X_OK):
            return Interpreter(path)
    return own_interpreter()


def own_interpreter() -> Interpreter:
    """Return the Python that runs bough, without its virtual environment."""
    base = os.path.realpath(sys.base_prefix)
    path = os.path.join(base, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.exists(path):
        path = os.path.realpath(sys.executable)
    return Interpreter(path, None if base.startswith("/usr") else base)
