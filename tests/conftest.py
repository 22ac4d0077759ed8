"""What every test has: asyncio for async tests, a home folder of its own, no keys and no settings from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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
def other_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes an environment with bough and one of its extras, which does not fit beside the pinned packages.

    Returns its Python. It takes a quarter of a minute and a package index; where that fails, so does the test.
    """
    root = Path(__file__).parent.parent

    def make(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra) / "environment"
        python, uv = folder / "bin" / "python", Path(sys.executable).parent / "uv"
        commands = [[sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q"]]
        if uv.exists():
            commands = [[uv, "venv", "-q", "--python", sys.executable, folder]]
            commands += [[uv, "pip", "install", "-q", "--python", python]]
        subprocess.run(commands[0], check=True)
        subprocess.run([*commands[1], "-e", f"{root}[{extra}]"], check=True)
        return python

    return make


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server: BOUGH_TEST_POSTGRES, or one started for these tests."""
    given = os.environ.get("BOUGH_TEST_POSTGRES")
    if given:
        yield given
        return
    with postgres_server() as url:
        yield url
