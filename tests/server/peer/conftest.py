"""The peer's client, which needs a newer Python than bough."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.newer_python import NewerPython

CLIENT = "openhands-sdk==1.58.2"
# It asks for a certifi of a date that not every index has, and works with any later one.
OVERRIDE = "certifi>=2025\n"


@pytest.fixture(scope="session")
def driver(newer_python: NewerPython, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that starts the driver, with `openhands-sdk` in a folder of its own; it takes a package index."""
    folder = tmp_path_factory.mktemp("peer")
    override = folder / "override.txt"
    override.write_text(OVERRIDE)
    install = [
        str(Path(sys.executable).parent / "uv"),
        "pip",
        "install",
        "-q",
        "--python-version",
        newer_python.version,
    ]
    subprocess.run([*install, "--target", folder, "--override", override, CLIENT], check=True)
    shutil.copy(Path(__file__).with_name("drive.py"), folder / "drive.py")
    return [str(newer_python.path), str(folder / "drive.py")]
