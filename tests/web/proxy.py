"""A proxy before a server of the page, which does to its answers what networks and restarts do."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any, ClassVar


class Proxy(BaseHTTPRequestHandler):
    """Passes GET requests on; what it does to the frames of a stream changes with each connection.

    Attributes:
        port: Where the server is.
        tricks: What it has done to frames.
        is_honest: Whether it leaves frames as they are.
        is_away: Whether it answers nothing, as a server that has ended.
        version: The version of the page that answers claim; None for the server's own.
    """

    port: ClassVar[int]
    connections: ClassVar[int]
    tricks: ClassVar[set[str]]
    is_honest: ClassVar[bool]
    is_away: ClassVar[bool]
    version: ClassVar[str | None]
    upstreams: ClassVar[set[HTTPConnection]]

    @classmethod
    def go_away(cls) -> None:
        """Cut all connections, and answer nothing from now on."""
        cls.is_away = True
        for upstream in list(cls.upstreams):
            if upstream.sock is not None:
                upstream.sock.shutdown(SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        if self.is_away:
            return
        upstream = HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.upstreams.add(upstream)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("host", "accept-encoding")
        }
        upstream.request(self.command, self.path, headers=headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Security-Policy", "Cache-Control", "X-Bough-Assets"):
            if value := (self.version if name == "X-Bough-Assets" else None) or answer.getheader(name):
                self.send_header(name, value)
        self.end_headers()
        try:
            if "event-stream" in (answer.getheader("Content-Type") or ""):
                self.damage(answer)
            else:
                self.wfile.write(answer.read())
        except OSError:
            pass  # the browser or the server closed the connection
        finally:
            self.upstreams.discard(upstream)
            upstream.close()

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


@contextmanager
def open_proxy(port: int, *, is_honest: bool = False) -> Generator[str]:
    """Serve as a proxy of a port of this machine; yields the address."""
    Proxy.port, Proxy.connections, Proxy.tricks, Proxy.is_honest = port, 0, set(), is_honest
    Proxy.is_away, Proxy.version, Proxy.upstreams = False, None, set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="proxy")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Proxy.go_away()
    server.shutdown()
    server.server_close()
    thread.join()
