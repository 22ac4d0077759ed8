"""Drafts: encoded events as rows with their checksums, and their changes to the conversation's record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, get_args
from uuid import UUID
from zlib import crc32

from bough.errors import Conflict, InvalidInput
from bough.events.record import KINDS_WITH_FILES, ConversationRecord, Cut, Status, StoredEvent, microseconds
from bough.events.usage import NO_USAGE, USAGE_KINDS, ConversationUsage, sum_events
from bough.types import JsonObject, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

_MIN_ID_LENGTH = 32
_STATUSES = frozenset(get_args(Status))


class EventRow(NamedTuple):
    """An encoded event without its seq.

    Attributes:
        id: The 16 bytes of its UUID.
        ts: Microseconds since 1970.
        data: The payload, JSON.
        checksum: `event_checksum` of the other fields.
    """

    id: bytes
    kind: str
    ts: int
    data: bytes
    checksum: int

    @classmethod
    def of(cls, id: bytes, kind: str, ts: int, data: bytes) -> EventRow:
        """Return a row with its checksum."""
        return cls(id, kind, ts, data, event_checksum(id, kind, ts, data))


class BlobRow(NamedTuple):
    """Bytes that an event of a draft refers to.

    Attributes:
        place: Index of that event in the draft.
        sha256: Hexadecimal.
        read: Returns the bytes; may be called repeatedly.
    """

    place: int
    sha256: str
    media_type: str
    size_bytes: int
    read: Callable[[], bytes]


class Draft(NamedTuple):
    """Encoded events and their changes to the record.

    Attributes:
        rows: In the order of appending. Rows of an import are read from a file while they are iterated.
        changes: New values of `status`, `title` and `tags`, if the events set them.
        blobs: Bytes that the events refer to, stored with them.
        usage: What the events have used. An import counts its own, while it reads them.
    """

    rows: Sequence[EventRow]
    changes: Mapping[str, Any]
    blobs: Sequence[BlobRow] = ()
    usage: ConversationUsage = NO_USAGE

    def make_stored(self, first_seq: int) -> list[StoredEvent]:
        """Return the events as the store returns them after an append at `first_seq`."""
        return StoredEvent.of_rows((first_seq + i, *row[:4]) for i, row in enumerate(self.rows))


class ForkFields(TypedDict, total=False):
    """The arguments of a fork. Omitted fields are empty: nothing is inherited from the source.

    Attributes:
        at: Number of shared events, or the id of the last one; None shares all.
        id: Id of the fork. The same id with the same source, cut and lineage returns the existing fork.
        events: The first own events of the fork.
        config: Data of the conversation layer.
        owner: Owner of the fork.
        lineage: Origin of the fork, for people.
    """

    at: Cut | None
    id: UUID | None
    events: Sequence[Event] | Draft
    title: str | None
    tags: Mapping[str, str] | None
    config: JsonObject | None
    owner: str | None
    lineage: JsonObject | None


class Append(NamedTuple):
    """An append to one conversation, with the conditions under which it is accepted."""

    cid: UUID
    draft: Draft
    generation: int | None
    expected_head: int | None


class ImportPiece(NamedTuple):
    """What an import inserts of one conversation: the record if it is missing, and events from `first` on.

    Attributes:
        record: With `deleted` if only its descendants need it.
        first: Seq of the first event to add: the head of the stored conversation, or `record.base`.
    """

    record: ConversationRecord
    first: int
    events: Draft


def event_checksum(id: bytes, kind: str, ts: int, data: bytes) -> int:
    """Return a 32-bit checksum of an event. It detects damage, not forgery; bundles are signed."""
    return crc32(id + f"{kind}{ts}".encode() + data)


def encode_draft(events: Sequence[Event] | Draft) -> Draft:
    """Encode events for a store; return a draft unchanged. O(bytes).

    Raises:
        InvalidInput: A `StateChanged` event sets an invalid status, title or tags.
        Conflict: Two of the events have the same id.
    """
    if isinstance(events, Draft):
        return events
    if not events:
        return Draft((), {})
    from bough.events.codec import encode

    rows = tuple([_row(event, encode(event)) for event in events])
    if len(rows) > 1 and len({row.id for row in rows}) < len(rows):
        raise Conflict("two of the events to append have the same id", hint="append each event once")
    has_usage = any(event.kind in USAGE_KINDS for event in events)
    usage = sum_events(events) if has_usage else NO_USAGE
    return Draft(rows, _changes(events), tuple(_list_blobs(events)), usage)


def dump(value: Mapping[str, Any]) -> str | None:
    """Return a JSON object as text; None for an empty one.

    Raises:
        InvalidInput: A value is not JSON.
    """
    if not value:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
        return (
            clean(text)
            if "\\u0000" not in text
            else json.dumps(_clean_json(value), ensure_ascii=False, separators=(",", ":"))
        )
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a conversation's config, tags and lineage must be JSON: {error}") from error


def load(text: str | None) -> dict[str, Any]:
    """Return the JSON object that `dump` encoded; an empty one for None."""
    return json.loads(text) if text else {}


def clean(text: str) -> str:
    """Return text that every database accepts, with `?` for lone surrogates and without NUL characters."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def _clean_json(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {clean(str(key)): _clean_json(item) for key, item in value.items()}  # pyright: ignore
        case list() | tuple():
            return [_clean_json(item) for item in value]  # pyright: ignore
        case _:
            return value


