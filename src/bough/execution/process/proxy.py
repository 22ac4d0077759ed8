"""The one way out of a sandbox: an HTTP proxy on the host that knows which domains may be reached.

The sandbox has a network namespace of its own with nothing but a loopback in it. Its first process listens there and
hands the listening socket to the host, so whatever connects inside is answered here, outside. `CONNECT` (HTTPS) and
plain HTTP requests are let through to the named domains, on the ports 80 and 443 or one that is named with the domain.
A name that resolves to an address of this machine or of a private network is refused, unless it is listed as such.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from bough.execution.domain_rule import DomainRule

_HEAD_BYTES: Final = 32 << 10
_HEAD_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_CHUNK_BYTES: Final = 64 << 10


@dataclass
class AllowListProxy:
    """Answers what connects inside a sandbox; `serve` it once it is handed the socket, `close` it with the run."""

    rules: Sequence[DomainRule]
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def serve(self, listener: socket.socket) -> None:
        """Begin to accept on a socket that listens inside the sandbox."""
        listener.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(listener))
        self._tasks.add(task)

    async def close(self) -> None:
        """Close every connection; twice is fine."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=_HEAD_BYTES)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            return
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        tunnel = method == "CONNECT"
        parts = urlsplit(f"//{target}" if tunnel else target)
        host, port = (parts.hostname or "").lower(), parts.port or (443 if tunnel else 80)
        address = await self._address(host, port)
        if address is None or (not tunnel and parts.scheme != "http"):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        out_reader, out_writer = await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_SECONDS)
        if tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            out_writer.write(_own_head(head, f"{method} {path} {version}", parts.netloc))
        try:
            await asyncio.gather(_pump(reader, out_writer), _pump(out_reader, writer))
        finally:
            out_writer.close()

    async def _address(self, host: str, port: int) -> str | None:
        """Return the address to connect to, or None when the host is not allowed or leads into a private network."""
        if not any(rule.allows(host, port) for rule in self.rules):
            return None
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        named_as_private = host == "localhost" or _is_address(host)
        for *_, address in found:
            if named_as_private or ipaddress.ip_address(address[0]).is_global:
                return str(address[0])
        return None


def _own_head(head: bytes, first: str, host: str) -> bytes:
    """Return the head of a plain request as its server shall see it: one request, for the host that was checked."""
    hop_by_hop = (b"proxy-connection:", b"connection:", b"host:", b"proxy-authorization:")
    kept = [line for line in head.split(b"\r\n")[1:] if line and not line.lower().startswith(hop_by_hop)]
    return b"\r\n".join([first.encode(), b"Host: " + host.encode(), b"Connection: close", *kept, b"", b""])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK_BYTES):
        target.write(data)
        await target.drain()
    with suppress(OSError):
        target.write_eof()
