"""HTTP connections that are not held open by silence: uvicorn bounds neither slow headers nor half a request line."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedH11Protocol(H11Protocol):
    """Closes a connection whose first headers are not complete within `read_seconds`."""

    read_seconds: ClassVar[float] = 30.0

    @classmethod
    def reading_within(cls, seconds: float) -> type[BoundedH11Protocol]:
        """Return the protocol with that bound."""
        return type("BoundedH11Protocol", (cls,), {"read_seconds": seconds})

    @property
    def _has_request(self) -> bool:
        return getattr(self, "cycle", None) is not None

    def connection_made(self, transport: Any) -> None:
        """Begin to count."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._headers_timer = loop.call_later(self.read_seconds, self._close_silent)

    def handle_events(self) -> None:
        """Handle what came; a request whose headers are complete is waited for no longer."""
        super().handle_events()
        if self._has_request:
            self._headers_timer.cancel()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection to the socket's own protocol, which has bounds of its own."""
        self._headers_timer.cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._headers_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count anew: the next request of the connection has the same bound, once its first byte has come."""
        super().on_response_complete()
        if not self.transport.is_closing():
            loop = asyncio.get_running_loop()
            self._headers_timer = loop.call_later(self.read_seconds, self._close_silent)

    def _close_silent(self) -> None:
        if not self.transport.is_closing() and (not self._has_request or self.cycle.response_complete):
            self.transport.close()
