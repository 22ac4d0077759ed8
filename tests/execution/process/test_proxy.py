"""The proxy of a sandbox: what is written so that two readers could take it for two things is taken by neither."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from bough.execution.destination import DomainRule, is_public
from bough.execution.process.proxy import MAX_CONNECTIONS, AllowListProxy

pytestmark = pytest.mark.anyio


class Origin:
    """A server that notes all that it is sent, and answers each head that it can see."""

    def __init__(self) -> None:
        self.received = b""
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.received += data
                if self.received.endswith((b"\r\n\r\n", b"end")):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    noted = Origin()
    server = await asyncio.start_server(noted.answer, "127.0.0.1", 0)
    noted.port = server.sockets[0].getsockname()[1]
    yield noted
    server.close()


@pytest.fixture
async def proxy(origin: Origin) -> AsyncIterator[int]:
    """The port of a proxy that lets through to the origin alone."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = AllowListProxy([DomainRule.parse(f"127.0.0.1:{origin.port}")])
    proxy.serve(listener)
    yield listener.getsockname()[1]
    await proxy.close()


async def ask(port: int, *parts: bytes) -> bytes:
    """Send bytes and return all that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_request_is_rebuilt_for_the_host_that_was_checked(origin: Origin, proxy: int) -> None:
    head = (
        f"GET http://127.0.0.1:{origin.port}/a?b=c HTTP/1.1\r\nHost: other.example\r\nX-Kept: 1\r\n"
        "Connection: x-dropped\r\nX-Dropped: 1\r\nProxy-Authorization: secret\r\n\r\n"
    )
    answer = await ask(proxy, head.encode())
    assert answer.endswith(b"\r\n\r\nok")
    expected = f"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:{origin.port}\r\nConnection: close\r\nx-kept: 1\r\n\r\n"
    assert origin.received.decode().lower() == expected.lower()


async def test_a_body_is_passed_on_in_either_framing(origin: Origin, proxy: int) -> None:
    url = f"http://127.0.0.1:{origin.port}/".encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % url
    assert (await ask(proxy, head + b"Content-Length: 7\r\n\r\nthe end")).endswith(b"ok")
    assert origin.received.endswith(b"\r\n\r\nthe end")
    origin.received = b""
    answer = await ask(proxy, head + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nthe\r\n", b"0\r\n\r\n")
    assert answer.endswith(b"ok")
    assert origin.received.endswith(b"3\r\nthe\r\n0\r\n\r\n")


async def test_a_second_request_of_a_connection_is_dropped(origin: Origin, proxy: int) -> None:
    request = f"GET http://127.0.0.1:{origin.port}/first HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    answer = await ask(proxy, request + request.replace(b"first", b"second"))
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"second" not in origin.received


@pytest.mark.parametrize(
    "head",
    [
        b"GET %s HTTP/1.1\r\nHost: x\r\nX: a\nInjected: 1\r\n\r\n",
        b"GET %s HTTP/1.1\nHost: x\n\n",
        b"GET %s HTTP/1.1\r\nHost: x\r\nX: a\r\n folded\r\n\r\n",
        b"GET %s HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
        b"GET %s HTTP/1.1\r\nHost: x\r\nX : a\r\n\r\n",
        b"GET %s HTTP/1.1\r\n\r\n",
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nend",
        b"CONNECT %s/path HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET %s HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(origin: Origin, proxy: int, head: bytes) -> None:
    answer = await ask(proxy, head % f"http://127.0.0.1:{origin.port}/".encode())
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
    assert origin.received == b""


async def test_hosts_that_are_not_listed_are_refused(origin: Origin, proxy: int) -> None:
    for target in (f"http://localhost:{origin.port}/", "http://127.0.0.1:1/", f"https://127.0.0.1:{origin.port}/"):
        answer = await ask(proxy, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ")
    answer = await ask(proxy, b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert origin.received == b""


async def test_connections_are_counted(origin: Origin, proxy: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", proxy) for _ in range(MAX_CONNECTIONS)]
    request = f"GET http://127.0.0.1:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert await ask(proxy, request) == b""
    for _, writer in idle:
        writer.close()
    for reader, _ in idle:
        assert await reader.read() == b""
    assert (await ask(proxy, request)).endswith(b"ok")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "64:ff9b::8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255", "100.64.0.1"),
        *("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:a00:1:8000:63bf:3fff:fdd2"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
