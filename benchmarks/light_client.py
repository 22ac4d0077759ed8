"""A client that costs nearly nothing, and what a server process costs: for figures that are about the server alone.

A request is fixed bytes, sent over a socket that stays open. An HTTP library would use as much processor time for a
call as the server does, and its figure would be mostly about the client.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import BinaryIO

TIMEOUT_SECONDS = 120


class Refused(Exception):
    """A server answered with a status that is not 2xx."""


@dataclass(frozen=True)
class Cost:
    """What calls cost.

    Attributes:
        cpu_seconds: Processor time of the server's process, a multiple of the kernel's tick (10 ms).
    """

    wall_seconds: float
    cpu_seconds: float


def build_request(method: str, path: str, body: object = None) -> bytes:
    """Return the bytes of a request, with a JSON body unless it is None."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    payload = json.dumps(body).encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload


def read_response(stream: BinaryIO) -> tuple[int, bytes]:
    """Return the status and body of the next response.

    Raises:
        ConnectionError: The server closed the connection before the end of the response.
        ValueError: The response does not say its length.
    """
    status_line, length = stream.readline(), None
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if not status_line.endswith(b"\n"):
        raise ConnectionError("the server closed the connection")
    if length is None:
        raise ValueError(f"a response without Content-Length: {status_line.decode()}")
    body = stream.read(length)
    if len(body) < length:
        raise ConnectionError(f"the server closed the connection after {len(body)} of {length} bytes")
    return int(status_line.split()[1]), body


class Connection:
    """A connection to a server on this machine that stays open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Send a request; its response is read later."""
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """Return the body of the next response.

        Raises:
            Refused: Its status is not 2xx.
        """
        status, body = read_response(self._stream)
        if not 200 <= status < 300:
            raise Refused(f"it answered {status}: {body[:300].decode(errors='replace')}")
        return body

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its response."""
        self.send(request)
        return self.receive()


@contextmanager
def connect(port: int, count: int = 1) -> Generator[Sequence[Connection]]:
    """Open some connections, and close them."""
    with ExitStack() as stack:
        yield [stack.enter_context(Connection(port)) for _ in range(count)]


def measure_calls(port: int, pid: int, request: bytes, *, calls: int, at_once: int = 1) -> Cost:
    """Return what one of `calls` costs; each sends the request over `at_once` connections, then reads the responses."""
    # Opened here and not kept: servers close a connection that nobody used for seconds.
    with connect(port, at_once) as connections:
        cpu, start = read_cpu_seconds(pid), perf_counter()
        for _ in range(calls):
            for connection in connections:
                connection.send(request)
            for connection in connections:
                connection.receive()
        return Cost((perf_counter() - start) / calls, (read_cpu_seconds(pid) - cpu) / calls)


def read_cpu_seconds(pid: int) -> float:
    """Return the processor time that a process used so far, in its own code and in the kernel."""
    return parse_cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / os.sysconf("SC_CLK_TCK")


def parse_cpu_ticks(stat: str) -> int:
    """Return `utime` and `stime` of a line of `/proc/PID/stat` together, in clock ticks."""
    # Behind the last parenthesis: the name of the program stands in parentheses and may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
