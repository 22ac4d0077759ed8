"""The live stream behind a proxy that cuts, doubles and reorders its events: each row once and in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from playwright.sync_api import Page, expect

from .site import Site

pytestmark = pytest.mark.needs("chromium")


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on; what it does to the frames of a stream changes with each connection."""

    port: ClassVar[int]
    connections: ClassVar[int]
    tricks: ClassVar[set[str]]
    is_honest: ClassVar[bool]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        upstream = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("host", "accept-encoding")
        }
        upstream.request(self.command, self.path, headers=headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Security-Policy", "Cache-Control"):
            if value := answer.getheader(name):
                self.send_header(name, value)
        self.end_headers()
        try:
            if "/live" in self.path:
                self.damage(answer)
            else:
                self.wfile.write(answer.read())
        except OSError:
            pass  # the browser or the server closed the connection
        finally:
            upstream.close()
            self.close_connection = True

    def damage(self, answer: Any) -> None:
        """Send frames twice, the second of a pair first, or not at all, and cut the connection in a frame."""
        number = type(self).connections = type(self).connections + 1
        held = b""
        count = 0
        for frame in self.read_frames(answer):
            if b"event: rows" not in frame or self.is_honest:
                self.send(frame)
                continue
            count += 1
            if number == 1 and count == 2:
                self.tricks.add("cut")
                self.send(frame[: len(frame) // 2])
                return
            if count % 3 == 0:
                self.tricks.add("lost")
            elif count % 3 == 1:
                held = frame
                self.tricks.add("late")
            else:
                self.tricks.add("double")
                self.send(frame + held + frame)

    def read_frames(self, answer: Any) -> Iterator[bytes]:
        frame = b""
        while line := answer.readline():
            frame += line
            if line in (b"\n", b"\r\n"):
                yield frame
                frame = b""

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


@pytest.fixture
def proxy(site: Site) -> Iterator[ThreadingHTTPServer]:
    Proxy.port, Proxy.connections, Proxy.tricks, Proxy.is_honest = site.running.port, 0, set(), False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="proxy")
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_each_event_is_shown_once_and_in_order(page: Page, site: Site, proxy: ThreadingHTTPServer) -> None:
    id = site.start("hello")
    page.goto(f"http://127.0.0.1:{proxy.server_port}/c/{id}")
    for number in range(12):
        site.say(id, f"write file{number}.txt")
    Proxy.is_honest = True  # otherwise nothing would come after the last frame, and its loss would not be noticed
    site.say(id, "the end")
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    expect(page.locator(".log [id^=e]")).to_have_count(head, timeout=30_000)
    expect(page.locator("article.you")).to_have_count(14)
    seqs = page.locator(".log article[id^=e]").evaluate_all("rows => rows.map((row) => Number(row.id.slice(1)))")
    assert seqs == sorted(seqs)
    assert Proxy.tricks >= {"lost", "late", "double"}
