"""`bough worker` as processes that can be killed, forked from one that has imported everything: they start at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from tests.tasks import counting_agent

from bough.settings import Settings
from bough.tasks import TaskBroker
from bough.tasks.stores.backends import open_task_store

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "bough.cli.commands.worker",
        "bough.tasks.serve",
        "bough.tasks.dispatch.dispatcher",
        "procrastinate",
        "bough.conversation",
        "tests.tasks.counting_agent",
    ]
)


class Entry(NamedTuple):
    """A line of the ledger: what was begun, asked or ended, and by which process."""

    text: str
    pid: int


class Workers:
    """Starts `bough worker` processes on one store. What they ask and run is in a ledger outside the store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.url = url
        self.running: list[ForkServerProcess] = []

    def start(self, *options: str, agent: str = "tests.tasks.counting_agent:agent") -> ForkServerProcess:
        """Start a worker that serves an agent."""
        env = {**os.environ, "LEDGER": str(self.ledger), "BOUGH_HOME": str(self.folder / "home")}
        arguments = ["worker", "--store", self.url, "--agents", agent, *options]
        worker = _CONTEXT.Process(target=_work, args=(arguments, env, str(self.folder / "stderr")))
        worker.start()
        self.running.append(worker)
        return worker

    def kill(self, worker: ForkServerProcess) -> None:
        """Kill a worker as `kill -9` does, and wait until there is no such process any more."""
        worker.kill()
        worker.join()
        self.running.remove(worker)

    def terminate(self, worker: ForkServerProcess) -> None:
        """Send SIGTERM."""
        os.kill(worker.pid or 0, signal.SIGTERM)

    async def exit_code(self, worker: ForkServerProcess) -> int | None:
        """Wait until a worker has ended, and return its exit code."""
        await asyncio.to_thread(worker.join)
        return worker.exitcode

    def entries(self) -> list[Entry]:
        """Return what the ledger has."""
        pairs = (line.rsplit("\t", 1) for line in self.ledger.read_text().splitlines())
        return [Entry(text, int(pid)) for text, pid in pairs]

    def lines(self) -> list[str]:
        """Return the texts that the ledger has."""
        return [entry.text for entry in self.entries()]

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        """Wait until the ledger has what is waited for; a worker that ends before is a failure."""
        while not condition(self.lines()):
            assert all(worker.is_alive() for worker in self.running), self.stderr()
            await asyncio.sleep(0.01)

    def stderr(self) -> str:
        """Return what the workers wrote."""
        return (self.folder / "stderr").read_text()

    def close(self) -> None:
        """End what still runs."""
        for worker in self.running:
            worker.kill()
            worker.join()

    async def submit(self, settings: Settings, *inputs: str, **metadata: object) -> tuple[TaskBroker, list[str]]:
        """Submit tasks of the counting agent to be run by other processes."""
        broker = TaskBroker(open_task_store(self.url), settings=settings)
        broker.register_agents([counting_agent.agent])
        return broker, [await broker.submit(text, agent_name="counter", **metadata) for text in inputs]


def _work(arguments: list[str], env: dict[str, str], stderr: str) -> None:
    """Be `bough worker`: with an environment of its own, and nothing of the server's."""
    os.environ.clear()
    os.environ.update(env)
    file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 2)
    from bough.cli.main import run

    sys.exit(run(arguments))
