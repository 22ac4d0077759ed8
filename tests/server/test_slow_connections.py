"""Connections that say nothing, or stop in the middle, are closed; the bound is a setting."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

POST = b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"", b""),
        (b"GET /al", b""),
        (b"GET /alive HTTP/1.1\r\nHost: 127.0", b""),
        (POST + b"Content-Length: 10\r\n\r\n{", b" 408 "),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b" 408 "),
    ],
    ids=["nothing", "half a line", "half a header", "half a body", "half of the chunks"],
)
def test_a_connection_that_stops_is_closed(serving: Any, said: bytes, answered: bytes) -> None:
    with serving(read_seconds=0.2) as server, socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(said)
        got = b""
        while data := connection.recv(65_536):
            got += data
        assert answered in got
        assert bool(got) == bool(answered)


def test_a_body_that_never_ends_is_not_waited_for(serving: Any) -> None:
    """A body that comes byte by byte is never silent, but it is bounded as a whole."""
    with (
        serving(read_seconds=60, body_seconds=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port), 60) as connection,
    ):
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.settimeout(0.02)
        got = b""
        for _ in range(3000):
            try:
                got += connection.recv(65_536)
            except TimeoutError:
                connection.sendall(b"1\r\n \r\n")
            if b"\r\n\r\n" in got:
                break
        assert b" 408 " in got


def test_connections_are_bounded_and_one_address_does_not_have_them_all(serving: Any) -> None:
    request = b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def ask(connection: socket.socket) -> bytes:
        connection.sendall(request)
        return connection.recv(65_536)

    with serving(connections=4) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(3)]
        try:
            assert all(b" 200 " in ask(connection) for connection in connections)
            with socket.create_connection(("127.0.0.1", server.port), 60) as refused:
                assert b" 503 " in refused.recv(65_536)
            address = ("127.0.0.2", 0)
            with socket.create_connection(("127.0.0.1", server.port), 60, source_address=address) as other:
                assert b" 200 " in ask(other)
            connections.pop().close()
            while True:  # until the server has noticed
                with socket.create_connection(("127.0.0.1", server.port), 60) as again:
                    again.settimeout(0.1)
                    try:
                        is_refused = b" 503 " in again.recv(65_536)
                    except TimeoutError:
                        is_refused = False
                    if not is_refused:
                        again.settimeout(60)
                        assert b" 200 " in ask(again)
                        break
        finally:
            for connection in connections:
                connection.close()


def test_a_length_that_is_given_twice_ends_the_connection(serving: Any) -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        twice = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        connection.sendall(POST + twice)
        got = b""
        while data := connection.recv(65_536):
            got += data
        assert b" 400 " in got


def test_a_connection_may_be_idle_for_longer_than_the_headers_of_a_request_may_take(serving: Any) -> None:
    """A client that keeps its connections does not meet one that is closed; half of its next request is too little."""
    request = b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def ask(connection: socket.socket) -> None:
        connection.sendall(request)
        got = b""
        while not got.endswith(b'{"status":"ok"}'):
            got += (data := connection.recv(65_536))
            assert data, "closed"

    with (
        serving(read_seconds=0.2, keep_alive_seconds=3600) as server,
        socket.create_connection(("127.0.0.1", server.port), 60) as connection,
        socket.create_connection(("127.0.0.1", server.port), 60) as silent,
    ):
        ask(connection)
        assert not silent.recv(1), "closed after the time that a first request may take"
        ask(connection)
        connection.sendall(request[:20])
        assert not connection.recv(1), "half a request is waited for no longer than the first one"


@contextmanager
def connection_that_never_reads(port: int, request: str) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request.encode())
        yield connection


UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/conversations/{id}/events/stream", ""),
        ("/api/conversations/{id}/events/search", ""),
        ("/sockets/events/{id}?resend_mode=all", UPGRADE.format(key="dGhlIHNhbXBsZSBub25jZQ==")),
    ],
    ids=["stream", "page", "socket"],
)
def test_a_reader_that_never_reads_is_dropped_and_may_come_back(serving: Any, path: str, headers: str) -> None:
    """Its connection is reset, whatever was held for it; who comes back has everything."""
    with serving(send_seconds=0.2) as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        for number in range(8):
            text = f"{number}" + "x" * 900_000
            assert client.post(f"/api/conversations/{id}/events", json={"content": text}).status_code == 200
        request = f"GET {path.format(id=id)} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n"
        with connection_that_never_reads(server.port, request) as connection:
            ended = select.poll()
            ended.register(connection, 0)  # of nothing but its end
            assert ended.poll(60_000), "it was reset"
        whole = client.get(f"/api/conversations/{id}/events/stream?until=caught_up").text
        assert whole.count("event: event") == client.get(f"/api/conversations/{id}").json()["head"]
