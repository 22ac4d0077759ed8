"""A storm on the web page, in a real Chromium: 100,000 events in one conversation, and twenty more a second.

While events arrive, the reader resizes the window, hides the tab and shows it again, jumps and scrolls, and has three
conversations open. Counts are asserted: elements, requests, rows shown twice or never, and whether the place that is
read stayed. Times are printed beside those of the bare route of the same rows, because a time alone shows the machine.

It needs Debian's package `chromium` and the Python package `playwright`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar
from uuid import UUID

import httpx2
from playwright.sync_api import BrowserContext, Page, sync_playwright

from bough.events.model import Event, ModelResponded, UserMessage
from bough.server.app import create_app
from bough.server.serve import listen, serve
from bough.server.services import Services
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.web.page import mount
from harness import ON_DISK, Figure, print_note

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)
MAX_ELEMENTS_A_SCREEN = 400
MAX_CHUNKS = 12
CONVERSATIONS = 3
_BATCH = 5000
T = TypeVar("T")


@dataclass
class Server:
    """A server in a thread of its own, with one conversation of many events and two short ones."""

    url: str
    services: Services
    loop: asyncio.AbstractEventLoop
    ids: list[UUID] = field(default_factory=list[UUID])

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, and return its result."""
        return self.start(work).result(600)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def fill(self, id: UUID, events: int) -> None:
        """Append events until a conversation has so many."""
        head = (await self.services.store.get(id)).head
        for start in range(head, events, _BATCH):
            batch = [make_event(seq) for seq in range(start, min(start + _BATCH, events))]
            await self.services.store.append(id, batch)

    async def rain(self, id: UUID, events: int, pause_seconds: float) -> None:
        """Append events one by one."""
        head = (await self.services.store.get(id)).head
        for seq in range(head, head + events):
            await self.services.store.append(id, [make_event(seq)])
            await asyncio.sleep(pause_seconds)


def make_event(seq: int) -> Event:
    """Return an event of one to seven lines: every tenth a message, the others answers of a model."""
    text = f"event {seq}\n" * (1 + seq % 7)
    if seq % 10 == 1:
        return UserMessage.text(text)
    part = {"part_kind": "text", "content": text}
    return ModelResponded(response={"kind": "response", "parts": [part]}, model="offline", seen=seq)


@contextmanager
def serve_conversations(folder: Path, events: int, others: int = 500) -> Generator[Server]:
    """Serve three conversations, the first with so many events, the others with `others`."""
    settings = Settings.load(home=folder / "home", env={}, cwd=folder)
    options = ServerSettings(shutdown_seconds=1)
    app = create_app(settings, server=options)
    mount(app)
    listening, ready, loop = listen("127.0.0.1", 0), threading.Event(), asyncio.new_event_loop()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    work = serve(app, options, listening, ready=ready.set)
    thread = threading.Thread(target=lambda: loop.run_until_complete(work))
    thread.start()
    ready.wait(60)
    try:
        server = Server(url, app.state.services, loop)
        with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
            for number in range(CONVERSATIONS):
                made = client.post("/api/conversations", json={"agent": {"model": "offline"}})
                server.ids.append(UUID(made.raise_for_status().json()["id"]))
                server.call(server.fill(server.ids[number], others if number else events))
        yield server
    finally:
        app.state.stop()
        thread.join()
        loop.close()


def count_elements(page: Page) -> float:
    """Return the elements of the log for each height of the screen that its rows fill."""
    return page.evaluate(
        """() => {
        const chunks = [...document.querySelectorAll('.chunk')];
        const height = chunks.reduce((sum, chunk) => sum + chunk.getBoundingClientRect().height, 0);
        return document.querySelectorAll('#log *').length / Math.max(1, height / innerHeight);
    }"""
    )


