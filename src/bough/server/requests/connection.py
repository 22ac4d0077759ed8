"""Timeouts that uvicorn does not have: for headers that arrive slowly, and for clients that stop reading."""

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
        maximum: Maximum number of open connections; one address may have three quarters of it.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._open: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Count a new connection and return True, or return False if there are too many."""
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
    """Aborts a connection whose client reads nothing for `send_seconds` while data are waiting.

    Closing is not enough: a closed transport first sends its buffer, which never ends if the client never reads.
    """

    send_seconds: ClassVar[float] = 30.0
    open_connections: ClassVar[OpenConnections] = OpenConnections(10_000)
    transport: Any
    _address: str | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: Any) -> None:
        """Have the transport call `pause_writing` as soon as one byte is waiting."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """Start the timer: data are waiting."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop the timer: all data were sent."""
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and count the connection as closed."""
        self._stop_watching()
        if self._address is not None:
            self.open_connections.release(self._address)
            self._address = None
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = asyncio.get_running_loop().call_later(self.send_seconds, self._require_progress)

    def _require_progress(self) -> None:
        """Start the timer again if the client has read some data, else abort the connection."""
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch()
            return
        # Reset, else the system still offers its buffered data. Clients of streams reconnect from their last event.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class BoundedSocketProtocol(WatchedWrites, WebSocketsSansIOProtocol):
    """A WebSocket with a timeout for a client that stops reading."""

    @classmethod
    def with_limits(cls, send_seconds: float, open_connections: OpenConnections) -> type[BoundedSocketProtocol]:
        """Return a subclass with these limits."""
        limits = {"send_seconds": send_seconds, "open_connections": open_connections}
        return type("BoundedSocketProtocol", (cls,), limits)

    def connection_made(self, transport: Any) -> None:
        """Take over a connection that the HTTP protocol has counted."""
        self._address = _read_address(transport)
        super().connection_made(transport)


class BoundedH11Protocol(WatchedWrites, H11Protocol):
    """HTTP that also closes a connection whose headers are not complete after `read_seconds`."""

    read_seconds: ClassVar[float] = 30.0
    _headers_timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_limits(
        cls, read_seconds: float, send_seconds: float, open_connections: OpenConnections
    ) -> type[BoundedH11Protocol]:
        """Return a subclass with these limits."""
        limits = {"read_seconds": read_seconds, "send_seconds": send_seconds, "open_connections": open_connections}
        return type("BoundedH11Protocol", (cls,), limits)

    @property
    def _has_request(self) -> bool:
        return getattr(self, "cycle", None) is not None

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request, or refuse the connection if there are too many."""
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

        Before that byte, the connection may be idle for uvicorn's `timeout_keep_alive`, which must be longer than
        clients keep idle connections open.
        """
        if self._headers_timer is None and self._has_request and self.cycle.response_complete:
            self._start_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle the received data, and stop the timer if they complete the headers of a request."""
        previous_cycle = getattr(self, "cycle", None)
        super().handle_events()
        if getattr(self, "cycle", None) is not previous_cycle:
            self._stop_timer()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Pass the connection to the WebSocket protocol, which has its own limits."""
        self._stop_timer()
        self._stop_watching()
        self._address = None  # the WebSocket protocol releases it
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the timer at once if the beginning of another request arrived during the response."""
        super().on_response_complete()
        if self._headers_timer is None and self.cycle.response_complete and self.conn.trailing_data[0]:
            self._start_timer()

    def _start_timer(self) -> None:
        self._headers_timer = asyncio.get_running_loop().call_later(self.read_seconds, self._close_incomplete)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _close_incomplete(self) -> None:
        """Close the connection if the headers of its next request are still incomplete."""
        if not self.transport.is_closing() and (not self._has_request or self.cycle.response_complete):
            self.transport.close()


def _read_address(transport: Any) -> str:
    """Return the address of the client of a connection, without its port."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
