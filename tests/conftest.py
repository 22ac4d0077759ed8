"""What every test has: asyncio for async tests, a home folder of its own, no keys and no settings from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bough.testing.postgres import postgres_server

settings.register_profile("dev", max_examples=30, deadline=None)
settings.register_profile(
    "ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell that ignores it; commands under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_KEYS = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are processors: many tests wait for a time limit or a process most of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that async tests run on."""
    return "asyncio"


@pytest.fixture(autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; settings and model keys of whoever runs the tests are hidden."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("BOUGH_", "XDG_")) or name.endswith(_KEYS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("BOUGH_HOME", str(home / ".bough"))
    return home


@pytest.fixture
def bough_home(isolated_home: Path) -> Path:
    """Where bough keeps its things in this test; not made yet."""
    return isolated_home / ".bough"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server: BOUGH_TEST_POSTGRES, or one started for these tests."""
    given = os.environ.get("BOUGH_TEST_POSTGRES")
    if given:
        yield given
        return
    with postgres_server() as url:
        yield url
