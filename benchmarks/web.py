"""The web page in a real Chromium: first paints beside their routes, arrivals, memory, and bytes of a first visit.

It needs Debian's package `chromium` and the Python package `playwright`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from time import perf_counter, time
from typing import Any
from uuid import UUID

import httpx2
from playwright.sync_api import BrowserContext, Page

from harness import ON_DISK, ROUNDS, Figure, in_turns
from storm import Server, make_event, open_browser, serve_conversations

_PAINT = """() => new Promise((resolve) => {
    const look = () => {
        const [paint] = performance.getEntriesByName('first-contentful-paint');
        if (paint) resolve(paint.startTime);
        else requestAnimationFrame(look);
    };
    look();
})"""
_WATCH = """() => {
    window.shown = {};
    new MutationObserver(() => {
        for (const row of document.querySelectorAll('#log [id^=e]')) window.shown[row.id] ??= Date.now();
    }).observe(document.getElementById('log'), { childList: true, subtree: true });
}"""
_ARRIVALS = 40
_PERCENTILE = 0.95


def measure_paint(page: Page, url: str) -> float:
    """Return the milliseconds from the start of a navigation to its first paint."""
    page.goto("about:blank")
    page.goto(url, wait_until="commit")
    return page.evaluate(_PAINT)


def measure_route(client: httpx2.Client, url: str) -> float:
    """Return the milliseconds of a request of the same HTML by a bare client."""
    start = perf_counter()
    client.get(url, headers={"Accept": "text/html"}).raise_for_status()
    return (perf_counter() - start) * 1e3


def compare_paints(name: str, page: Page, client: httpx2.Client, url: str) -> tuple[list[float], list[float]]:
    """Print the figure of a screen's first paint beside its route, and return both."""
    paints, routes = in_turns(lambda: measure_paint(page, url), lambda: measure_route(client, url))
    Figure.of(f"web: first paint of {name}, to its route", paints, routes, unit="ms").report()
    return paints, routes


def measure_arrivals(server: Server, page: Page, id: UUID) -> float:
    """Return the 95th percentile of the milliseconds from an append to its row, at twenty events a second."""

    async def append() -> dict[int, float]:
        head = (await server.services.store.get(id)).head
        moments: dict[int, float] = {}
        for seq in range(head, head + _ARRIVALS):
            moments[seq] = time() * 1e3
            await server.services.store.append(id, [make_event(seq)])
            await asyncio.sleep(1 / 20)
        return moments

    moments = server.call(append())
    page.wait_for_function(f"() => window.shown['e{max(moments)}']")
    shown: dict[str, float] = page.evaluate("window.shown")
    waits = sorted(shown[f"e{seq}"] - moment for seq, moment in moments.items())
    return waits[int(_PERCENTILE * (len(waits) - 1))]


def measure_heap(context: BrowserContext, page: Page) -> float:
    """Return the megabytes of the scripts' memory after a collection."""
    session: Any = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "JSHeapUsedSize") / 1e6


def measure_first_visit(context: BrowserContext, url: str) -> float:
    """Return the kilobytes that the first visit of a screen receives, compressed, with headers."""
    page = context.new_page()
    sizes: list[float] = []

    def note(event: dict[str, Any]) -> None:
        sizes.append(event["encodedDataLength"])

    session: Any = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", note)
    page.goto(url)
    page.close()
    return sum(sizes) / 1e3


async def make_branches(server: Server, id: UUID, branches: int) -> None:
    """Fork a conversation until its tree has so many branches."""
    for number in range(branches - 1):
        await server.services.store.fork(id, at=1 + number % 400)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="of the long conversation")
    parser.add_argument("--branches", type=int, default=1000, help="of the tree")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=ON_DISK) as folder,
        open_browser() as open_context,
        serve_conversations(Path(folder), options.events, 10_000) as server,
        httpx2.Client(timeout=60, trust_env=False) as client,
    ):
        long, shorter, tree = server.ids
        context = open_context()
        page = context.new_page()
        paints, routes = compare_paints("10000 events", page, client, f"{server.url}/c/{shorter}")
        beyond = [paint - 1.5 * route for paint, route in zip(paints, routes, strict=True)]
        Figure.of("web: first paint of 10000 events, beyond 1.5 times its route", beyond, unit="ms").report()
        compare_paints(f"{options.events} events", page, client, f"{server.url}/c/{long}")
        server.call(make_branches(server, tree, options.branches))
        compare_paints(f"a tree of {options.branches}", page, client, f"{server.url}/c/{tree}/tree")
        visits = [measure_first_visit(open_context(), f"{server.url}/c/{shorter}") for _ in range(ROUNDS)]
        Figure.of("web: first visit of a timeline, compressed", visits, unit="KB").report()
        page.goto(f"{server.url}/c/{long}")
        page.evaluate(_WATCH)
        arrivals = [measure_arrivals(server, page, long) for _ in range(ROUNDS)]
        Figure.of("web: an event on the screen at 20 a second, 95th percentile", arrivals, unit="ms").report()
        heaps = [measure_heap(context, page) for _ in range(ROUNDS)]
        Figure.of(f"web: memory of the scripts with {options.events} events", heaps, unit="MB").report()


if __name__ == "__main__":
    main()
