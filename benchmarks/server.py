"""What the server costs beside a bare route: GET, POST of a message, POST of a fork, with short and long logs."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx2

from bough.config import Settings
from bough.events import open_store
from bough.events.model import UserMessage
from bough.server.app import create_app
from bough.server.serve import listen, serve
from bough.server.settings import ServerSettings, TenantLimits

ROUNDS = 300


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Serve in a thread, with a bare route beside the others."""
    options = ServerSettings(shutdown_seconds=1, limits=TenantLimits(requests_per_second=1e9))
    app = create_app(settings, server=options)

    @app.get("/bare")
    async def bare() -> dict[str, bool]:
        return {"bare": True}

    listening, ready = listen("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(app, options, listening, ready=ready.set)))
    thread.start()
    ready.wait(60)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    app.state.stop()
    thread.join()


def milliseconds(do: Callable[[], httpx2.Response]) -> float:
    """Return the median time of a request."""
    times: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        answer = do()
        times.append((time.perf_counter() - started) * 1000)
        assert answer.is_success, answer.text
    return statistics.median(times)


async def fill(settings: Settings, cid: UUID, events: int) -> None:
    """Append messages until a conversation has that many events."""
    store = await open_store(settings.store)
    head = (await store.get(cid)).head
    for start in range(head, events, 500):
        await store.append(cid, [UserMessage.text(f"message {n}") for n in range(start, min(start + 500, events))])
    await store.aclose()


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        settings = Settings.load(home=home, env={}, cwd=Path(home))
        with running(settings) as url, httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
            bare = milliseconds(lambda: client.get("/bare"))
            figures = {"bare_ms": bare}
            for events in (1, 10_000):
                id = client.post("/api/conversations", json={"agent": {"model": "offline"}}).json()["id"]
                asyncio.run(fill(settings, UUID(id), events))
                path = f"/api/conversations/{id}"
                figures[f"get_{events}_ms"] = milliseconds(lambda path=path: client.get(path))
                figures[f"fork_{events}_ms"] = milliseconds(lambda path=path: client.post(f"{path}/fork"))
                message = {"content": "hello"}
                figures[f"message_{events}_ms"] = milliseconds(
                    lambda path=path, message=message: client.post(f"{path}/events", json=message)
                )
            print(json.dumps({"benchmark": "server", **{name: round(value, 3) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
