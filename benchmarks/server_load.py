"""Many at once: conversations that run, readers of one stream; memory of the servers before, between and after.

The floor of the rate is one conversation after another on the same servers. With a Postgres database as `--store`,
several servers share it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from harness import Figure, note


def resident_mib(pids: list[int]) -> float:
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


async def rate(clients: list[httpx2.AsyncClient], at_once: int, seconds: float) -> tuple[float, int]:
    """Return conversations a second of some at once, and how many requests were refused."""
    begun = time.monotonic()
    results = await asyncio.gather(*(converse(clients, begun + seconds) for _ in range(at_once)))
    taken = time.monotonic() - begun
    return sum(done for done, _ in results) / taken, sum(refused for _, refused in results)


async def read(client: httpx2.AsyncClient, id: str, lags: list[float], ready: asyncio.Semaphore) -> None:
    """Read a stream, and note how late each event came."""
    async with client.stream("GET", f"/api/conversations/{id}/events/stream", params={"after": "now"}) as answer:
        ready.release()
        async for line in answer.aiter_lines():
            if line.startswith("data:") and '"kind":"UserMessage"' in line:
                sent = json.loads(json.loads(line[5:])["content"][0]["text"])["sent"]
                lags.append(time.time() - sent)


async def load(urls: list[str], pids: list[int], given: argparse.Namespace) -> list[Figure]:
    """Drive the servers and return the figures."""
    limits = httpx2.Limits(max_connections=None)
    start = resident_mib(pids)
    options = {"timeout": None, "limits": limits, "trust_env": False}
    clients = [httpx2.AsyncClient(base_url=url, **options) for url in urls]
    try:
        one, _ = await rate(clients, 1, given.seconds / 4)
        client = clients[0]
        id = (await client.post("/api/conversations", json={"agent": {"model": "offline"}})).json()["id"]
        lags: list[float] = []
        ready = asyncio.Semaphore(0)
        readers = [asyncio.create_task(read(clients[-1], id, lags, ready)) for _ in range(given.readers)]
        for _ in readers:
            await ready.acquire()
        reading = resident_mib(pids)
        many = asyncio.create_task(rate(clients, given.conversations, given.seconds))
        sent, middle = 0, 0.0
        while not many.done():
            text = json.dumps({"sent": time.time()})
            await client.post(f"/api/conversations/{id}/events", json={"content": text})
            sent, middle = sent + 1, middle or resident_mib(pids)
            await asyncio.wait({many}, timeout=1)
        all_at_once, refused = await many
        end = resident_mib(pids)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    finally:
        for each in clients:
            await each.aclose()
    lags.sort()
    note(f"{refused} requests refused; {len(lags)} of {sent * given.readers} events read")
    what, n = f"server x{len(urls)}", len(lags)
    late = lags[int(n * 0.99)] * 1000 if lags else 0.0
    name = f"{what}: {given.conversations} conversations at once, to one after another"
    return [
        Figure(name, round(all_at_once, 2), "1/s", round(one, 2), round(all_at_once / one, 3) if one else None, 1),
        Figure(f"{what}: {given.readers} readers of one run, p99 of an event", round(late, 1), "ms", None, None, n),
        Figure(f"{what}: memory of a reader", _each(reading - start, given.readers), "KiB", None, None, 1),
        Figure(f"{what}: memory after {given.seconds:g} s of load", round(end, 1), "MiB", round(middle, 1), None, 1),
    ]


def _each(mib: float, number: int) -> float:
    return round(max(mib, 0) * 1024 / max(number, 1), 1)


@contextmanager
def served(home: str, store: str | None) -> Iterator[tuple[str, int]]:
    """Start a server, and give its address and process."""
    command = [Path(sys.executable).with_name("bough"), "serve", "--port", "0", "--json", "--home", home]
    command += [] if store is None else ["--store", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["data"]["url"], server.pid
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--store", help="of all servers; without it each has a file of its own")
    given = parser.parse_args()
    if given.servers > 1 and given.store is None:
        parser.error("several servers share a database: give --store")
    with tempfile.TemporaryDirectory() as home, ExitStack() as servers:
        limits = "{requests_per_second: 100000, runs: 100000, streams: 100000}"
        (Path(home) / "bough.yaml").write_text(f"server: {{limits: {limits}}}\n")
        started = [servers.enter_context(served(home, given.store)) for _ in range(given.servers)]
        for figure in asyncio.run(load([url for url, _ in started], [pid for _, pid in started], given)):
            figure.report()


if __name__ == "__main__":
    main()
