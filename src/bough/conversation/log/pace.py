"""How long folding keeps the event loop: a turn for everyone else every few milliseconds."""

from __future__ import annotations

import asyncio
from time import monotonic

from bough.events.model import Event
from bough.events.record import StoredEvent

TURN_SECONDS = 0.005
"""After so long the loop gets a turn."""

LOOK_EVENTS = 16
LOOK_BYTES = 256 << 10
"""The clock is looked at after so many events or bytes; one event that is larger is decoded in a thread."""


class Pace:
    """Decodes events one after the other, with turns of the event loop in between."""

    def __init__(self) -> None:
        self._since = monotonic()
        self._events = 0
        self._bytes = 0

    async def decode(self, stored: StoredEvent) -> Event:
        """Return the typed event.

        Raises:
            CorruptLog: The payload is not what its kind says.
        """
        size = len(stored.raw)
        self._events, self._bytes = self._events + 1, self._bytes + size
        if self._events > LOOK_EVENTS or self._bytes > LOOK_BYTES:
            self._events, self._bytes = 1, size
            if monotonic() - self._since >= TURN_SECONDS:
                await asyncio.sleep(0)
                self._since = monotonic()
        if size > LOOK_BYTES:
            return await asyncio.to_thread(lambda: stored.event)
        return stored.event
