"""Conversations of another framework in an event store. Each message is an event; each save ends with a record.

A conversation has the name that the framework gives it. The messages of its log form a tree through their `parent`. A
history is the path from a message back to its root, so an abandoned history remains in the log. A fork of a
conversation is a fork of its log. Messages and records are stored as the framework's JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import cast
from uuid import UUID, uuid5

from bough.conversation.agent import make_title
from bough.errors import Conflict, CorruptLog, InvalidInput, NotFound
from bough.events.model import Event, ForkedFrom, MessageStored, StateChanged
from bough.events.record import ConversationFilter, ConversationRecord, Lease, StoredEvent
from bough.events.store import StoreAdmin
from bough.types import JsonObject, new_id

FRAMEWORK = "pydantic-ai"
"""The agent in the rows of such conversations."""

_CONFIG = {"agent": FRAMEWORK}
_KEY = "saved"
_NAMES = UUID("1643eeb9-732e-568d-9279-9f4ab89eb59b")
_PAGE = 500
_LEASE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMessage:
    """A stored message. `parent` is the id of the message before it, None for the first message of a history."""

    id: UUID
    parent: UUID | None
    message: JsonObject


class MessageLog:
    """Named conversations of whole messages in an event store.

    A record is a JSON object. This class reads these keys: `conversation_id` (the name), `head_id` (the last entry of
    the present history), `revision` (different after each save), `scope` and `forked_from` (a name).
    """

    def __init__(self, store: StoreAdmin) -> None:
        self._store = store

    async def get(self, name: str) -> JsonObject | None:
        """Return the record of a conversation; None if it does not exist. O(1)."""
        record, _ = await self._read_record(name)
        return record

    async def list(self, *, scope: str | None = None, limit: int | None = None) -> list[JsonObject]:
        """Return the records, most recently saved first. O(conversations in the store)."""
        records: list[JsonObject] = []
        if limit == 0:
            return records
        filter = ConversationFilter(agent=FRAMEWORK, tags={} if scope is None else {"scope": scope})
        async for row in self._list_rows(filter):
            record = await self._read_listed(row)
            if record is not None and scope in (None, record["scope"]):
                records.append(record)
            if len(records) == limit:
                break
        return records

    async def save(self, record: JsonObject, entries: Sequence[KeptMessage] = (), *, expected: str | None) -> None:
        """Store a record and its new entries in one transaction. O(entries), also for a fork.

        Args:
            entries: The new entries, each after its parent.
            expected: The revision that must be stored; None if the conversation must not exist yet.

        Raises:
            Conflict: Another revision is stored, or an entry to which the record or an entry refers is not stored.
            InvalidInput: An id is not a UUID.
        """
        name = record["conversation_id"]
        stored, head = await self._read_record(name)
        revision = None if stored is None else stored["revision"]
        if revision != expected:
            raise _make_conflict(name)
        events = [*map(_make_event, entries), StateChanged(changes={_KEY: record}, reason="saved")]
        known_ids = {entry.id for entry in entries} | {_read_head(stored)}
        needed_ids = {_read_head(record), *(entry.parent for entry in entries)} - known_ids - {None}
        try:
            await self._write(record, events, cast("set[UUID]", needed_ids), head=head, is_deleted=stored is None)
        except NotFound as error:
            raise _make_conflict(name) from error

    async def delete(self, name: str, *, expected: str) -> None:
        """Delete a conversation. Its messages are deleted with it, or with the last fork that shares them.

        Raises:
            Conflict: Another revision is stored.
        """
        stored, head = await self._read_record(name)
        if stored is None or stored["revision"] != expected:
            raise _make_conflict(name)
        cid = derive_id(name)
        async with self._hold_lease(cid) as lease:
            closed = StateChanged(changes={_KEY: None, "title": None, "tags": {}}, reason="deleted")
            await self._store.append(cid, [closed], expected_head=head, generation=lease.generation)
        await self._collect(cid)

    async def entry(self, id: UUID) -> KeptMessage:
        """Return one entry. O(1).

        Raises:
            NotFound: The entry does not exist.
        """
        (entry,) = await self.history(id, limit=1)
        return entry

    async def history(self, head: UUID | None, *, limit: int | None = None) -> list[KeptMessage]:
        """Return the entries up to `head`, or the last `limit` of them, oldest first. O(events since the first).

        Raises:
            NotFound: The entry does not exist or was deleted.
        """
        messages: list[KeptMessage] = []
        if head is None or limit == 0:
            return messages
        next_id: UUID | None = head
        try:
            async with aclosing(self._read_back(head)) as events:
                async for stored in events:
                    if stored.kind == "MessageStored" and stored.id == next_id:
                        entry = _make_entry(stored)
                        messages.append(entry)
                        next_id = entry.parent
                    if next_id is None or len(messages) == limit:
                        return messages[::-1]
        except CorruptLog:
            await self._store.locate(head)  # raises NotFound if the entry has been deleted in the meantime
            raise
        raise NotFound(f"the message {next_id} is not stored", hint="its conversation may have been deleted")

    async def _write(
        self, record: JsonObject, events: list[Event], needed: set[UUID], *, head: int | None, is_deleted: bool
    ) -> None:
        """Create, fork or append to a conversation. A deleted one that still has forks begins again in its old log.

        Args:
            needed: Ids of earlier entries that must be in its log, or in the source of the fork.
            head: The head of its log; None if it does not exist.

        Raises:
            Conflict: A needed entry cannot be in the log, or another process holds the lease.
            NotFound: A needed entry is not stored.
        """
        cid = derive_id(record["conversation_id"])
        if head is None and not needed:
            await self._store.create(_make_row(cid, record, events), events=events)
            return
        if head is None:
            await self._fork(cid, record, events, needed)
            return
        for id in needed:
            await self._store.locate(id, cid=cid)
        if not is_deleted:
            await self._store.append(cid, events, expected_head=head)
            return
        # Without the lease, another process could remove the deleted conversation before the append.
        async with self._hold_lease(cid) as lease:
            changes = {"title": _make_first_title(events), "tags": _make_tags(record)}
            begun = StateChanged(changes=changes, reason="begun anew")
            await self._store.append(cid, [begun, *events], expected_head=head, generation=lease.generation)

    async def _fork(self, cid: UUID, record: JsonObject, events: list[Event], needed: set[UUID]) -> None:
        """Fork the source of a record after the last of the needed entries."""
        if record["forked_from"] is None:
            raise _make_conflict(record["conversation_id"])
        source = derive_id(record["forked_from"])
        located = [((await self._store.locate(id, cid=source))[1], id) for id in needed]
        last_seq, id = max(located)
        row = await self._store.get(source)
        origin = ForkedFrom(source=source, at=last_seq + 1, event_id=id, source_head=row.head)
        await self._store.fork(
            source,
            at=last_seq + 1,
            id=cid,
            events=[origin, *events],
            title=row.title,
            tags=_make_tags(record),
            config=_CONFIG,
            lineage={"revision": record["revision"]},
        )

    async def _read_record(self, name: str) -> tuple[JsonObject | None, int | None]:
        """Return the record of a conversation and the head of its log.

        The record is None if the conversation was deleted. Both are None if it does not exist, or the id belongs to a
        conversation of another kind.
        """
        cid = derive_id(name)
        try:
            record, head = await self._read_latest(cid)
        except NotFound:
            return None, None
        # Not a conversation of this framework: if the caller creates one, the store refuses the id.
        if record and record["conversation_id"] != name:
            return None, None
        if not record and (await self._store.get(cid)).config != _CONFIG:
            return None, None
        return record, head

    async def _read_latest(self, cid: UUID) -> tuple[JsonObject | None, int]:
        """Return the latest record in a log, None if there is none or it was deleted, and the head of the log."""
        head = 0
        async with aclosing(self._store.read(cid, reverse=True)) as events:
            async for stored in events:
                head = max(head, stored.seq + 1)
                event = stored.event if stored.kind == "StateChanged" else None
                if isinstance(event, StateChanged) and _KEY in event.changes:
                    return event.changes[_KEY], head
        return None, head

    async def _list_rows(self, filter: ConversationFilter) -> AsyncIterator[ConversationRecord]:
        cursor: str | None = None
        while True:
            page = await self._store.list(filter, cursor)
            for row in page.items:
                yield row
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _read_listed(self, row: ConversationRecord) -> JsonObject | None:
        """Return the latest record of a listed conversation; None if it was deleted or has another id."""
        try:
            record, _ = await self._read_latest(row.id)
        except NotFound:  # deleted after it was listed
            return None
        return record if record and derive_id(record["conversation_id"]) == row.id else None

    async def _read_back(self, id: UUID) -> AsyncGenerator[StoredEvent]:
        """Yield an event and all events before it, newest first, also those shared with deleted conversations."""
        owner, seq = await self._store.locate(id)
        parent: UUID | None = owner
        while parent is not None:
            row = await self._store.peek(parent)
            for stop in range(seq + 1, row.base, -_PAGE):
                for stored in reversed(await self._store.span(parent, max(row.base, stop - _PAGE), stop)):
                    yield stored
            parent, seq = row.parent, row.base - 1

    @asynccontextmanager
    async def _hold_lease(self, cid: UUID) -> AsyncGenerator[Lease]:
        """Prevent other processes from removing a deleted conversation, or from reusing its name, during the block."""
        lease = await self._store.acquire(cid, f"{FRAMEWORK}/{new_id()}", _LEASE_SECONDS)
        try:
            yield lease
        finally:
            await self._store.release(lease)

    async def _collect(self, cid: UUID | None) -> None:
        """Remove a deleted conversation without forks, then each ancestor that was kept only for it."""
        while cid is not None:
            try:
                async with self._hold_lease(cid):
                    cid = await self._remove_unused(cid)
            except (NotFound, Conflict):  # it was removed, or another process holds its lease
                return

    async def _remove_unused(self, cid: UUID) -> UUID | None:
        """Remove a conversation if it was deleted and has no forks. Returns its source; None if nothing was removed."""
        record, _ = await self._read_latest(cid)
        row = await self._store.get(cid)
        if record is not None or row.config != _CONFIG or await self._store.children(cid):
            return None
        await self._store.delete(cid)
        return row.forked_from


def derive_id(name: str) -> UUID:
    """Return the id of the conversation with a name: the name if it is a UUID, else a UUID derived from it."""
    try:
        id = UUID(name)
    except ValueError:
        return uuid5(_NAMES, name)
    return id if str(id) == name else uuid5(_NAMES, name)


def entry_id(text: str) -> UUID:
    """Return an entry's id as a UUID.

    Raises:
        InvalidInput: The text is not a UUID in canonical form.
    """
    try:
        id = UUID(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not the id of an entry", hint="give a UUID") from error
    if str(id) != text:
        raise InvalidInput(f"{text!r} is not a UUID in canonical form", hint=f"write {id}")
    return id


def _make_event(entry: KeptMessage) -> Event:
    return MessageStored(id=entry.id, parent=entry.parent, message=entry.message)


def _make_entry(stored: StoredEvent) -> KeptMessage:
    event = cast("MessageStored", stored.event)
    return KeptMessage(id=event.id, parent=event.parent, message=event.message)


def _read_head(record: JsonObject | None) -> UUID | None:
    return entry_id(record["head_id"]) if record and record["head_id"] is not None else None


def _make_row(cid: UUID, record: JsonObject, events: Sequence[Event]) -> ConversationRecord:
    now = events[-1].ts
    title, tags = _make_first_title(events), _make_tags(record)
    return ConversationRecord(id=cid, root=cid, title=title, tags=tags, config=_CONFIG, created=now, updated=now)


def _make_first_title(events: Iterable[Event]) -> str | None:
    return make_title(next(_list_prompts(events), "")) or None


def _list_prompts(events: Iterable[Event]) -> Iterator[str]:
    """Yield the texts of users' prompts."""
    for event in events:
        if isinstance(event, MessageStored):
            parts: list[JsonObject] = event.message.get("parts", [])
            contents = [part["content"] for part in parts if part["part_kind"] == "user-prompt"]
            for content in contents:
                items = [content] if isinstance(content, str) else content
                yield from (item for item in items if isinstance(item, str))


def _make_tags(record: JsonObject) -> dict[str, str]:
    return {} if record["scope"] is None else {"scope": record["scope"]}


def _make_conflict(name: str) -> Conflict:
    return Conflict(
        f"the conversation {name!r} was saved or deleted since it was loaded, or already exists",
        hint="load it again, then save",
        details={"conversation": name},
    )
