"""Conversations of another framework in an event store: a message is an event, a save ends with its record.

A conversation goes by the name the framework gives it. The messages of its log form a tree by their `parent`: a history
is what is met on the way back from one of them, so that a history which was left stays where it is. A fork is a fork of
the log. What is stored is the framework's own JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import cast
from uuid import UUID, uuid5

from bough.conversation.agent import title_of
from bough.errors import Conflict, CorruptLog, InvalidInput, NotFound
from bough.events.model import Event, ForkedFrom, MessageStored, StateChanged
from bough.events.record import ConversationFilter, ConversationRecord, Lease, StoredEvent
from bough.events.store import StoreAdmin
from bough.types import JsonObject, new_id

FRAMEWORK = "pydantic-ai"
"""What such conversations have as their agent."""

_CONFIG = {"agent": FRAMEWORK}
_KEY = "saved"
_NAMES = UUID("1643eeb9-732e-568d-9279-9f4ab89eb59b")
_PAGE = 500
_LEASE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMessage:
    """A message at its place; `parent` is the one before it, None for the first of a history."""

    id: UUID
    parent: UUID | None
    message: JsonObject


class MessageLog:
    """Named conversations of whole messages in an event store.

    A record is a JSON object of which these keys are read here: `conversation_id` (the name), `head_id` (the last entry
    of the present history), `revision` (different after each save), `scope` and `forked_from` (a name).
    """

    def __init__(self, store: StoreAdmin) -> None:
        self._store = store

    async def get(self, name: str) -> JsonObject | None:
        """Return the record of a conversation; None where there is none. O(1)."""
        return (await self._place(name))[0]

    async def list(self, *, scope: str | None = None, limit: int | None = None) -> list[JsonObject]:
        """Return the records, those saved last first. O(conversations in the store)."""
        records: list[JsonObject] = []
        if limit == 0:
            return records
        filter = ConversationFilter(agent=FRAMEWORK, tags={} if scope is None else {"scope": scope})
        async for row in self._rows(filter):
            record = await self._record_in(row)
            if record is not None and scope in (None, record["scope"]):
                records.append(record)
            if len(records) == limit:
                break
        return records

    async def save(self, record: JsonObject, entries: Sequence[KeptMessage] = (), *, expected: str | None) -> None:
        """Store a record and its new entries in one transaction. O(entries), for a fork too.

        Args:
            entries: In order, each after its parent.
            expected: The revision that is stored; None for a conversation that is not.

        Raises:
            Conflict: Another revision is stored, or an entry that the record or an entry names is not.
            InvalidInput: An id is not a UUID.
        """
        name = record["conversation_id"]
        stored, head = await self._place(name)
        if (stored and stored["revision"]) != expected:
            raise _make_conflict(name)
        events = [*map(_event, entries), StateChanged(changes={_KEY: record}, reason="saved")]
        own_ids = {entry.id for entry in entries} | {_head(stored)}
        needed = {_head(record), *(entry.parent for entry in entries)} - own_ids - {None}
        try:
            await self._write(record, events, cast("set[UUID]", needed), head=head, is_deleted=stored is None)
        except NotFound as error:
            raise _make_conflict(name) from error

    async def delete(self, name: str, *, expected: str) -> None:
        """Delete a conversation. Its messages go with it, or with the last of its forks.

        Raises:
            Conflict: Another revision is stored.
        """
        stored, head = await self._place(name)
        if stored is None or stored["revision"] != expected:
            raise _make_conflict(name)
        cid = id_of(name)
        async with self._hold_lease(cid) as lease:
            closed = StateChanged(changes={_KEY: None, "title": None, "tags": {}}, reason="deleted")
            await self._store.append(cid, [closed], expected_head=head, generation=lease.generation)
        await self._collect(cid)

    async def entry(self, id: UUID) -> KeptMessage:
        """Return one entry. O(1).

        Raises:
            NotFound: There is none.
        """
        return (await self.history(id, limit=1))[0]

    async def history(self, head: UUID | None, *, limit: int | None = None) -> list[KeptMessage]:
        """Return the entries up to `head`, or the last `limit` of them, oldest first. O(events since the first).

        Raises:
            NotFound: There is no such entry (any more).
        """
        messages: list[KeptMessage] = []
        if head is None or limit == 0:
            return messages
        next_id: UUID | None = head
        try:
            async with aclosing(self._back(head)) as events:
                async for stored in events:
                    if stored.kind == "MessageStored" and stored.id == next_id:
                        messages.append(entry := _entry(stored))
                        next_id = entry.parent
                    if next_id is None or len(messages) == limit:
                        return messages[::-1]
        except CorruptLog:
            await self._store.locate(head)  # it may have been deleted meanwhile
            raise
        raise NotFound(f"there is no stored message {next_id}", hint="its conversation may have been deleted")

    async def _write(
        self, record: JsonObject, events: list[Event], needed: set[UUID], *, head: int | None, is_deleted: bool
    ) -> None:
        cid = id_of(record["conversation_id"])
        if head is None and not needed:
            await self._store.create(_row(cid, record, events), events=events)
            return
        if head is None:
            await self._fork(cid, record, events, needed)
            return
        for id in needed:
            await self._store.locate(id, cid=cid)
        if not is_deleted:
            await self._store.append(cid, events, expected_head=head)
            return
        async with self._hold_lease(cid) as lease:  # or it would be removed meanwhile
            changed = StateChanged(changes={"title": _title(events), "tags": _tags(record)}, reason="begun anew")
            await self._store.append(cid, [changed, *events], expected_head=head, generation=lease.generation)

    async def _fork(self, cid: UUID, record: JsonObject, events: list[Event], needed: set[UUID]) -> None:
        if record["forked_from"] is None:
            raise _make_conflict(record["conversation_id"])
        source = id_of(record["forked_from"])
        last, id = max([((await self._store.locate(id, cid=source))[1], id) for id in needed])
        row = await self._store.get(source)
        origin = ForkedFrom(source=source, at=last + 1, event_id=id, source_head=row.head)
        await self._store.fork(
            source,
            at=last + 1,
            id=cid,
            events=[origin, *events],
            title=row.title,
            tags=_tags(record),
            config=_CONFIG,
            lineage={"revision": record["revision"]},
        )

    async def _place(self, name: str) -> tuple[JsonObject | None, int | None]:
        """Return the record of a conversation and the head of its log; None for what there is not."""
        cid = id_of(name)
        try:
            record, head = await self._latest(cid)
        except NotFound:
            return None, None
        if record["conversation_id"] != name if record else (await self._store.get(cid)).config != _CONFIG:
            return None, None  # another's, so that creating it is refused
        return record, head

    async def _latest(self, cid: UUID) -> tuple[JsonObject | None, int]:
        head = 0
        async with aclosing(self._store.read(cid, reverse=True)) as events:
            async for stored in events:
                head = max(head, stored.seq + 1)
                event = stored.event if stored.kind == "StateChanged" else None
                if isinstance(event, StateChanged) and _KEY in event.changes:
                    return event.changes[_KEY], head
        return None, head

    async def _rows(self, filter: ConversationFilter) -> AsyncIterator[ConversationRecord]:
        cursor: str | None = None
        while True:
            page = await self._store.list(filter, cursor)
            for row in page.items:
                yield row
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _record_in(self, row: ConversationRecord) -> JsonObject | None:
        try:
            record, _ = await self._latest(row.id)
        except NotFound:  # deleted since it was listed
            return None
        return record if record and id_of(record["conversation_id"]) == row.id else None

    async def _back(self, id: UUID) -> AsyncGenerator[StoredEvent]:
        """Yield an event and those before it, deleted conversations that its own still shares included."""
        owner, seq = await self._store.locate(id)
        parent: UUID | None = owner
        while parent is not None:
            row = await self._store.peek(parent)
            for hi in range(seq + 1, row.base, -_PAGE):
                for stored in reversed(await self._store.span(parent, max(row.base, hi - _PAGE), hi)):
                    yield stored
            parent, seq = row.parent, row.base - 1

    @asynccontextmanager
    async def _hold_lease(self, cid: UUID) -> AsyncGenerator[Lease]:
        """Keep others from removing a deleted conversation or giving its name anew."""
        lease = await self._store.acquire(cid, f"{FRAMEWORK}/{new_id()}", _LEASE_SECONDS)
        try:
            yield lease
        finally:
            await self._store.release(lease)

    async def _collect(self, cid: UUID | None) -> None:
        """Remove a deleted conversation that has no forks, then those that were kept for it only."""
        while cid is not None:
            try:
                async with self._hold_lease(cid):
                    cid = await self._find_collected(cid)
            except (NotFound, Conflict):  # it is gone, or someone else is at it
                return

    async def _find_collected(self, cid: UUID) -> UUID | None:
        record, _ = await self._latest(cid)
        row = await self._store.get(cid)
        if record is not None or row.config != _CONFIG or await self._store.children(cid):
            return None
        await self._store.delete(cid)
        return row.forked_from


def id_of(name: str) -> UUID:
    """Return the conversation that has a name: the name itself where it is a UUID, else one made from it."""
    try:
        id = UUID(name)
    except ValueError:
        return uuid5(_NAMES, name)
    return id if str(id) == name else uuid5(_NAMES, name)


def entry_id(text: str) -> UUID:
    """Return an entry's id.

    Raises:
        InvalidInput: It is not a UUID in its usual form.
    """
    try:
        id = UUID(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not an id of an entry", hint="entries are named by UUIDs") from error
    if str(id) != text:
        raise InvalidInput(f"{text!r} is not how its UUID is written", hint=f"write {id}")
    return id


def _event(entry: KeptMessage) -> Event:
    return MessageStored(id=entry.id, parent=entry.parent, message=entry.message)


def _entry(stored: StoredEvent) -> KeptMessage:
    event = cast("MessageStored", stored.event)
    return KeptMessage(id=event.id, parent=event.parent, message=event.message)


def _head(record: JsonObject | None) -> UUID | None:
    return entry_id(record["head_id"]) if record and record["head_id"] is not None else None


def _row(cid: UUID, record: JsonObject, events: Sequence[Event]) -> ConversationRecord:
    now = events[-1].ts
    return ConversationRecord(
        id=cid, root=cid, title=_title(events), tags=_tags(record), config=_CONFIG, created=now, updated=now
    )


def _title(events: Iterable[Event]) -> str | None:
    return title_of(next(_prompts(events), "")) or None


def _prompts(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, MessageStored):
            parts: list[JsonObject] = event.message.get("parts", [])
            contents = [part["content"] for part in parts if part["part_kind"] == "user-prompt"]
            texts = [text for content in contents for text in ([content] if isinstance(content, str) else content)]
            yield from (text for text in texts if isinstance(text, str))


def _tags(record: JsonObject) -> dict[str, str]:
    return {} if record["scope"] is None else {"scope": record["scope"]}


def _make_conflict(name: str) -> Conflict:
    return Conflict(
        f"the conversation {name!r} was saved or deleted since it was loaded, or exists already",
        hint="load it again, then save",
        details={"conversation": name},
    )
