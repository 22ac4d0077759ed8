"""Two worker processes on one Postgres server: tasks a second, a take-over after kill -9, a cancel of a run elsewhere.

The floor of the rate is bare Procrastinate with two worker processes whose job runs the same agent's conversation, in
the same server; with an empty job it is printed too. `--small` runs everything over little, to see that it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.parse import quote

import procrastinate
from procrastinate import App, PsycopgConnector
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Settings
from bough.events import PostgresEventStore
from bough.tasks import TaskBroker, TaskState
from bough.tasks.stores.backends import open_task_store
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing.postgres import DURABLE, postgres_server
from harness import MIN_ROUNDS, Figure, compare_async

HERE = Path(__file__).parent
WORKERS = 2
CONCURRENCY = 8


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = MIN_ROUNDS
    tasks: int = 200


def send_word(word: str) -> None:
    """Send a word to the benchmark, if there is one."""
    if "BENCH_PORT" in os.environ:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
            to.sendto(word.encode(), ("127.0.0.1", int(os.environ["BENCH_PORT"])))


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer at once. For the prompt `wait`, send `begun`, wait for ever, and send `stopped` when cancelled."""
    prompt = str(messages[0].parts[0])
    if "who" in prompt:
        send_word(str(os.getpid()))
    if "wait" in prompt:
        send_word("begun")
        try:
            await asyncio.Event().wait()
        finally:
            send_word("stopped")
    return ModelResponse([TextPart("done")])


AGENT = AgentSpec(name="trivial", model=FunctionModel(respond), skills=())


class Listener:
    """Receives the words of worker processes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(60)
        self.port = self._socket.getsockname()[1]

    async def receive(self) -> str:
        """Return the next word."""
        return (await asyncio.to_thread(self._socket.recv, 64)).decode()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Processes:
    """Python processes of this benchmark, which end with it."""

    def __init__(self, stack: ExitStack, home: Path, listener: Listener) -> None:
        self._stack = stack
        self._env = {**os.environ, "BOUGH_HOME": str(home), "BENCH_PORT": str(listener.port)}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start one."""
        process = subprocess.Popen([sys.executable, *command], cwd=HERE, env=self._env, stderr=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        return process

    def worker(self, url: str) -> subprocess.Popen[bytes]:
        """Start `bough worker` with the agent."""
        options = ("--store", url, "--agents", "workers:AGENT", "--concurrency", str(CONCURRENCY))
        return self.start(str(Path(sys.executable).with_name("bough")), "worker", *options)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def main(sizes: Sizes) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(postgres_server(DURABLE))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd())))
        listener = Listener()
        stack.callback(listener.close)
        processes = Processes(stack, folder / "home", listener)
        tasks = open_task_store(url)
        broker = TaskBroker(tasks, settings=Settings.load(home=folder / "home", env={}, cwd=folder))
        broker.register_agents([AGENT])
        await measure_rate(broker, processes, url, sizes)
        await measure_cancels(broker, processes, url, listener, sizes)
        await measure_take_overs(broker, tasks, processes, url, listener, sizes)
        await broker.aclose()
        await tasks.aclose()


async def measure_rate(broker: TaskBroker, processes: Processes, url: str, sizes: Sizes) -> None:
    """Report tasks a second beside the engine's own jobs that run the same agent, and beside empty ones."""
    async with AsyncExitStack() as stack:
        workers = [processes.worker(url) for _ in range(WORKERS)]
        bare = await stack.enter_async_context(BareEngine.open(url))
        engines = [processes.start(str(Path(__file__)), "--engine", url) for _ in range(WORKERS)]
        for floor, kind in (("bare Procrastinate and its agent", "agent"), ("bare Procrastinate", "empty")):
            await compare_async(
                f"workers: tasks a second, two processes, to {floor}",
                lambda: _run_tasks(broker, sizes.tasks),
                lambda kind=kind: bare.run(kind, sizes.tasks),
                unit="1/s",
                per=sizes.tasks,
                rounds=sizes.rounds,
            )
        for process in (*workers, *engines):
            _end(process)


async def _run_tasks(broker: TaskBroker, count: int) -> None:
    ids = await asyncio.gather(*(broker.submit("do it", agent_name="trivial") for _ in range(count)))
    ended = await asyncio.gather(*map(broker.wait, ids))
    assert {task.state for task in ended} == {TaskState.COMPLETED}


