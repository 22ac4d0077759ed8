"""Pages of events in any form, with stable page ids and filters. A page may end between two parts of an event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from bough.errors import InvalidInput, NotFound
from bough.events.record import StoredEvent
from bough.server.auth.owned import OwnedStore
from bough.server.bodies.base import ItemPage
from bough.server.bodies.events import EventForm, EventPage, EventQuery
from bough.server.bodies.openhands_events import parse_id
from bough.types import JsonObject

_FILTERS = EventPage.model_fields.keys() - {"page_id", "limit", "sort_order", "after", "before"}
_FIRST_ROWS = 16
_BATCH_ROWS = 256
_MAX_BUFFERED = 256
MAX_LOOKED_AT = 5000
"""Maximum number of events that a request reads. A page with a filter may end there before it is full."""

EncodedEvent: TypeAlias = tuple[StoredEvent, Sequence[JsonObject]]
"""An event and its parts in the form of a reader."""


@dataclass(frozen=True, kw_only=True)
class EventReader:
    """Reads one conversation's events in one form.

    Attributes:
        head: Number of events in the log when the request began; later events are ignored.
    """

    store: OwnedStore
    cid: UUID
    head: int
    form: EventForm

    async def page(self, query: EventPage, *, limit: int) -> ItemPage[JsonObject]:
        """Return a page of at most `limit` parts.

        Raises:
            InvalidInput: `page_id` does not belong to this conversation.
        """
        reverse = query.sort_order == "TIMESTAMP_DESC"
        start, stop, first_id = await self._range(query, reverse=reverse)
        is_filtered = not _FILTERS.isdisjoint(query.model_fields_set)
        items: list[JsonObject] = []
        event_count = 0
        rows = _FIRST_ROWS if is_filtered else limit + 1
        async with aclosing(self._batches(start, stop, reverse=reverse, rows=rows)) as batches:
            async for batch in batches:
                for stored, parts in batch:
                    event_count += 1
                    for part in parts:
                        if first_id is not None:
                            if part["id"] != first_id:
                                continue
                            first_id = None
                        if is_filtered and not _is_wanted(part, stored, query):
                            continue
                        if len(items) == limit:
                            return ItemPage(items=items, next_page_id=str(part["id"]))
                        items.append(part)
                    if event_count >= MAX_LOOKED_AT and parts and len(items) < limit:
                        return ItemPage(items=items, next_page_id=await self._id_after(stored.seq, reverse=reverse))
        return ItemPage(items=items)

    async def count(self, query: EventQuery) -> int:
        """Return the number of parts that match a filter. O(events)."""
        total = 0
        async for batch in self._batches(0, self.head, reverse=False):
            total += sum(_is_wanted(part, stored, query) for stored, parts in batch for part in parts)
        return total

    async def one(self, id: str) -> JsonObject:
        """Return one part by its id.

        Raises:
            NotFound: The log has no such event, or the event has no such part.
        """
        part = parse_id(id)
        _, seq = await self.store.locate(part.event, cid=self.cid)
        parts = await self._parts_at(seq)
        if part.part < len(parts):
            return parts[part.part]
        raise NotFound("the event has no part with this number")

    async def _range(self, query: EventPage, *, reverse: bool) -> tuple[int, int, str | None]:
        """Return the range of events to read, and the id of the first part to return; None to return all parts."""
        start = 0 if query.after is None else query.after + 1
        stop = self.head if query.before is None else min(query.before, self.head)
        if query.page_id is None:
            return start, stop, None
        try:
            _, seq = await self.store.locate(parse_id(query.page_id).event, cid=self.cid)
        except NotFound as error:
            hint = "use next_page_id of the previous page"
            raise InvalidInput("page_id does not belong to this conversation", hint=hint) from error
        return (start, min(stop, seq + 1), query.page_id) if reverse else (max(start, seq), stop, query.page_id)

    async def _id_after(self, seq: int, *, reverse: bool) -> str | None:
        """Return the id of the first part after an event in the requested order; None at the end of the log."""
        next_seq = seq - 1 if reverse else seq + 1
        if not 0 <= next_seq < self.head:
            return None
        parts = await self._parts_at(next_seq)
        return str(parts[-1 if reverse else 0]["id"]) if parts else None

    async def _parts_at(self, seq: int) -> Sequence[JsonObject]:
        """Return the parts of one event."""
        async for batch in self._batches(seq, seq + 1, reverse=False):
            for _, parts in batch:
                return parts
        return ()

    async def _batches(
        self, start: int, stop: int, *, reverse: bool, rows: int = _FIRST_ROWS
    ) -> AsyncGenerator[Iterable[EncodedEvent]]:
        """Iterate batches of events with their parts in the requested order.

        Args:
            rows: Number of events to read at first; further ones are read only if the caller needs them.
        """
        encode = self._encode_backwards if reverse else self._encode_forwards
        async with aclosing(encode(start, stop, rows)) as batches:
            async for batch in batches:
                yield batch

    async def _encode_forwards(self, start: int, stop: int, rows: int) -> AsyncGenerator[Iterable[EncodedEvent]]:
        earlier_calls: Mapping[str, str] | None = None  # read for the first event that needs them: most pages have none
        calls: dict[str, str] = {}
        async with aclosing(self._read(start, stop, rows, reverse=False)) as batches:
            async for events in batches:
                if earlier_calls is None and any(map(self.form.needs_calls, events)):
                    earlier_calls = await self._calls_before(start)
                    calls = {**earlier_calls, **calls}
                yield self._encode(events, calls)

    def _encode(self, events: Sequence[StoredEvent], calls: dict[str, str]) -> Generator[EncodedEvent]:
        """Yield events with their parts, and add the calls that they make to `calls`."""
        for stored in events:
            # One event at a time: a model may use the id of a call again, and a result belongs to the call before it.
            calls |= self.form.calls_made(stored)
            yield stored, self.form.encode(stored, calls)

    async def _encode_backwards(self, start: int, stop: int, rows: int) -> AsyncGenerator[Iterable[EncodedEvent]]:
        """Iterate events from the latest to the earliest; buffers results until the response that made their calls."""
        buffered: list[StoredEvent] = []
        async with aclosing(self._read(start, stop, rows, reverse=True)) as batches:
            async for events in batches:
                encoded: list[EncodedEvent] = []
                for stored in events:
                    calls = self.form.calls_made(stored)
                    buffered.append(stored)
                    if not calls and self.form.needs_calls(buffered[0]):
                        if len(buffered) < _MAX_BUFFERED:
                            continue
                        calls = await self._calls_before(stored.seq)
                    encoded += ((event, self.form.encode(event, calls)[::-1]) for event in buffered)
                    buffered = []
                yield encoded
        if buffered:
            calls = await self._calls_before(start)
            yield [(event, self.form.encode(event, calls)[::-1]) for event in buffered]

    async def _read(self, start: int, stop: int, rows: int, *, reverse: bool) -> AsyncGenerator[Sequence[StoredEvent]]:
        """Iterate batches of events. Reads `rows` of them at once, and the others as the caller asks for them."""
        if start >= stop:
            return
        if reverse:
            first_start, first_stop = max(start, stop - rows), stop
            stop = first_start
        else:
            first_start, first_stop = start, min(stop, start + rows)
            start = first_stop
        # In the order of the log, because a reverse read begins with a page of 16 rows, whatever is asked for.
        batch = [stored async for stored in self.store.read(self.cid, first_start, first_stop)]
        yield batch[::-1] if reverse else batch
        if start < stop:
            async with aclosing(self.store.read(self.cid, start, stop, reverse=reverse)) as events:
                batch = list[StoredEvent]()
                async for stored in events:
                    batch.append(stored)
                    if len(batch) == _BATCH_ROWS:
                        yield batch
                        batch = list[StoredEvent]()
                yield batch

    async def _calls_before(self, seq: int) -> Mapping[str, str]:
        """Return the calls of the latest response before an event; empty if a user's message comes first."""
        async with aclosing(self._read(0, seq, _FIRST_ROWS, reverse=True)) as batches:
            async for events in batches:
                for stored in events:
                    if calls := self.form.calls_made(stored):
                        return calls
                    if stored.kind == "UserMessage":
                        return {}
        return {}


def _is_wanted(part: JsonObject, stored: StoredEvent, query: EventQuery) -> bool:
    """Whether a part matches the filter."""
    kinds = getattr(query, "kinds", None)  # only some queries have this field
    if kinds is not None and stored.kind not in kinds.split(","):
        return False
    if query.kind is not None and query.kind.rpartition(".")[2] != part.get("kind"):
        return False
    if query.source is not None and part.get("source") != query.source:
        return False
    if query.body is not None and query.body.lower().encode() not in stored.raw.lower():
        return False
    return _is_within(stored.ts, query.timestamp__gte, query.timestamp__lt)


def _is_within(moment: datetime, start: datetime | None, stop: datetime | None) -> bool:
    return (start is None or moment >= start) and (stop is None or moment < stop)
