"""The command line as its users have it: a process with streams, an environment and an exit code."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.preloaded import Preloaded

BOUGH = Path(sys.executable).with_name("bough")
EXAMPLES = Path(__file__).parents[2] / "examples"
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Cli:
    """Runs `bough` in a working folder."""

    folder: Path
    environment: Mapping[str, str]
    preloaded: Preloaded

    def having(self, folder: Path | None = None, **environment: str) -> Cli:
        """`bough` in the same folder or another one, with more in its environment."""
        return replace(self, folder=folder or self.folder, environment={**self.environment, **environment})

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a command; compiled modules are kept, as on any user's machine."""
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **self.environment, **more}

    def __call__(self, *args: str | Path, stdin: str = "", **environment: str) -> Done:
        """Run a command in a process that has imported `bough`; return its exit code and streams.

        With settings of the interpreter, such as `PYTHONPATH`, it gets an interpreter of its own.
        """
        if not any(name.startswith("PYTHON") for name in environment):
            return self.preloaded.run(args, self.folder, self.env(**environment), stdin)
        return subprocess.run(
            [BOUGH, *map(str, args)],
            cwd=self.folder,
            env=self.env(**environment),
            input=stdin,
            capture_output=True,
            text=True,
        )

    def start(self, *args: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return subprocess.Popen(
            [BOUGH, *args],
            cwd=self.folder,
            env=self.env(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def data(self, *args: str | Path) -> Any:
        """Run a command that works with `--json` and return the `data` of its envelope."""
        done = self(*args, "--json")
        assert done.returncode == 0, done
        assert done.stderr == ""
        return json.loads(done.stdout)["data"]

    def lines(self, *args: str | Path, **environment: str) -> list[Any]:
        """Run a command that streams with `--json` and return its records, whatever its exit code."""
        return [json.loads(line) for line in self(*args, "--json", **environment).stdout.splitlines()]

    def on_terminal(
        self,
        *args: str,
        typed: Sequence[tuple[str | Path, bytes | Callable[[], bytes]]] = (),
        columns: int = 80,
        **environment: str,
    ) -> tuple[int, str]:
        """Run a command on a terminal of its own and return exit code and screen output, escapes included.

        Args:
            typed: Text that is waited for on the screen, or a file, and the keys that are pressed then, in turn; a
                function is called and returns them.
        """
        primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 200, columns, 0, 0))
        process = subprocess.Popen(
            [BOUGH, *args],
            cwd=self.folder,
            env=self.env(**{"TERM": "xterm-256color"} | environment),
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
        )
        os.close(secondary)
        shown, seen, steps = b"", 0, list(typed)
        while chunk := _read(primary):
            shown += chunk
            while steps and (there := _comes(steps[0][0], shown, seen)):
                seen = there
                keys = steps.pop(0)[1]
                os.write(primary, keys if isinstance(keys, bytes) else keys())
        os.close(primary)
        return process.wait(), shown.decode().replace("\r\n", "\n")


def _comes(awaited: str | Path, shown: bytes, seen: int) -> int:
    """Return where the screen continues after what is awaited, 0 while it has not come."""
    if isinstance(awaited, Path):
        return len(shown) if awaited.exists() else 0
    return shown.find(awaited.encode(), seen) + len(awaited) if awaited.encode() in shown[seen:] else 0


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: the other side is closed
        return b""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the example workspace."""
    return Path(shutil.copytree(EXAMPLES / "workspace", tmp_path / "workspace"))


@pytest.fixture(scope="session")
def new_cli(preloaded: Preloaded) -> Callable[[Path, Path], Cli]:
    """Make a `Cli` with the example skills from a folder, which gets a copy of the example workspace, and a home."""

    def make(folder: Path, home: Path) -> Cli:
        workspace = folder / "workspace"
        if not workspace.exists():
            shutil.copytree(EXAMPLES / "workspace", workspace)
        return Cli(workspace, {"BOUGH_HOME": str(home), "BOUGH_SKILL_ROOTS": str(EXAMPLES / "skills")}, preloaded)

    return make


@pytest.fixture
def cli(workspace: Path, bough_home: Path, new_cli: Callable[[Path, Path], Cli]) -> Cli:
    """`bough` in the example workspace, with the example skills and a home of its own."""
    return new_cli(workspace.parent, bough_home)


@pytest.fixture
def slow_skill(tmp_path: Path, cli: Cli) -> Cli:
    """`bough` with one skill whose script says that it runs and then waits for a file `go` in the workspace."""
    folder = tmp_path / "skills" / "wait-long"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: wait-long\ndescription: Wait for the file go.\n---\nRun `scripts/wait.sh`.\n"
    )
    (folder / "scripts" / "wait.sh").write_text(
        "#!/bin/sh\necho started > running\nwhile ! [ -e go ]; do sleep 0.02; done\necho waited\n"
    )
    return cli.having(BOUGH_SKILL_ROOTS=str(tmp_path / "skills"))
