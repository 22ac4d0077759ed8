"""Servers under load: conversations at once, readers of one run, idle conversations, two servers against one.

The floor of the rate is one conversation after another on the same server; that of two servers on one Postgres is one
of them alone, in turns. Readers are a process of their own, and nothing else runs beside them. `--soak` continues the
load for twenty minutes, and compares the memory at its end with that of its first minute; without it everything takes
some three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import httpx2

from bough.testing import OpenAIServer
from bough.testing.openai_server import Hang
from bough.testing.postgres import DURABLE, postgres_server
from harness import MIN_ROUNDS, ON_DISK, Figure, in_turns_async, print_note

MINUTE = 60.0
SOAK_SECONDS = 1200.0
SMALL_CACHE = 1 << 20
"""Bytes of folded states: a few hundred conversations, the others are evicted."""

LOAD_CACHE = 8 << 20
"""Bytes of folded states under load: the first minute fills them, so that what grows after it is not this cache."""

PAUSE_SECONDS = 0.1
"""The pause between two events that many read, as in a run with ten events a second."""

_SENT = re.compile(rb'"sent\\": ([0-9.]+)')

TWO_AT_ONCE = 50
"""Conversations at once for two servers: enough to keep one of them busy."""

KEPT = 300
"""More conversations than a process keeps prepared agents of."""


class RunningServer(NamedTuple):
    """A running server."""

    url: str
    pid: int


def measure_resident_mib(pids: list[int]) -> float:
    """Return the resident memory of some processes."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    return total / 1024


async def converse(clients: list[httpx2.AsyncClient], until: float) -> tuple[int, int]:
    """Run conversations one after another until a moment; return how many, and how many were refused."""
    done = refused = 0
    for client in itertools.cycle(clients):
        if time.monotonic() >= until:
            return done, refused
        made = await client.post("/api/conversations", json={"agent": {"model": "offline"}, "initial_message": "hello"})
        if made.status_code != 201:
            refused += 1
            continue
        ran = await client.post(f"/api/conversations/{made.json()['id']}/run", json={"wait": 60})
        done, refused = done + (ran.status_code == 200), refused + (ran.status_code != 200)
    raise AssertionError("a cycle has no end")


async def measure_rate(clients: list[httpx2.AsyncClient], at_once: int, seconds: float) -> tuple[float, int]:
    """Return the rate of conversations, `at_once` at a time, and how many requests were refused."""
    begun = time.monotonic()
    results = await asyncio.gather(*(converse(clients, begun + seconds) for _ in range(at_once)))
    taken = time.monotonic() - begun
    return sum(done for done, _ in results) / taken, sum(refused for _, refused in results)


class Readers:
    """Readers of streams in a process of their own, so that their own work does not count as the server's lag.

    Args:
        ids: The conversation of each.
    """

    def __init__(self, url: str, ids: list[str]) -> None:
        self._here, there = Pipe()
        self._process = Process(target=_read_all, args=(url, ids, there))
        self._process.start()
        there.close()  # so that the end of the process is noticed here

    async def __aenter__(self) -> Readers:
        await asyncio.to_thread(self._here.recv)  # every reader has caught up
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.is_alive():
            await self.lags()

    async def lags(self) -> list[float]:
        """End the readers; return the lag of each event at each reader, in seconds."""
        self._here.send(None)
        found: list[float] = await asyncio.to_thread(self._here.recv)
        await asyncio.to_thread(self._process.join)
        return found


def _read_all(url: str, ids: list[str], connection: Connection) -> None:
    asyncio.run(_read_until_stopped(url, ids, connection))


async def _read_until_stopped(url: str, ids: list[str], connection: Connection) -> None:
    lags: list[float] = []
    ready = asyncio.Semaphore(0)
    host, port = url.removeprefix("http://").split(":")
    reading = [asyncio.create_task(_read(host, int(port), id, lags, ready)) for id in ids]
    for _ in reading:
        await ready.acquire()
    connection.send(None)
    await asyncio.to_thread(connection.recv)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    connection.send(lags)


