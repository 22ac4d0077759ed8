"""Validate a bundle completely before any of it is stored. Bundles are untrusted input."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bough.errors import InvalidInput, StoreError
from bough.events.bundle.format import VERSION, invalid_bundle
from bough.events.content import MAX_INPUT_BYTES, sha256_hex
from bough.events.record import ConversationRecord, Range, Status, StoredEvent, moment
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.bundle.spool import EventSpool


_MAX_TIME = 253_402_300_799_999_999  # the last microsecond of the year 9999
_MAX_EVENTS = 1 << 32  # the number of seqs that a log can have

_Id = Annotated[UUID, Field(strict=False)]
_Time = Annotated[int, Field(ge=0, le=_MAX_TIME)]
_Count = Annotated[int, Field(ge=0, lt=_MAX_EVENTS)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Record(_Strict):
    id: _Id
    root: _Id
    parent: _Id | None
    forked_from: _Id | None
    created: _Time
    updated: _Time
    base: _Count
    head: _Count
    forked_at: _Count | None
    status: Status
    title: str | None
    tags: dict[str, str]
    config: JsonObject
    lineage: JsonObject

    def record(self) -> ConversationRecord:
        """Return the record, without the status, which only applies to the exporting store."""
        return ConversationRecord(
            id=self.id, root=self.root, parent=self.parent, forked_from=self.forked_from, base=self.base,
            head=self.head, forked_at=self.forked_at, title=self.title, tags=self.tags, config=self.config,
            lineage=self.lineage, created=moment(self.created), updated=moment(self.updated),
        )  # fmt: skip


class _Header(_Strict):
    format: Literal["bough-bundle"]
    version: Annotated[int, Field(ge=1)]
    conversation: _Record
    ancestors: list[_Record]
    lineage: list[Annotated[tuple[_Id, _Count, _Count], Field(strict=False)]]


class _Line(_Strict):
    seq: _Count
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kind: str
    ts: _Time
    data: str


class _Blob(_Strict):
    blob: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    data: Annotated[str, Field(max_length=MAX_INPUT_BYTES // 3 * 4 + 4)]


class Contents:
    """The checked header of a bundle.

    Attributes:
        record: The conversation.
        ancestors: Its ancestors, each after its own ancestors.
        ranges: The owners of its events, oldest first.
        signer: Public key of the signer, hexadecimal; set after verification.
    """

    def __init__(self, header: _Header) -> None:
        self.record = header.conversation.record()
        self.ancestors = [ancestor.record() for ancestor in header.ancestors]
        self.ranges: list[Range[UUID]] = list(header.lineage)
        self.signer = ""


def read_header(value: Any) -> Contents:
    """Parse and check the first line.

    Raises:
        InvalidInput: The line is not a bundle header, comes from a newer bough, or is inconsistent.
    """
    header = _parse(_Header, value, 1)
    if header.version > VERSION:
        raise invalid_bundle(f"it is {header.format} version {header.version}")
    contents = Contents(header)
    for record in [*contents.ancestors, contents.record]:
        _require(record.base <= record.head, f"{record.id} shares more events than it has")
    _check_descent(contents)
    _check_ranges(contents)
    return contents


def read_event(value: Any, line: int) -> StoredEvent:
    """Parse an event line and check that the event can be decoded.

    Raises:
        InvalidInput: The line is not an event, or comes from a newer bough.
    """
    parsed = _parse(_Line, value, line)
    try:
        data = parsed.data.encode()
        row = (parsed.seq, bytes.fromhex(parsed.id), parsed.kind, parsed.ts, data)
        stored = StoredEvent.of_rows([row])[0]
        _ = stored.event  # decode now: an undecodable event must not get into the store
    except (StoreError, UnicodeEncodeError) as error:
        raise invalid_bundle(f"line {line}: {error}") from error
    return stored


def read_blob(value: Any, line: int, events: EventSpool) -> tuple[str, bytes]:
    """Parse a line with bytes, and check that an earlier event refers to them. Returns their digest and the bytes.

    Raises:
        InvalidInput: Digest or size do not match, no event refers to the bytes, or they are repeated.
    """
    parsed = _parse(_Blob, value, line)
    try:
        data = base64.b64decode(parsed.data, validate=True)
    except ValueError as error:
        raise invalid_bundle(f"line {line}: data: not base64") from error
    _require(sha256_hex(data) == parsed.blob, f"line {line}: the bytes do not match their digest")
    sizes = events.list_sizes(parsed.blob)
    _require(bool(sizes), f"line {line}: no earlier event refers to these bytes")
    _require(sizes == {len(data)}, f"line {line}: the size of the bytes differs from the one in their event")
    _require(not events.has_blob(parsed.blob), f"line {line}: these bytes are repeated")
    return parsed.blob, data


def check_events(contents: Contents, count: int, *, in_order: bool, distinct: int) -> None:
    """Check that the events are exactly those of the header.

    Args:
        count: Number of events.
        in_order: Whether the seqs are consecutive from 0.
        distinct: Number of distinct ids.

    Raises:
        InvalidInput: An event is missing, repeated or out of order.
    """
    if not in_order or count != contents.record.head:
        raise InvalidInput(
            "the bundle has gaps: it was salvaged from a damaged store",
            hint="it can be read, one line of JSON an event, but not continued",
        )
    _require(distinct == count, "two of its events have the same id")


def _check_descent(contents: Contents) -> None:
    """Check that each record refers to earlier ones only, which excludes cycles."""
    earlier = set[UUID]()
    for record in [*contents.ancestors, contents.record]:
        references = {record.parent, record.forked_from, record.root if record.root != record.id else None} - {None}
        _require(references <= earlier, f"{record.id} refers to a conversation that is not listed before it")
        _require(record.id not in earlier, f"{record.id} is listed twice")
        _require(
            (record.parent is not None) == (record.base > 0),
            f"{record.id} shares events without a parent, or has a parent without sharing events",
        )
        earlier.add(record.id)


def _check_ranges(contents: Contents) -> None:
    """Check that the ranges cover the log without gaps, each owned by a record of the bundle."""
    records = {record.id: record for record in [*contents.ancestors, contents.record]}
    expected_lo, owners = 0, set[UUID]()
    for owner, lo, hi in contents.ranges:
        _require(
            owner in records and owner not in owners, "its lineage names an unknown conversation, or one of them twice"
        )
        _require(lo == expected_lo < hi, f"its lineage has a gap or an overlap at {expected_lo}")
        _require(records[owner].base == lo, f"the own events of {owner} do not begin at its base")
        owners.add(owner)
        expected_lo = hi
    _require(expected_lo == contents.record.head, "its lineage does not end at its head")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise invalid_bundle(problem)


def _parse(model: type[Any], value: Any, line: int) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise invalid_bundle(f"line {line}: {field or 'it'}: {first['msg']}") from error
