"""The peer's client, which needs a newer Python than bough."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def driver(openhands_python: list[str]) -> list[str]:
    """The command that starts the driver, with `openhands-sdk` in an environment of its own."""
    return [*openhands_python, str(Path(__file__).with_name("drive.py"))]
