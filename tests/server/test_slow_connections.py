"""Connections that say nothing, or stop in the middle, are closed; the bound is a setting."""

from __future__ import annotations

import socket
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