class Tab:
    """A tab with one conversation, and what it asked the server for."""

    def __init__(self, context: BrowserContext, server: Server, id: UUID, query: str = "") -> None:
        self.id = id
        self.page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.documents = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{server.url}/c/{id}{query}")
        self.settle()

    def _note(self, request: Any) -> None:
        self.requests.append(request.url)
        self.documents += request.is_navigation_request()

    def settle(self) -> None:
        """Wait until the window is filled."""
        self.page.wait_for_function(
            "() => !document.querySelector('#log[aria-busy]') && document.querySelector('.chunk article.row')"
        )

    def jump(self, seq: int) -> None:
        """Jump to an event, and wait for its row."""
        self.page.locator("#find").fill(f"#{seq}")
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(f"() => document.getElementById('e{seq}')?.contains(document.activeElement)")
        self.settle()

    def wait_for(self, seq: int) -> None:
        """Wait until the row of an event is in the page."""
        self.page.wait_for_function(f"() => document.getElementById('e{seq}')")

    def top_of(self, seq: int) -> float:
        """Return how far below the screen's top the row of an event is."""
        return self.page.evaluate(f"document.getElementById('e{seq}').getBoundingClientRect().top")

    def check(self) -> None:
        """Check what must be true at every moment."""
        elements = count_elements(self.page)
        assert elements <= MAX_ELEMENTS_A_SCREEN, f"{elements:.0f} elements a screen"
        chunks = self.page.locator(".chunk").count()
        assert chunks <= MAX_CHUNKS, f"{chunks} chunks in the page"
        ids = self.page.locator("#log [id^=e]").evaluate_all("rows => rows.map((row) => row.id)")
        assert len(ids) == len(set(ids)), "a row is shown twice"
        assert self.documents == 1, "the page was loaded again"
        assert self.complaints == [], self.complaints


def hide(tab: Tab, other: Page) -> None:
    """Show another tab over this one."""
    other.bring_to_front()
    tab.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def show(tab: Tab) -> None:
    """Show a hidden tab."""
    tab.page.evaluate("delete document.hidden")
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.bring_to_front()


def weather(server: Server, context: BrowserContext, events: int, arrivals: int, rate: float) -> list[Figure]:
    """Let the storm go over three tabs, and return the figures."""
    first, *others = server.ids
    tabs = [Tab(context, server, id) for id in others]
    end, reader = Tab(context, server, first), Tab(context, server, first, f"?at={events // 2}")
    seq = events // 2
    for tab in (end, reader):
        tab.check()
    # Each conversation gets its share, so that together so many a second arrive.
    pause = CONVERSATIONS / rate
    rain = [server.start(server.rain(id, arrivals // CONVERSATIONS, pause)) for id in server.ids]

    place = reader.top_of(seq)
    asked = len(reader.requests)
    for width, height in ((900, 700), (390, 844), (1280, 800)):
        reader.page.set_viewport_size({"width": width, "height": height})
        reader.settle()
        reader.check()
        assert abs(reader.top_of(seq) - place) <= 1, f"the place was lost at {width} pixels"
    hide(reader, end.page)
    end.settle()
    show(reader)
    assert abs(reader.top_of(seq) - place) <= 1, "the place was lost while the tab was hidden"
    assert not [url for url in reader.requests[asked:] if "/live" in url], "the stream was opened again"
    jumps = [0, events - 1, events // 3, events // 2 + 7, 12, events // 2]
    jump_seconds: list[float] = []
    for target in jumps:
        start = perf_counter()
        reader.jump(target)
        jump_seconds.append(perf_counter() - start)
        reader.check()
    for work in rain:
        work.result(600)

    heads = {id: server.call(server.services.store.get(id)).head for id in server.ids}
    for tab in (*tabs, end):
        tab.wait_for(heads[tab.id] - 1)
        tab.settle()
        tab.check()
    assert end.page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY") < 80, "the end moved away"
    reader.page.wait_for_function(f"() => (scrollTo(0, 1e9), document.getElementById('e{heads[first] - 1}'))")
    reader.settle()
    reader.check()
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        floors: list[float] = []
        for target in jumps:
            start = perf_counter()
            low = target // 50 * 50
            client.get(f"/c/{first}/rows", params={"from": low, "to": min(low + 50, events)}).raise_for_status()
            floors.append(perf_counter() - start)
    return [Figure.of("web: a jump in the page, to the route of its rows", *_in_ms(jump_seconds, floors), unit="ms")]


def _in_ms(values: list[float], floors: list[float]) -> tuple[list[float], list[float]]:
    return [value * 1e3 for value in values], [floor * 1e3 for floor in floors]


@contextmanager
def open_browser() -> Generator[Callable[[], BrowserContext]]:
    """Start Chromium, and yield what makes a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield lambda: browser.new_context(viewport={"width": 1280, "height": 800})
        finally:
            browser.close()


def main() -> None:
    """Make the storm and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="of the long conversation")
    parser.add_argument("--arrivals", type=int, default=600, help="events that arrive, over all conversations")
    parser.add_argument("--rate", type=float, default=20, help="arrivals a second")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=ON_DISK) as folder,
        open_browser() as open_context,
        serve_conversations(Path(folder), options.events) as server,
    ):
        for figure in weather(server, open_context(), options.events, options.arrivals, options.rate):
            figure.report()
    print_note("storm: elements bounded, place kept, nothing loaded again, no row twice")


if __name__ == "__main__":
    main()
