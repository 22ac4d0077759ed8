"""Many at once: conversations that run, readers of one stream; memory of the server before, between and after."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def converse(client: httpx2.AsyncClient, until: float) -> int:
    """Run conversations one after another until a moment, and return how many."""
    done = 0
    while time.monotonic() < until:
        made = await client.post("/api/conversations", json={"agent": {"model": "offline"}, "initial_message": "hello"})
        if made.status_code != 201:
            await asyncio.sleep(1)
            continue
        await client.post(f"/api/conversations/{made.json()['id']}/run", json={"wait": 60})
        done += 1
    return done


async def read(client: httpx2.AsyncClient, id: str, lags: list[float], ready: asyncio.Semaphore) -> None:
    """Read a stream, and note how late each event came."""
    async with client.stream("GET", f"/api/conversations/{id}/events/stream", params={"after": "now"}) as answer:
        ready.release()
        async for line in answer.aiter_lines():
            if line.startswith("data:") and '"kind":"UserMessage"' in line:
                sent = json.loads(json.loads(line[5:])["content"][0]["text"])["sent"]
                lags.append(time.time() - sent)


async def load(url: str, pid: int, given: argparse.Namespace) -> dict[str, float]:
    """Drive the server and return the figures."""
    limits = httpx2.Limits(max_connections=None)
    figures = {"rss_start_mib": resident_mib(pid)}
    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client:
        until = time.monotonic() + given.seconds
        workers = [asyncio.create_task(converse(client, until)) for _ in range(given.conversations)]
        id = (await client.post("/api/conversations", json={"agent": {"model": "offline"}})).json()["id"]
        lags: list[float] = []
        ready = asyncio.Semaphore(0)
        readers = [asyncio.create_task(read(client, id, lags, ready)) for _ in range(given.readers)]
        for _ in readers:
            await ready.acquire()
        while time.monotonic() < until:
            text = json.dumps({"sent": time.time()})
            await client.post(f"/api/conversations/{id}/events", json={"content": text})
            await asyncio.sleep(1)
        figures["rss_middle_mib"] = resident_mib(pid)
        figures["conversations"] = float(sum(await asyncio.gather(*workers)))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    lags.sort()
    figures["events_read"] = float(len(lags))
    figures["lag_p99_ms"] = lags[int(len(lags) * 0.99)] * 1000 if lags else 0.0
    figures["rss_end_mib"] = resident_mib(pid)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    bough = Path(sys.executable).with_name("bough")
    with tempfile.TemporaryDirectory() as home:
        limits = "{requests_per_second: 100000, runs: 100000, streams: 100000}"
        (Path(home) / "bough.yaml").write_text(f"server: {{limits: {limits}}}\n")
        command = [bough, "serve", "--port", "0", "--json", "--home", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["data"]["url"]
            figures = asyncio.run(load(url, server.pid, given))
            server.terminate()
    print(json.dumps({"benchmark": "load", **{name: round(value, 1) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
