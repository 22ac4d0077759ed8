"""Reads and follows the events of a conversation on a server. They are the same objects as those of an event store."""

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

_PAGE_SIZE = 500
_ENVELOPE = ("seq", "id", "kind", "ts")


def read_stored(document: JsonObject) -> StoredEvent:
    """Return an event from its flat form."""
    payload = {name: value for name, value in document.items() if name not in _ENVELOPE}
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
        """Iterate over events by seq, 500 per request.

        Raises:
            NotFound: The server has no such conversation.
        """
        if reverse:
            async for stored in self._read_backwards(start, stop):
                yield stored
            return
        next_seq = start
        while stop is None or next_seq < stop:
            query: dict[str, Any] = {"after": next_seq - 1, "limit": _PAGE_SIZE}
            query |= {} if stop is None else {"before": stop}
            page = await self._transport.send("GET", f"{self._path}/search", query=query)
            for document in page["items"]:
                yield read_stored(document)
            next_seq += len(page["items"])
            if page["next_page_id"] is None:
                return

    async def _read_backwards(self, start: int, stop: int | None) -> AsyncIterator[StoredEvent]:
        before_seq = stop
        while before_seq is None or before_seq > start:
            query: dict[str, Any] = {"after": start - 1, "limit": _PAGE_SIZE, "sort_order": "TIMESTAMP_DESC"}
            query |= {} if before_seq is None else {"before": before_seq}
            page = await self._transport.send("GET", f"{self._path}/search", query=query)
            for document in page["items"]:
                before_seq = document["seq"]
                yield read_stored(document)
            if page["next_page_id"] is None:
                return

    async def follow(self, head: int) -> AsyncIterator[StoredEvent | ServerFrame]:
        """Iterate over live events from seq `head` on, with the streamed pieces of text. Reconnects if necessary.

        Ends after two connections in a row without an event.

        Raises:
            NotFound: The server has no such conversation.
            Unavailable: The server cannot be reached.
        """
        next_seq, empty_connections = head, 0
        while empty_connections < 2:
            query: Mapping[str, Any] = {"after": next_seq - 1} if next_seq else {}
            try:
                async for frame in self._transport.follow(f"{self._path}/stream", query):
                    empty_connections = 0
                    if frame.kind != "event":
                        yield frame
                        continue
                    stored = read_stored(frame.data)
                    next_seq = stored.seq + 1
                    yield stored
            except Unavailable:
                if empty_connections:
                    raise
            empty_connections += 1


class RemoteLogs:
    """Two logs of one server and the number of events that they share, in the form that `compare` reads."""

    def __init__(self, logs: Mapping[UUID, RemoteLog], common: int) -> None:
        self._logs = logs
        self._common = common

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return `a` and the number of shared events; None if there are none.

        `a` takes the place of the ancestor's id, which is unknown: `compare` only uses the number.
        """
        return (a, self._common) if self._common else None

    def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate over the events of one of the two logs."""
        return self._logs[cid].read(start, stop, reverse=reverse)