class BareEngine:
    """Procrastinate with tables of its own, and jobs that are counted when they end.

    Args:
        app: Open.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._log: PostgresEventStore | None = None

    @classmethod
    def open(cls, url: str) -> _OpenEngine:
        """Return a context manager that creates the tables and opens the engine."""
        return _OpenEngine(url)

    async def run(self, kind: str, count: int) -> None:
        """Submit `count` jobs and wait until all have run."""
        job = self._app.configure_task(f"bench.{kind}")
        await asyncio.gather(*(job.defer_async() for _ in range(count)))
        while await self._count_left():
            await asyncio.sleep(0.002)

    async def _count_left(self) -> int:
        [row] = await self._app.connector.execute_query_all_async("select count(*) as n from procrastinate_jobs")
        return int(row["n"])


class _OpenEngine:
    def __init__(self, url: str) -> None:
        self._stack = AsyncExitStack()
        self._url = url

    async def __aenter__(self) -> BareEngine:
        app = make_app(self._url)
        await self._stack.enter_async_context(app.open_async())
        await app.connector.execute_query_async("create schema if not exists bare_engine")
        await app.schema_manager.apply_schema_async()
        return BareEngine(app)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


def make_app(url: str) -> App:
    """Return Procrastinate on a schema of its own."""
    separator = "&" if "?" in url else "?"
    address = f"{url}{separator}options={quote('-c search_path=bare_engine')}"
    return App(connector=PsycopgConnector(conninfo=address, min_size=1, max_size=4))


async def run_engine(url: str) -> None:
    """Run as a worker process of bare Procrastinate."""
    app = make_app(url)
    with tempfile.TemporaryDirectory() as name:
        settings = Settings.load(home=name, env={}, cwd=Path(name))
        log = await PostgresEventStore.open(url)

        @app.task(name="bench.empty")
        async def empty() -> None:
            return

        @app.task(name="bench.agent")
        async def agent() -> None:
            conversation = await AsyncConversation.create(AGENT, workspace=name, store=log, settings=settings)
            async with conversation:
                await conversation.send_message("do it")
                await conversation.run()

        async with app.open_async():
            while True:
                try:
                    await app.run_worker_async(
                        concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False
                    )
                except procrastinate.exceptions.ConnectorException:  # its tables do not exist yet
                    await asyncio.sleep(0.1)


async def measure_cancels(broker: TaskBroker, processes: Processes, url: str, listener: Listener, sizes: Sizes) -> None:
    """Report how long it takes from a cancel here to the end of the run in another process."""
    worker = processes.worker(url)
    taken = [await _cancel_one(broker, listener) for _ in range(max(MIN_ROUNDS, sizes.rounds))]
    Figure.of("workers: cancel of a run in another process", taken, unit="ms").report()
    _end(worker)


async def _cancel_one(broker: TaskBroker, listener: Listener) -> float:
    task_id = await broker.submit("wait", agent_name="trivial")
    await _expect(listener, "begun")
    start = perf_counter()
    await broker.cancel(task_id)
    await _expect(listener, "stopped")
    return (perf_counter() - start) * 1e3


async def measure_take_overs(
    broker: TaskBroker, tasks: RelationalTaskStore, processes: Processes, url: str, listener: Listener, sizes: Sizes
) -> None:
    """Report how long it takes from the death of a worker until another one of this machine runs its task."""
    taken: list[float] = []
    for _ in range(max(MIN_ROUNDS, sizes.rounds)):
        task_id = await broker.submit("wait", agent_name="trivial")
        first = processes.worker(url)
        await _expect(listener, "begun")
        second = processes.worker(url)
        await _until_runs(broker, listener, second)
        start = perf_counter()
        _end(first)
        await _expect(listener, "begun")
        taken.append(perf_counter() - start)
        task = await tasks.get(task_id)
        assert task is not None
        assert task.attempts == 2
        await broker.cancel(task_id)
        await _expect(listener, "stopped")
        _end(second)
    Figure.of("workers: take-over after kill -9, this machine", taken, unit="s").report()


async def _until_runs(broker: TaskBroker, listener: Listener, worker: subprocess.Popen[bytes]) -> None:
    """Return once this very worker has run a task."""
    while True:
        await broker.submit("who", agent_name="trivial")
        if await listener.receive() == str(worker.pid):
            return


async def _expect(listener: Listener, word: str) -> None:
    received = await listener.receive()
    assert received == word, received


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="see that it runs")
    parser.add_argument("--engine", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    asyncio.run(run_engine(options.engine) if options.engine else main(Sizes(tasks=6) if options.small else Sizes()))
