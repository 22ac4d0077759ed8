"""The network of a sandbox is a list of domains, and whoever is not on it hears nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from bough.errors import InvalidInput, SandboxUnavailable
from bough.execution import CodeExecutionInput, CodeExecutionResult, LocalSandboxCodeExecutor, Network
from bough.execution.destination import DomainRule

pytestmark = pytest.mark.anyio

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
except OSError as error:
    print(error)
"""

TUNNEL = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), timeout=5)
s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n\\r\\n".encode())
head = s.recv(4096)
print(head.split(b"\\r\\n")[0].decode())
if b" 200 " in head:
    s.sendall(b"GET /in-a-tunnel HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print(s.recv(4096).split(b"\\r\\n\\r\\n")[1].decode())
"""


class Server:
    """An HTTP server on the host that notes what it is asked for."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, int]]:
    noted = Server()
    serving = await asyncio.start_server(noted.answer, "127.0.0.1", 0)
    yield noted, serving.sockets[0].getsockname()[1]
    serving.close()


@pytest.fixture
async def executor() -> AsyncIterator[LocalSandboxCodeExecutor]:
    executor = LocalSandboxCodeExecutor()
    yield executor
    await executor.aclose()


async def run(executor: LocalSandboxCodeExecutor, code: str, target: str, *domains: str) -> CodeExecutionResult:
    return await executor.execute(CodeExecutionInput(code=code, argv=(target,), network=Network(domains=domains)))


@pytest.mark.needs("bubblewrap")
async def test_a_named_domain_is_reached(executor: LocalSandboxCodeExecutor, server: tuple[Server, int]) -> None:
    noted, port = server
    result = await run(executor, FETCH, f"http://127.0.0.1:{port}/path?q=1", f"127.0.0.1:{port}")
    assert result.stdout == b"hello\n"
    assert noted.heads[0].startswith(b"GET /path?q=1 HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.needs("bubblewrap")
async def test_a_tunnel_to_a_named_domain(executor: LocalSandboxCodeExecutor, server: tuple[Server, int]) -> None:
    noted, port = server
    result = await run(executor, TUNNEL, f"127.0.0.1:{port}", f"127.0.0.1:{port}")
    assert result.stdout == b"HTTP/1.1 200 Connection established\nhello\n"
    assert noted.heads[0].startswith(b"GET /in-a-tunnel ")


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("code", [FETCH, TUNNEL])
async def test_others_hear_nothing(executor: LocalSandboxCodeExecutor, server: tuple[Server, int], code: str) -> None:
    noted, port = server
    names = ["127.0.0.1", "localhost", socket.gethostname()]
    for name in names:
        target = f"{name}:{port}" if code is TUNNEL else f"http://{name}:{port}/"
        assert b"hello" not in (await run(executor, code, target, "example.org", "127.0.0.1:1")).stdout
    assert noted.heads == []


@pytest.mark.needs("bubblewrap")
async def test_a_name_that_leads_home_is_not_followed(
    executor: LocalSandboxCodeExecutor, server: tuple[Server, int]
) -> None:
    noted, port = server
    name = socket.gethostname()
    await run(executor, FETCH, f"http://{name}:{port}/", f"{name}:{port}")
    assert noted.heads == []


@pytest.mark.needs("bubblewrap")
async def test_there_is_no_way_around_the_proxy(executor: LocalSandboxCodeExecutor, server: tuple[Server, int]) -> None:
    noted, port = server
    code = (
        "import socket, sys\n"
        "try: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)\n"
        "except OSError as error: print(error)"
    )
    result = await run(executor, code, str(port), f"127.0.0.1:{port}")
    assert b"refused" in result.stdout.lower()
    assert noted.heads == []


@pytest.mark.parametrize(
    "domain", ["", "*", "http://example.org", "a..b", "example.org:0", "exa mple.org", "a:b", "*.*.x"]
)
async def test_impossible_domains_are_refused(executor: LocalSandboxCodeExecutor, domain: str) -> None:
    with pytest.raises(InvalidInput):
        await run(executor, FETCH, "x", domain)


async def test_without_namespaces_there_is_no_network_by_domains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable):
        await run(LocalSandboxCodeExecutor(), FETCH, "x", "example.org")


def test_a_star_stands_for_what_is_below() -> None:
    rule = DomainRule.parse("*.example.org")
    assert rule.allows("a.example.org", 443)
    assert not rule.allows("example.org", 443)
    assert not rule.allows("badexample.org", 443)
    assert not rule.allows("a.example.org", 22)