def clean_changes(record: ConversationRecord, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's fields with the events' changes applied, validated and cleaned.

    Raises:
        InvalidInput: A field is invalid.
    """
    fields = {"status": record.status, "title": record.title, "tags": record.tags} | dict(changes)
    checked = _check_fields(fields)
    return checked | {"owner": record.owner, "config": load(dump(record.config)), "lineage": load(dump(record.lineage))}


def _row(event: Event, data: bytes) -> EventRow:
    return EventRow.of(event.id.bytes, event.kind, microseconds(event.ts), data)


def _list_blobs(events: Sequence[Event]) -> Iterator[BlobRow]:
    for place, event in enumerate(events):
        if event.kind not in KINDS_WITH_FILES:
            continue
        for part in event.attachments:
            data, digest = part.content, part.sha256
            if data is not None and digest is not None:
                yield BlobRow(place, digest, part.media_type, len(data), lambda data=data: data)


def _changes(events: Iterable[Event]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for event in events:
        if event.kind == "StateChanged":
            changes |= {key: event.changes[key] for key in ("status", "title", "tags") if key in event.changes}
    return _check_fields(changes) if changes else changes


def _check_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _CHECKS[key](value) for key, value in fields.items()}


def _status(value: Any) -> str:
    if value in _STATUSES:
        return value
    raise InvalidInput(f"unknown status {value!r}", hint=f"choose one of: {', '.join(sorted(_STATUSES))}")


def check_title(value: Any) -> str | None:
    """Return a title that every database accepts.

    Raises:
        InvalidInput: The title is not text.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return clean(value)
    raise InvalidInput(f"a title must be text, not {value!r}", hint="give a short text, or None")


def check_tags(value: Any) -> dict[str, str]:
    """Return tags that every database accepts.

    Raises:
        InvalidInput: The tags do not map text to text.
    """
    if isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):  # pyright: ignore
        return {clean(k): clean(v) for k, v in value.items()}  # pyright: ignore
    raise InvalidInput(f"tags must map names to texts, not {value!r}", hint='for example {"team": "sales"}')


_CHECKS: Mapping[str, Any] = {"status": _status, "title": check_title, "tags": check_tags}


def new_record(id: UUID, created: datetime) -> ConversationRecord:
    """Return the record of a new root."""
    return ConversationRecord(id=id, root=id, created=created, updated=created)


def parse_id(value: UUID | str) -> UUID:
    """Return a UUID, parsed if it is text.

    Raises:
        InvalidInput: The text is not a UUID.
    """
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not an id: {value!r}", hint="give a UUID, or its text") from error


def parse_cut(at: Cut | str | None) -> Cut | None:
    """Return a cut of a valid type. The store checks that the log has this position.

    Raises:
        InvalidInput: The cut is neither a count nor the id of an event.
    """
    if at is None or isinstance(at, UUID) or (isinstance(at, int) and not isinstance(at, bool)):
        return at
    if isinstance(at, str) and len(at) >= _MIN_ID_LENGTH:
        return parse_id(at)
    raise InvalidInput(f"cannot cut at {at!r}", hint="give a count of events to share, or the id of the last one")


def plan_fork(fields: ForkFields, now: datetime) -> ConversationRecord:
    """Return the record of a fork from the caller's fields. The store adds its position in the tree.

    Raises:
        InvalidInput: The id is not a UUID.
    """
    id = fields.get("id")
    planned = new_record(new_id() if id is None else parse_id(id), now)
    objects: dict[str, Any] = {key: dict(fields.get(key) or {}) for key in ("tags", "config", "lineage")}
    return replace(planned, owner=fields.get("owner"), title=fields.get("title"), **objects)


def to_uuid(id: bytes | None) -> UUID | None:
    """Return the UUID of 16 bytes; None for None."""
    return None if id is None else UUID(bytes=id)
