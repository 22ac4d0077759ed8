"""A Debian of its own in a folder, and a Python that is newer than the one that runs the tests.

The folder is the base of bough's image as well, so that neither needs a registry of images.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SUITE = "trixie"
_PACKAGES = "ca-certificates,python3,python3-venv"


@dataclass(frozen=True)
class NewerPython:
    """A Python 3.12 or newer.

    Attributes:
        command: Starts it.
        version: For example `3.13`.
        root: Where its files are: the root folder, or that of a Debian of its own.
    """

    command: tuple[str, ...]
    version: str
    root: Path

    def path_of(self, path: Path) -> str:
        """Return what it calls a path below its root."""
        return f"/{path.relative_to(self.root)}"


def missing_debian() -> str:
    """Return why no Debian can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "only root can make a Debian in a folder"
    return "" if shutil.which("debootstrap") else "debootstrap is not installed"


def missing_python() -> str:
    """Return why there is no Python 3.12 or newer; empty when there is one."""
    return "" if find_python() or not missing_debian() else f"no Python 3.12 or newer was found, and {missing_debian()}"


@cache
def find_python() -> NewerPython | None:
    """Return a Python 3.12 or newer of this machine; one behind a shim of pyenv counts, where the shim itself fails."""
    for version in [f"3.{minor}" for minor in range(20, 11, -1)]:
        for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
            behind = folder.parent.glob(f"versions/*/bin/python{version}") if folder.name == "shims" else ()
            for python in (folder / f"python{version}", *behind):
                if python.exists() and _starts(python):
                    return NewerPython((str(python),), version, Path("/"))
    return None


def _starts(python: Path) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def make_debian(shared: Path) -> Path:
    """Return the root folder of a Debian, made by whichever process of the run comes first.

    It takes minutes and a mirror of Debian; where that fails, so does the test.
    """
    root = shared / "debian"
    with open(shared / "debian.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "debian.done").exists():
            shutil.rmtree(root, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, root]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (shared / "debian.done").touch()
    return root


def python_of(root: Path) -> NewerPython:
    """Return the Python of such a Debian."""
    found = next(path.name for path in (root / "usr" / "bin").glob("python3.??"))
    return NewerPython(("chroot", str(root), "/usr/bin/python3"), found.removeprefix("python"), root)
