"""What every test has: asyncio for async tests, a home folder of its own, no keys and no settings from outside.

For the run as a whole: tests of a component that this machine does not have are left out (under `CI` they fail), and a
run that does not end is ended. Source: decision 13.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from tests.newer_python import NewerPython, find_newer_python
from tests.preloaded import Preloaded

from bough.execution.sandbox.bubblewrap import BubblewrapRung
from bough.execution.sandbox.landlock import LandlockRung
from bough.execution.sandbox.rung import Rung
from bough.settings import Settings
from bough.testing import docker_engine
from bough.testing import postgres as postgres_testing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

# Files are kept in the tests of that alone: in any other, each run would read its whole workspace once more.
Settings.__init__.__kwdefaults__["keep_files"] = False  # pyright: ignore[reportOptionalSubscript]

# Without bytecode, each worker and each of the hundreds of processes that tests start compiles everything again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("dev", max_examples=30, deadline=None)
settings.register_profile(
    "ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell that ignores it; commands under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Lack(NamedTuple):
    """Why a component cannot be used on this machine, and how to get it; both empty when it can be used."""

    reason: str = ""
    install: str = ""


def _check_rung(rung: Rung) -> Lack:
    report = asyncio.run(rung.probe())
    return Lack() if report.works else Lack(report.missing, report.install or "a kernel that has it switched on")


def _check_node() -> Lack:
    # The folders that scripts in a sandbox are given as their PATH; a node elsewhere does not help.
    found = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    return Lack() if found else Lack("node is not installed", "apt-get install nodejs")


COMPONENTS: Final[Mapping[str, Callable[[], Lack]]] = {
    "bubblewrap": lambda: _check_rung(BubblewrapRung()),
    "chromium": lambda: Lack() if shutil.which("chromium") else Lack("no browser", "apt-get install chromium"),
    "curl": lambda: Lack() if shutil.which("curl") else Lack("curl is not installed", "apt-get install curl"),
    "docker": lambda: Lack(docker_engine.missing(), "run as root with docker.io installed, or set DOCKER_HOST"),
    "fish": lambda: Lack() if shutil.which("fish") else Lack("fish is not installed", "apt-get install fish"),
    "firefox": lambda: Lack() if shutil.which("firefox-esr") else Lack("no Firefox", "apt-get install firefox-esr"),
    "landlock": lambda: _check_rung(LandlockRung()),
    "node": _check_node,
    "postgres": lambda: Lack(postgres_testing.missing(), "apt-get install postgresql, or set BOUGH_TEST_POSTGRES"),
    "python3.12": lambda: Lack() if find_newer_python() else Lack("no Python 3.12 or newer", "put one in the PATH"),
    "zsh": lambda: Lack() if shutil.which("zsh") else Lack("zsh is not installed", "apt-get install zsh"),
}
"""What some tests need beside Python: a test says so with the marker `needs`, or by a fixture of the table below."""

OPTIONAL: Final = frozenset({"python3.12"})
"""What no package of the Debian of CI brings: where it is not there, its tests are left out and told there, too."""

NEEDED_BY_FIXTURES: Final[Mapping[str, str]] = {
    "bubblewrap": "bubblewrap",
    "container_engine": "docker",
    "namespaces": "bubblewrap",
    "newer_python": "python3.12",
    "openhands_python": "python3.12",
    "postgres": "postgres",
    "sandlock": "landlock",
    "stateful": "bubblewrap",
    "zygote": "bubblewrap",
}

USE_STRONGEST_SANDBOX: Final = frozenset({"cli", "examples", "execution", "integration"})
"""Folders whose tests use the strongest sandbox of the machine, so they show something else where bubblewrap is."""

SAME_WITHOUT_SANDBOX: Final = frozenset(
    {
        "cli/test_conv.py",
        "cli/test_conv_compared.py",
        "cli/test_describe.py",
        "cli/test_hints.py",
        "cli/test_markdown.py",
        "cli/test_mistakes.py",
        "cli/test_model_failures.py",
        "cli/test_text.py",
        "examples/test_csv_profile.py",
        "examples/test_git_digest.py",
        "examples/test_link_check.py",
        "examples/test_word_count.py",
    }
)
"""Files in these folders that run no code in a sandbox."""

EXECUTORS_OF_ROOT: Final = frozenset({"sandlock", "unsafe"})
"""Fixtures of executors that need no component and behave differently for root."""

_lacks = pytest.StashKey[dict[str, Lack]]()
_left_out = pytest.StashKey[Counter[str]]()
_begun = pytest.StashKey[float]()
_stderr = pytest.StashKey[int]()


def _find_lacks(config: pytest.Config) -> dict[str, Lack]:
    """Return what this machine lacks, by component.

    The workers of one run are told by the process that starts them, since they must agree on the list of tests.
    """
    if _lacks not in config.stash:
        told: dict[str, list[str]] | None = getattr(config, "workerinput", {}).get("lacks")
        found = {name: check() for name, check in COMPONENTS.items()} if told is None else told
        config.stash[_lacks] = {name: Lack(*lack) for name, lack in found.items() if lack[0]}
    return config.stash[_lacks]


def _components_of(item: pytest.Item) -> set[str]:
    marked = {name for marker in item.iter_markers("needs") for name in marker.args}
    if unknown := marked - COMPONENTS.keys():
        raise pytest.UsageError(f"{item.nodeid} needs {', '.join(unknown)}, which COMPONENTS does not list")
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return marked | {NEEDED_BY_FIXTURES[name] for name in fixtures if name in NEEDED_BY_FIXTURES}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option by which CI runs a test once."""
    help = "leave out what the newcomer's pass of CI runs as well: quick tests that need no component"
    parser.addoption("--beyond-newcomer", action="store_true", help=help)


