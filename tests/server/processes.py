"""Servers and workers as processes on one store, and readers that come back after a lost connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx2

Until: TypeAlias = Callable[[dict[str, Any]], bool]
"""Whether an event is the last one that a reader reads."""

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.05
"""Between two looks at a server by a client that may not ask as often as it can."""

_LISTENING = "listening on "


class Process:
    """A server or a worker; its stderr is in a file."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            program = [sys.executable, "-m", "bough.cli.main", *command]
            self.popen = subprocess.Popen(program, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr)

    def wait_for(self, text: str) -> str:
        """Return the line of stderr that has a text; a process that ends before is a failure."""
        while True:
            for line in self.log.read_text().splitlines():
                if text in line:
                    return line
            assert self.popen.poll() is None, self.log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.popen.kill()
        self.popen.wait()


class Cluster:
    """Processes on one store, each with the same home; agents are those of `tests.tasks.counting_agent`.

    Attributes:
        ledger: Where the counting agent writes what it does.
    """

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder / 'log.db'}"
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.processes: list[Process] = []

    def start(self, *command: str, **env: str) -> Process:
        """Start a process of the command line."""
        whole = {
            **os.environ,
            "BOUGH_HOME": str(self.folder / "home"),
            "BOUGH_SECRET_KEY": "k" * 40,
            "PYTHONPATH": str(ROOT),
            "LEDGER": str(self.ledger),
            **env,
        }
        log = self.folder / f"{len(self.processes)}.stderr"
        process = Process([*command, "--store", self.store], whole, log)
        self.processes.append(process)
        return process

    def serve(self, *options: str, port: int = 0, **env: str) -> tuple[Process, str]:
        """Start a server, and return it with its address once it listens."""
        agents = ("--agents", "tests.tasks.counting_agent:agent")
        process = self.start("serve", "--port", str(port), *agents, *options, **env)
        return process, process.wait_for(_LISTENING).split(_LISTENING)[1].strip()

    def work(self, *options: str, **env: str) -> Process:
        """Start a worker, and return it once it takes tasks."""
        process = self.start("worker", "--agents", "tests.tasks.counting_agent:agent", *options, **env)
        process.wait_for("queues")
        return process

    def hold_at(self, step: int) -> None:
        """Have the counting agent stay in a step."""
        Path(f"{self.ledger}.gate").write_text(str(step))

    def let_go(self) -> None:
        """Let the counting agent continue."""
        Path(f"{self.ledger}.gate").unlink()

    def wait_for(self, line: str) -> None:
        """Return when the ledger has a line."""
        while line not in self.lines():
            time.sleep(0.01)

    def lines(self) -> list[str]:
        """Return what the ledger has, without the processes that wrote it."""
        return [line.split("\t")[0] for line in self.ledger.read_text().splitlines()]

    def writers(self, text: str) -> set[int]:
        """Return the processes that wrote lines which begin with a text."""
        return {int(line.split("\t")[1]) for line in self.ledger.read_text().splitlines() if line.startswith(text)}

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.popen.poll() is None:
                process.kill()


def client_of(url: str) -> httpx2.Client:
    """Return a client that waits long."""
    return httpx2.Client(base_url=url, timeout=120, trust_env=False)


class Reader:
    """Follows a conversation in a thread of its own, and comes back with the last id that it got.

    Attributes:
        events: Data of the events, in the order of their arrival; `deltas` those of the pieces of text.
        servers_back: Set: after a lost connection it may try again.
    """

    def __init__(self, url: str, conversation: str, *, form: str = "ours", until: Until | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.deltas: list[str] = []
        self.servers_back = threading.Event()
        self.caught_up = threading.Event()
        self.got_delta = threading.Event()
        self._path = f"{url}/api/conversations/{conversation}/events/stream"
        self._form = form
        self._last_id: str | None = None
        self._until = until or is_end_of_task
        self._thread = threading.Thread(target=self._follow, name="reader", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Return when it has got the end of the run."""
        self._thread.join(120)
        assert not self._thread.is_alive(), [event.get("kind") for event in self.events]

    def _follow(self) -> None:
        while True:
            try:
                for name, id, data in self._frames():
                    if self._take(name, id, data):
                        return
            except httpx2.TransportError:
                pass
            self.servers_back.wait()

    def _take(self, name: str, id: str | None, data: dict[str, Any]) -> bool:
        """Keep a frame; whether it is the last one."""
        if name == "caught_up":
            self.caught_up.set()
        if name == "delta":
            self.deltas.append(data["text"])
            self.got_delta.set()
        if name != "event":
            return False
        self.events.append(data)
        self._last_id = id or self._last_id
        return self._until(data)

    def _frames(self) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        with (
            httpx2.Client(timeout=None, trust_env=False) as client,
            client.stream("GET", self._path, params={"form": self._form}, headers=headers) as answer,
        ):
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, colon, value = line.partition(": ")
                if colon and name:
                    fields[name] = value
                elif not line and "data" in fields:
                    yield fields["event"], fields.get("id"), json.loads(fields["data"])
                    fields = {}


def is_end_of_task(event: dict[str, Any]) -> bool:
    """Whether an event is the end of a task, in either form."""
    changed = event.get("value", event) if event.get("key") == "bough.TaskChanged" else event
    return isinstance(changed, dict) and changed.get("state") in ("completed", "failed", "cancelled")