async def _read(host: str, port: int, id: str, lags: list[float], ready: asyncio.Semaphore) -> None:
    """Read a stream, and note how late each event came."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /api/conversations/{id}/events/stream?after=now HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    async for line in reader:
        if line.startswith(b"event: caught_up"):
            ready.release()
        if b'"kind":"UserMessage"' in line and (sent := _SENT.search(line)) is not None:
            lags.append(time.time() - float(sent[1]))


def open_client(url: str) -> httpx2.AsyncClient:
    """Return a client without bounds of its own."""
    return httpx2.AsyncClient(base_url=url, timeout=None, limits=httpx2.Limits(max_connections=None), trust_env=False)


async def measure_load(server: RunningServer, given: argparse.Namespace) -> list[Figure]:
    """Drive a server and return the figures."""
    pids, client = [server.pid], open_client(server.url)
    async with client:
        one, _ = await measure_rate([client], 1, given.seconds / 4)
        start = measure_resident_mib(pids)  # behind what is made once
        id = (await client.post("/api/conversations", json={"agent": {"model": "offline"}})).json()["id"]
        async with Readers(server.url, [id] * given.readers) as readers:
            reading = measure_resident_mib(pids)
            for _ in range(given.events):
                text = json.dumps({"sent": time.time()})
                await client.post(f"/api/conversations/{id}/events", json={"content": text})
                await asyncio.sleep(PAUSE_SECONDS)
            lags = await readers.lags()
        many, begun = asyncio.create_task(measure_rate([client], given.conversations, given.seconds)), time.monotonic()
        middle = 0.0
        while not many.done():
            if time.monotonic() - begun < min(MINUTE, given.seconds / 2):
                middle = measure_resident_mib(pids)
            await asyncio.wait({many}, timeout=1)
        all_at_once, refused = await many
        end = measure_resident_mib(pids)
    lags.sort()
    print_note(f"{refused} requests refused; {len(lags)} of {given.events * given.readers} events read")
    n, grown = len(lags), round(end / middle, 3) if middle else None
    late = lags[int(n * 0.99)] * 1000 if lags else 0.0
    name = f"server: {given.conversations} conversations at once, to one after another"
    return [
        Figure(name, round(all_at_once, 2), "1/s", round(one, 2), round(all_at_once / one, 3) if one else None, 1),
        Figure(f"server: {given.readers} readers of one run, p99 of an event", round(late, 1), "ms", None, None, n),
        Figure("server: memory of a reader", divide_into_kib(reading - start, given.readers), "KiB", None, None, 1),
        Figure(
            f"server: memory after {given.seconds:g} s of load, to its first minute", round(end, 1), "MiB",
            round(middle, 1), grown, 1,
        ),
    ]  # fmt: skip


async def measure_idle(server: RunningServer, count: int) -> list[Figure]:
    """Measure the memory of finished conversations: when they are evicted, and when each has a stream of its own."""
    async with open_client(server.url) as client:
        await run_to_end(client, max(count, KEPT))  # so that caches are full, and objects that exist once are made
        before = measure_resident_mib([server.pid])
        ids = await run_to_end(client, count)
        after = measure_resident_mib([server.pid])
        async with Readers(server.url, ids):
            reading = measure_resident_mib([server.pid])
    evicted, followed = divide_into_kib(after - before, count), divide_into_kib(reading - after, count)
    return [
        Figure("server: memory of an idle conversation, evicted", evicted, "KiB", None, None, count),
        Figure("server: memory of an idle conversation with a stream of its own", followed, "KiB", None, None, count),
    ]


async def run_to_end(client: httpx2.AsyncClient, count: int) -> list[str]:
    """Run conversations to their end, read each once, and return their ids."""
    ids: list[str] = []
    for _ in range(count):
        made = await client.post("/api/conversations", json={"agent": {"model": "offline"}, "initial_message": "hello"})
        id = str(made.raise_for_status().json()["id"])
        (await client.post(f"/api/conversations/{id}/run", json={"wait": 60})).raise_for_status()
        (await client.get(f"/api/conversations/{id}")).raise_for_status()
        ids.append(id)
    return ids


async def measure_two_servers(servers: list[RunningServer], given: argparse.Namespace) -> list[Figure]:
    """Measure two servers on one database against one of them, in turns, and an interrupt that comes from the other."""
    async with AsyncExitStack() as closing:
        clients = [await closing.enter_async_context(open_client(server.url)) for server in servers]
        seconds, at_once = given.seconds / 10, min(given.conversations, TWO_AT_ONCE)

        async def both() -> float:
            return (await measure_rate(clients, at_once, seconds))[0]

        async def one() -> float:
            return (await measure_rate(clients[:1], at_once, seconds))[0]

        rates = await in_turns_async(both, one, rounds=MIN_ROUNDS)
        with OpenAIServer([Hang()] * MIN_ROUNDS) as model:
            taken = [await interrupt(clients, model) for _ in range(MIN_ROUNDS)]
    return [
        Figure.of("server: two servers on one Postgres, to one", *rates, unit="1/s"),
        Figure.of("server: interrupt from another server, until the run has ended", taken, unit="ms"),
    ]


async def interrupt(clients: list[httpx2.AsyncClient], model: OpenAIServer) -> float:
    """Return for how many milliseconds a run of one server continues after an interrupt on another server."""
    running, other = clients
    asked = len(model.received)
    agent = {"model": "openai:test", "base_url": model.url, "workspace_access": "none"}
    body = {"agent": agent, "initial_message": "go", "run": True}
    made = (await running.post("/api/conversations", json=body)).raise_for_status().json()
    while len(model.received) == asked:
        await asyncio.sleep(0.01)
    begun = time.perf_counter()
    path = f"/api/conversations/{made['id']}/interrupt"
    (await other.post(path, params={"wait": True})).raise_for_status()
    return (time.perf_counter() - begun) * 1000


def divide_into_kib(mib: float, number: int) -> float:
    """Return the size of each of `number` parts, in KiB."""
    return round(max(mib, 0) * 1024 / max(number, 1), 2)


@contextmanager
def serve(home: Path, store: str | None = None, *, cache_bytes: int = 256 << 20) -> Generator[RunningServer]:
    """Start a server with a home of its own, yield it, and end it."""
    home.mkdir()
    limits = "{requests_per_second: 1000000, runs: 100000, streams: 100000}"
    (home / "bough.yaml").write_text(f"server: {{limits: {limits}, cache_bytes: {cache_bytes}}}\n")
    command = [Path(sys.executable).with_name("bough"), "serve", "--port", "0", "--json", "--home", home]
    command += [] if store is None else ["--store", store]
    environment = os.environ | {"BOUGH_SECRET_KEY": "k" * 40}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        try:
            yield RunningServer(json.loads(server.stdout.readline())["data"]["url"], server.pid)
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--soak", action="store_true", help="twenty minutes of load")
    given = parser.parse_args()
    if given.soak:
        given.seconds = SOAK_SECONDS
    with tempfile.TemporaryDirectory(dir=ON_DISK) as name:
        home = Path(name)
        with serve(home / "load", cache_bytes=LOAD_CACHE) as server:
            report(asyncio.run(measure_load(server, given)))
        with serve(home / "idle", cache_bytes=SMALL_CACHE) as server:
            report(asyncio.run(measure_idle(server, given.idle)))
        given.seconds = min(given.seconds, MINUTE)
        with ExitStack() as stack:
            url = stack.enter_context(postgres_server(DURABLE))
            servers = [stack.enter_context(serve(home / name, url)) for name in ("one", "two")]
            report(asyncio.run(measure_two_servers(servers, given)))


def report(figures: list[Figure]) -> None:
    """Print figures."""
    for figure in figures:
        figure.report()


if __name__ == "__main__":
    main()