def _is_newcomers(item: pytest.Item, components: set[str]) -> bool:
    """Whether a test shows the same in the newcomer's pass: an ordinary user on a machine without components."""
    if components - {"landlock"} or item.get_closest_marker("slow") is not None:
        return False
    path = item.path.relative_to(Path(__file__).parent)
    uses_sandbox = path.parts[0] in USE_STRONGEST_SANDBOX and path.as_posix() not in SAME_WITHOUT_SANDBOX
    as_root = os.geteuid() == 0 and not EXECUTORS_OF_ROOT.isdisjoint(getattr(item, "fixturenames", ()))
    return not uses_sandbox and not as_root


@pytest.hookimpl(trylast=True)  # after the choice by -m and -k, so that only tests of this run are counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose component is not there; under `CI` they stay, and fail at their start."""
    config.stash[_left_out] = Counter()
    components = {item: _components_of(item) for item in items}
    if config.getoption("--beyond-newcomer"):
        left = {item for item in items if _is_newcomers(item, components[item])}
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    # Else the run ends with one worker in a test of minutes, and the others idle.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not any(components.values()):
        return
    lacks = _find_lacks(config)
    if os.environ.get("CI"):
        lacks = {name: lack for name, lack in lacks.items() if name in OPTIONAL}
    dropped: list[pytest.Item] = []
    for item in items:
        if lacking := sorted(components[item] & lacks.keys()):
            config.stash[_left_out][lacking[0]] += 1
            dropped.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail what is here although its component is not, which is so under `CI` only."""
    if components := _components_of(item):
        lacks = _find_lacks(item.config)
        for name in sorted(components & lacks.keys()):
            pytest.fail(f"{name} is needed: {lacks[name].reason} ({lacks[name].install})", pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: report what was left out to the process that prints the summary."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(_left_out, Counter[str]()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker left out, all the same; past the limit of the run no other worker takes its place."""
    if time.time() > node.config.stash[_begun] + _RUN_SECONDS:
        node.config.pluginmanager.getplugin("dsession").shouldstop = "the tests took too long"
    node.config.stash[_left_out] = Counter(getattr(node, "workeroutput", {}).get("left_out", {})) or (
        node.config.stash.get(_left_out, Counter[str]())
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one line for each component that was missed."""
    for name, count in sorted(config.stash.get(_left_out, Counter[str]()).items()):
        lack = _find_lacks(config)[name]
        text = f"left out: {count} tests that need {name} ({lack.reason.rstrip('.')}). To get it: {lack.install}"
        terminalreporter.write_line(text, yellow=True)


_RUN_SECONDS: Final = float(os.environ.get("TEST_RUN_SECONDS", "2400"))
_GRACE_SECONDS: Final = float(os.environ.get("TEST_GRACE_SECONDS", "30"))


def pytest_configure(config: pytest.Config) -> None:
    """Bound the run as a whole: at the limit show where every thread is, tear down, and end in any case."""
    config.addinivalue_line("markers", "needs(component, ...): tests something that not every machine has")
    stderr = os.dup(2)  # capturing starts after this hook; a worker's stderr is that of the run
    faulthandler.enable(stderr)
    begun: float = getattr(config, "workerinput", {}).get("begun", time.time())
    config.stash[_begun], config.stash[_stderr] = begun, stderr
    # Tearing down can hang as well. This timer is a thread in C, which nothing that runs in Python can hold up.
    # Workers go first, so that the process that started them can still print what they found.
    grace = _GRACE_SECONDS * (2 if _starts_workers(config) else 1)
    faulthandler.dump_traceback_later(_seconds_until(begun + _RUN_SECONDS) + grace, exit=True, file=stderr)


def _starts_workers(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "dist", "no") != "no") and not hasattr(config, "workerinput")


def _seconds_until(moment: float) -> float:
    """Return the time until then, at least some seconds: a process that starts late has to come to its test."""
    return max(5.0, moment - time.time())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where the tests run: interrupt them at the limit."""
    if not _starts_workers(session.config):
        begun, stderr = session.config.stash[_begun], session.config.stash[_stderr]
        timer = threading.Timer(_seconds_until(begun + _RUN_SECONDS), _interrupt, [stderr])
        timer.daemon = True
        timer.start()


def _interrupt(stderr: int) -> None:
    """Show the stacks of all threads and end the tests as Ctrl-C does, so that what they started is torn down."""
    text = f"\nthe tests took longer than {_RUN_SECONDS:.0f} s (TEST_RUN_SECONDS); what process {os.getpid()} does:\n"
    os.write(stderr, text.encode())
    faulthandler.dump_traceback(stderr, all_threads=True)
    # A signal, since only that ends a system call; the main thread is the one that runs tests, in workers too.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what the machine lacks, and when the run began."""
    lacks = _find_lacks(node.config)
    node.workerinput["lacks"] = {name: list(lacks.get(name, Lack())) for name in COMPONENTS}
    node.workerinput["begun"] = node.config.stash[_begun]


_KEYS = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are processors: many tests wait for a time limit or a process most of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """The process that runs the commands of one pytest worker."""
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket is short
        process = Preloaded(Path(folder))
        yield process
        process.close()


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
def newer_python() -> NewerPython:
    """A Python 3.12 or newer of this machine."""
    found = find_newer_python()
    assert found is not None, "tests that need it are left out without it"
    return found


@pytest.fixture(scope="session")
def openhands_python(newer_python: NewerPython, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that starts a newer Python with `openhands-sdk`, before the program; it takes a package index."""
    folder = tmp_path_factory.mktemp("openhands")
    override = folder / "override.txt"
    # It asks for a certifi of a date that not every index has, and works with any later one.
    override.write_text("certifi>=2025\n")
    install = [
        str(Path(sys.executable).parent / "uv"),
        "pip",
        "install",
        "-q",
        "--python-version",
        newer_python.version,
    ]
    packages = folder / "packages"
    command = [*install, "--target", packages, "--override", override, "openhands-sdk==1.58.2"]
    subprocess.run(command, check=True)
    return ["env", f"PYTHONPATH={packages}", str(newer_python.path)]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server: BOUGH_TEST_POSTGRES, or one started for these tests."""
    given = os.environ.get("BOUGH_TEST_POSTGRES")
    if given:
        yield given
        return
    with postgres_testing.postgres_server() as url:
        yield url


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collect spans of OpenTelemetry; the global provider is restored, since it may be set only once."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()
