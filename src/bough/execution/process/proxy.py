"""An HTTP proxy on the host, through which a sandbox can connect to allowed domains only.

The sandbox has a network namespace with only a loopback interface. Its first process listens there and sends the
listening socket to the host, so this process accepts the connections from inside the sandbox. `CONNECT` (HTTPS) and
plain HTTP requests may use the listed domains, on ports 80 and 443 or on the port that is listed with the domain. A
name that resolves to an address of this machine or of a private network is refused, unless the address itself is
listed. A connection carries one request, which is serialised from its parsed form and never forwarded as received.
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

import h11

from bough.execution.destination import DomainRule, is_public

MAX_CONNECTIONS: Final = 64
"""Maximum number of simultaneous connections of a run; further ones are accepted and closed at once."""

_HEAD_BYTES: Final = 32 << 10
_HEAD_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 60.0
_CHUNK_BYTES: Final = 64 << 10
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect"}
)


class _RefusedError(Exception):
    """A request is refused.

    Attributes:
        status: The HTTP status of the response.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class AllowListProxy:
    """The proxy of one run. `serve` starts it with the listening socket; `close` must be called after the run."""

    rules: Sequence[DomainRule]
    _server: asyncio.Server | None = None
    _serving: asyncio.Task[None] | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def serve(self, listener: socket.socket) -> None:
        """Start to accept connections on a socket that listens inside the sandbox."""
        listener.setblocking(False)
        self._serving = asyncio.get_running_loop().create_task(self._serve(listener))

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *([] if self._serving is None else [self._serving])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._handle_connection, sock=listener, limit=_HEAD_BYTES)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the request of a connection, or respond with the status of the refusal; then close the connection."""
        task = asyncio.current_task()
        if len(self._connections) >= MAX_CONNECTIONS or task is None:
            writer.close()
            return
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._forward_request(reader, writer)
        except _RefusedError as refused:
            with suppress(OSError):
                writer.write(b"HTTP/1.1 %d \r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % refused.status)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, h11.ProtocolError, TimeoutError):
            return
        finally:
            writer.close()

    async def _forward_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request from the sandbox, forward it, and forward its response.

        Raises:
            _RefusedError: The request is malformed, its host is not allowed, or its host cannot be reached.
        """
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        async with asyncio.timeout(_HEAD_SECONDS):
            request = await _read_request(client, reader)
        host, port, path = _read_target(request)
        # Resolved once: connecting by name could reach another address than the one that was checked.
        address = await self._find_address(host, port)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                out_reader, out_writer = await asyncio.open_connection(address, port)
        except (OSError, TimeoutError) as error:
            raise _RefusedError(502) from error
        try:
            if request.method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_copy_stream(reader, out_writer), _copy_stream(out_reader, writer))
            else:
                server = h11.Connection(h11.CLIENT)
                out_writer.write(server.send(_rebuild_request(request, host, port, path)) or b"")
                sending = asyncio.ensure_future(_forward_body(client, reader, writer, server, out_writer))
                try:
                    await _forward_response(server, out_reader, writer)
                finally:
                    sending.cancel()
                    await asyncio.wait([sending])
        finally:
            out_writer.close()

    async def _find_address(self, host: str, port: int) -> str:
        """Return the address to connect to.

        Raises:
            _RefusedError: The host or port is not listed, the host has no address, or it is a name with an address that
                is not public.
        """
        if not any(rule.allows(host, port) for rule in self.rules):
            raise _RefusedError(403)
        try:
            results = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise _RefusedError(502) from error
        addresses = [str(address[0]) for *_, address in results]
        is_listed_literally = host == "localhost" or _is_address(host)
        if not addresses or not (is_listed_literally or all(is_public(address) for address in addresses)):
            raise _RefusedError(403)
        return addresses[0]


async def _read_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    """Read the head of a request. Its format is checked strictly, so that proxy and server parse it alike.

    Raises:
        _RefusedError: The head is malformed or too long.
    """
    head = b""
    try:
        while not head.endswith(b"\r\n\r\n"):
            line = await reader.readuntil(b"\n")
            head += line
            if not line.endswith(b"\r\n") or line[:1] in b" \t" or len(head) > _HEAD_BYTES:
                raise _RefusedError(400)
        connection.receive_data(head)
        request = connection.next_event()
    except (asyncio.LimitOverrunError, h11.RemoteProtocolError) as error:
        raise _RefusedError(400) from error
    if not isinstance(request, h11.Request):
        raise _RefusedError(400)
    header_names = [name for name, _ in request.headers]
    if b"content-length" in header_names and b"transfer-encoding" in header_names:
        raise _RefusedError(400)
    return request


def _read_target(request: h11.Request) -> tuple[str, int, str]:
    """Return host, port and path of the request's target; the path of a tunnel is empty.

    Raises:
        _RefusedError: The target is malformed, or is not HTTP.
    """
    is_tunnel = request.method == b"CONNECT"
    target = request.target.decode("ascii", "replace")
    try:
        parts = urlsplit(f"//{target}" if is_tunnel else target)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise _RefusedError(400) from error
    if is_tunnel:
        if port is None or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
            raise _RefusedError(400)
        return host, port, ""
    if parts.scheme != "http" or not host or "@" in parts.netloc:
        raise _RefusedError(403)
    return host, port or 80, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _rebuild_request(request: h11.Request, host: str, port: int, path: str) -> h11.Request:
    """Return the request for the server, with the checked host and without hop-by-hop headers.

    The server closes the connection after its response.
    """
    connection_values = [value for name, value in request.headers if name == b"connection"]
    dropped_names = _HOP_BY_HOP | {word.strip().lower() for value in connection_values for word in value.split(b",")}
    headers = [(name, value) for name, value in request.headers if name not in dropped_names]
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"transfer-encoding", b"chunked"))
    host_text = f"[{host}]" if ":" in host else host
    new_headers = [(b"Host", (host_text if port == 80 else f"{host_text}:{port}").encode()), (b"Connection", b"close")]
    return h11.Request(method=request.method, target=path, headers=[*new_headers, *headers])


async def _forward_body(
    client: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server: h11.Connection,
    out_writer: asyncio.StreamWriter,
) -> None:
    """Forward the body of a request. Bytes after the body are ignored, so they cannot be a second request."""
    while True:
        if client.they_are_waiting_for_100_continue:
            writer.write(client.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        match client.next_event():
            case h11.Data(data=data):
                out_writer.write(server.send(h11.Data(data=data)) or b"")
                await out_writer.drain()
            case h11.EndOfMessage():
                out_writer.write(server.send(h11.EndOfMessage()) or b"")
                return await out_writer.drain()
            case h11.NEED_DATA:
                client.receive_data(await _read(reader))
            case _:
                return None


async def _forward_response(
    server: h11.Connection, out_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Forward the bytes of the response unchanged, until the response ends."""
    while True:
        data = await _read(out_reader)
        writer.write(data)
        await writer.drain()
        server.receive_data(data)
        while (event := server.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or event is h11.PAUSED:
                return


async def _copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy one direction of a tunnel to its end, then close the target for writing."""
    while data := await _read(source):
        target.write(data)
        await target.drain()
    with suppress(OSError):
        target.write_eof()


async def _read(source: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(_IDLE_SECONDS):
        return await source.read(_CHUNK_BYTES)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
