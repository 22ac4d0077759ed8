"""Timeouts of connections that uvicorn does not have: for slow headers, and for clients that stop reading."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_RESET = struct.pack("ii", 1, 0)
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class OpenConnections:
    """Counts the connections of a server.

    Args:
        maximum: Maximum number of open connections; one address may have three quarters of them.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._open: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if there are too many."""
        if self._open.total() >= self._maximum or self._open[address] >= max(1, self._maximum * 3 // 4):
            return False
        self._open[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count a closed connection."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


class WatchedWrites(asyncio.Protocol):
    """Ends a connection whose client reads nothing for `send_seconds` while data are waiting.

    Aborts it, because a closed transport first sends its buffer, which takes for ever if the client never reads.
    """

    send_seconds: ClassVar[float] = 30.0
    open_connections: ClassVar[OpenConnections] = OpenConnections(10_000)
    transport: Any
    _address: str | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: Any) -> None:
        """Get notified as soon as one byte is waiting."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """Start the timer: data are waiting."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop the timer: all data were read."""
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._stop_watching()
        if self._address is not None:
            self.open_connections.release(self._address)
            self._address = None
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = asyncio.get_running_loop().call_later(self.send_seconds, self._require_progress)

    def _require_progress(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch()
            return
        # Reset, or the system goes on offering what it holds; a stream's reader comes back with its place.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class BoundedSocketProtocol(WatchedWrites, WebSocketsSansIOProtocol):
    """A WebSocket with a timeout for a client that stops reading."""

    @classmethod
    def within(cls, send_seconds: float, open_connections: OpenConnections) -> type[BoundedSocketProtocol]:
        """Return the protocol with these bounds."""
        bounds = {"send_seconds": send_seconds, "open_connections": open_connections}
        return type("BoundedSocketProtocol", (cls,), bounds)

    def connection_made(self, transport: Any) -> None:
        """Take over a connection that was counted when it began."""
        self._address = _read_address(transport)
        super().connection_made(transport)


class BoundedH11Protocol(WatchedWrites, H11Protocol):
    """Closes a connection whose first headers are not complete within `read_seconds`, too."""

    read_seconds: ClassVar[float] = 30.0
    _headers_timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(
        cls, read_seconds: float, send_seconds: float, open_connections: OpenConnections
    ) -> type[BoundedH11Protocol]:
        """Return the protocol with these bounds."""
        bounds = {"read_seconds": read_seconds, "send_seconds": send_seconds, "open_connections": open_connections}
        return type("BoundedH11Protocol", (cls,), bounds)

    @property
    def _has_request(self) -> bool:
        return getattr(self, "cycle", None) is not None

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request; a connection too many is refused."""
        super().connection_made(transport)
        address = _read_address(transport)
        if not self.open_connections.admit(address):
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._address = address
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Start the timer with the first byte of another request.

        Until then the connection may be idle for uvicorn's `timeout_keep_alive`, which must be longer than clients keep
        idle connections.
        """
        if self._headers_timer is None and self._has_request and self.cycle.response_complete:
            self._start_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle what came; a request whose headers are complete is waited for no longer."""
        before = getattr(self, "cycle", None)
        super().handle_events()
        if getattr(self, "cycle", None) is not before:
            self._stop_timer()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection to the socket's own protocol, which has bounds of its own."""
        self._stop_timer()
        self._stop_watching()
        self._address = None  # counted by the socket's protocol from here
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the timer at once if the beginning of another request came during the response."""
        super().on_response_complete()
        if self._headers_timer is None and self.cycle.response_complete and self.conn.trailing_data[0]:
            self._start_timer()

    def _start_timer(self) -> None:
        self._headers_timer = asyncio.get_running_loop().call_later(self.read_seconds, self._close_silent)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _close_silent(self) -> None:
        if not self.transport.is_closing() and (not self._has_request or self.cycle.response_complete):
            self.transport.close()


def _read_address(transport: Any) -> str:
    """Return the address of the other side of a connection, without its port."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
