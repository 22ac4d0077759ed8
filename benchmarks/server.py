"""What the server costs beside a bare route of the same application: GET, POST of a message, POST of a fork.

The floor of a message is a route that appends one event, that of a fork one that forks the row. A conversation's length
must not show.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2

from bough.events import open_store
from bough.events.model import UserMessage
from bough.server.app import create_app
from bough.server.serve import listen, serve
from bough.server.settings import ServerSettings, TenantLimits
from bough.settings import Settings
from harness import ON_DISK, compare


@contextmanager
def serve_in_thread(settings: Settings) -> Iterator[str]:
    """Serve in a thread, with bare routes beside the others."""
    options = ServerSettings(shutdown_seconds=1, limits=TenantLimits(requests_per_second=1e9))
    app = create_app(settings, server=options)

    @app.get("/bare")
    async def bare() -> dict[str, bool]:
        return {"bare": True}

    @app.post("/bare/{id}/append")
    async def bare_append(id: UUID, body: dict[str, Any]) -> dict[str, int]:
        return {"head": await app.state.services.store.append(id, [UserMessage.text(body["content"])])}

    @app.post("/bare/{id}/fork")
    async def bare_fork(id: UUID) -> dict[str, str]:
        return {"id": str((await app.state.services.store.fork(id)).id)}

    listening, ready = listen("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(app, options, listening, ready=ready.set)))
    thread.start()
    ready.wait(60)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        app.state.stop()
        thread.join()


async def fill(settings: Settings, cid: UUID, events: int) -> None:
    """Append messages until a conversation has that many events."""
    store = await open_store(settings.store)
    head = (await store.get(cid)).head
    for start in range(head, events, 500):
        await store.append(cid, [UserMessage.text(f"message {n}") for n in range(start, min(start + 500, events))])
    await store.aclose()


def repeat(send: Callable[[], httpx2.Response], times: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(times):
            answer = send()
            assert answer.is_success, answer.text

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=50, help="of each side in a round")
    parser.add_argument("--events", type=int, nargs="+", default=[100, 10_000])
    given = parser.parse_args()
    message = {"content": "hello"}
    with tempfile.TemporaryDirectory(dir=ON_DISK) as home:
        settings = Settings.load(home=home, env={}, cwd=Path(home))
        with serve_in_thread(settings) as url, httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:

            def measure(name: str, send: Callable[[], httpx2.Response], floor: Callable[[], httpx2.Response]) -> None:
                sides = repeat(send, given.requests), repeat(floor, given.requests)
                compare(name, *sides, unit="ms", per=given.requests)

            for events in given.events:
                id = client.post("/api/conversations", json={"agent": {"model": "offline"}}).json()["id"]
                asyncio.run(fill(settings, UUID(id), events))
                path = f"/api/conversations/{id}"
                client.get(path).raise_for_status()
                measure(
                    f"server: GET conversation of {events} events, to a bare route",
                    lambda path=path: client.get(path),
                    lambda: client.get("/bare"),
                )
                measure(
                    f"server: POST fork of {events} events, to a route that forks the row",
                    lambda path=path: client.post(f"{path}/fork", json={}),
                    lambda id=id: client.post(f"/bare/{id}/fork"),
                )
                measure(
                    f"server: POST message to {events} events, to a route that appends",
                    lambda path=path: client.post(f"{path}/events", json=message),
                    lambda id=id: client.post(f"/bare/{id}/append", json=message),
                )


if __name__ == "__main__":
    main()
