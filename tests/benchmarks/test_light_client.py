"""The client that measures servers: responses are read whole, one after another, and a refusal is no figure."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

TWO_RESPONSES = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nContent-Type: application/json\r\n\r\n[1, 2]\n"
    b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
)


@pytest.fixture
def light_client(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The client, imported as a benchmark imports it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import light_client

    return light_client


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's and the client's end of a connection."""
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def test_responses_are_read_one_after_another(
    light_client: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    server, client = pair
    server.sendall(TWO_RESPONSES)
    with client.makefile("rb") as stream:
        assert light_client.read_response(stream) == (200, b"[1, 2]\n")
        assert light_client.read_response(stream) == (204, b"")


@pytest.mark.parametrize("length", [0, 10, 40, 70])
def test_a_response_that_is_cut_is_refused(
    light_client: ModuleType, pair: tuple[socket.socket, socket.socket], length: int
) -> None:
    server, client = pair
    server.sendall(TWO_RESPONSES[:length])
    server.close()
    with client.makefile("rb") as stream, pytest.raises((ConnectionError, ValueError)):
        light_client.read_response(stream)


def test_a_response_without_a_length_is_refused(
    light_client: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    server, client = pair
    server.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n")
    with client.makefile("rb") as stream, pytest.raises(ValueError, match="Content-Length"):
        light_client.read_response(stream)


def test_a_refusal_says_what_the_server_said(light_client: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        request = light_client.build_request("POST", "/path", {"a": 1})

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(len(request), socket.MSG_WAITALL) == request
                connection.sendall(b"HTTP/1.1 422 Unprocessable Content\r\nContent-Length: 5\r\n\r\nwrong")

        thread = threading.Thread(target=refuse)
        thread.start()
        port = listening.getsockname()[1]
        with pytest.raises(light_client.Refused, match="422: wrong"), light_client.connect(port) as (connection,):
            connection.ask(request)
        thread.join()


def test_a_request_says_the_length_of_its_body(light_client: ModuleType) -> None:
    assert light_client.build_request("GET", "/x") == b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert light_client.build_request("POST", "/x", {"ä": 1}).endswith(b'Content-Length: 13\r\n\r\n{"\\u00e4": 1}')


def test_processor_time_is_read_behind_the_name_of_the_program(light_client: ModuleType) -> None:
    before = "4242 (a) b (c) S 1 4242 4242 0 -1 4194304 100 200 0 0"
    after = "70 30 20 0 20 0 3 0 12345 1000000 500"
    assert light_client.parse_cpu_ticks(f"{before} {after}") == 100


def test_processor_time_grows_with_work(light_client: ModuleType) -> None:
    start = light_client.read_cpu_seconds(os.getpid())
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert light_client.read_cpu_seconds(os.getpid()) > start
