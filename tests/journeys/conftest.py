"""Journeys: what a person does, with real processes in a fresh home.

A journey uses the command line, HTTP, or a program of the user's own with public names. It prepares nothing that the
user would not have to prepare, so it sees what fixtures of the other tests hide.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.preloaded import Preloaded

from bough.testing import OpenAIServer

BOUGH = Path(sys.executable).with_name("bough")
ROOT = Path(__file__).parents[2]
_START_SECONDS = 60


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Everything that a terminal would show."""
        return self.stdout + self.stderr

    def json(self) -> Any:
        """The `data` of the envelope of a command with `--json`."""
        return json.loads(self.stdout)["data"]


@dataclass(frozen=True)
class ServerProcess:
    """A `bough serve` process."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """Return an HTTP client, with a key if there is one."""
        headers = {} if key is None else {"X-Session-API-Key": key}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **options)


@dataclass
class Person:
    """Somebody with a home folder and a working folder of their own.

    Attributes:
        home: The home folder, empty at first.
        folder: The working folder, empty at first.
        environment: What is set beside `HOME` and `PATH`.
        preloaded: Runs the commands of `bough` as forks of a process that has imported it. None: each command starts
            an interpreter, which takes ten times as long.
    """

    home: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    preloaded: Preloaded | None = None

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command: nothing of the tests' own, but `PATH`, `HOME` and what the person set."""
        path = f"{BOUGH.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", **self.environment}

    def write(self, files: Mapping[str, str]) -> None:
        """Write files into the working folder; names may hold folders."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def try_command(self, command: Sequence[str | Path], *, input: str = "", timeout: float = 100) -> Result:
        """Run any command in the working folder."""
        process = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self.env,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Result(process.returncode, process.stdout, process.stderr)

    def bough(self, *args: str | Path, code: int = 0, input: str = "") -> Result:
        """Run `bough` and check its exit code."""
        if self.preloaded is None or any(name.startswith("PYTHON") for name in self.environment):
            result = self.try_command([BOUGH, *args], input=input)
        else:
            process = self.preloaded.run(args, self.folder, self.env, input)
            result = Result(process.returncode, process.stdout, process.stderr)
        assert result.code == code, f"bough {' '.join(map(str, args))}: {result}"
        assert "Traceback" not in result.output, result
        return result

    def python(self, source: str, *args: str, code: int = 0) -> Result:
        """Run a Python program of the person's, saved as `program.py` in the working folder."""
        self.write({"program.py": source})
        result = self.try_command([sys.executable, "program.py", *args])
        assert result.code == code, result
        return result

    def serve(self, *args: str) -> AbstractContextManager[ServerProcess]:
        """Run `bough serve` on a free port of this machine until the block ends; its output goes to `server.log`."""
        return self.run_server([BOUGH, "serve", "--port", "0", *args])

    @contextmanager
    def run_server(self, command: Sequence[str | Path]) -> Iterator[ServerProcess]:
        """Run a server that prints its address, until the block ends; its output goes to `server.log`."""
        log = self.folder.parent / f"{self.folder.name}-server.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            yield ServerProcess(_wait_for_address(log, process), process, log)
        finally:
            process.terminate()
            process.wait(30)


def _wait_for_address(log: Path, process: subprocess.Popen[str]) -> str:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if match := re.search(r"(?:listening|running) on (http://\S+)[ \n]", log.read_text()):
            return match[1]
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        time.sleep(0.05)  # a file tells nobody that it has grown
    raise AssertionError(f"the server does not listen: {log.read_text()}")


@pytest.fixture
def new_person(tmp_path_factory: pytest.TempPathFactory, preloaded: Preloaded) -> Callable[[], Person]:
    """Returns a function that makes a person with an empty home and an empty working folder."""

    def create() -> Person:
        return Person(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("folder"), preloaded=preloaded)

    return create


@pytest.fixture
def person(new_person: Callable[[], Person]) -> Person:
    """A person with an empty home and an empty working folder, and no model key."""
    return new_person()


@pytest.fixture
def openai_server() -> Iterator[Callable[..., OpenAIServer]]:
    """Starts OpenAI-format servers on loopback, each with its answers: `server = openai_server("first", "second")`."""
    with ExitStack() as stack:
        yield lambda *steps: stack.enter_context(OpenAIServer(steps))
