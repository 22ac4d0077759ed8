"""Events of a conversation on a server: read in pages, followed as they come, the same objects as from a store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from bough.conversation.remote.transport import ServerFrame, ServerTransport
from bough.errors import Unavailable
from bough.events.record import StoredEvent
from bough.types import JsonObject

_PAGE = 500
_PLACE = ("seq", "id", "kind", "ts")


def read_stored(document: JsonObject) -> StoredEvent:
    """Return an event from its flat form."""
    payload = {name: value for name, value in document.items() if name not in _PLACE}
    return StoredEvent(
        seq=document["seq"],
        id=UUID(document["id"]),
        kind=document["kind"],
        ts=datetime.fromisoformat(document["ts"]),
        raw=json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(),
    )


class RemoteLog:
    """The log of one conversation on a server."""

    def __init__(self, transport: ServerTransport, id: UUID) -> None:
        self._transport = transport
        self._path = f"/api/conversations/{id}/events"

    async def read(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events by seq, 500 a request.

        Raises:
            NotFound: The conversation is not there.
        """
        if reverse:
            async for stored in self._read_backwards(start, stop):
                yield stored
            return
        place = start
        while stop is None or place < stop:
            query: dict[str, Any] = {"after": place - 1, "limit": _PAGE} | ({} if stop is None else {"before": stop})
            page = await self._transport.send("GET", f"{self._path}/search", query=query)
            for document in page["items"]:
                yield read_stored(document)
            place += len(page["items"])
            if page["next_page_id"] is None:
                return

    async def _read_backwards(self, start: int, stop: int | None) -> AsyncIterator[StoredEvent]:
        before_seq = stop
        while before_seq is None or before_seq > start:
            query: dict[str, Any] = {"after": start - 1, "limit": _PAGE, "sort_order": "TIMESTAMP_DESC"}
            query |= {} if before_seq is None else {"before": before_seq}
            page = await self._transport.send("GET", f"{self._path}/search", query=query)
            for document in page["items"]:
                before_seq = document["seq"]
                yield read_stored(document)
            if page["next_page_id"] is None:
                return

    async def follow(self, head: int) -> AsyncIterator[StoredEvent | ServerFrame]:
        """Iterate events from seq `head` on as they come, with pieces of text; a lost connection is made anew.

        Raises:
            NotFound: The conversation is not there.
            Unavailable: The server cannot be reached.
        """
        place, lost = head, 0
        while lost < 2:
            query: Mapping[str, Any] = {"after": place - 1} if place else {}
            try:
                async for frame in self._transport.follow(f"{self._path}/stream", query):
                    lost = 0
                    if frame.kind != "event":
                        yield frame
                        continue
                    stored = read_stored(frame.data)
                    place = stored.seq + 1
                    yield stored
            except Unavailable:
                if lost:
                    raise
            lost += 1  # an end without a frame in between, twice: nobody is there


class RemoteLogs:
    """Two logs of one server and how much they share, as `compare` reads them."""

    def __init__(self, logs: Mapping[UUID, RemoteLog], common: int) -> None:
        self._logs = logs
        self._common = common

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return how much they share; who wrote that is not asked."""
        return (a, self._common) if self._common else None

    def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events of one of them."""
        return self._logs[cid].read(start, stop, reverse=reverse)
