"""The data that stores return: records of conversations, stored events, leases and pages. Cheap to import."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from bough.errors import CorruptLog, InvalidInput
from bough.events.usage import NO_USAGE, ConversationUsage
from bough.markdown import fence, plain
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.integrity import IntegrityFinding
    from bough.events.model import Event


MAX_USD: Final = 1_000_000_000.0
"""Highest number of dollars in a filter."""

MAX_DRAWN: Final = 200
"""How many conversations of a tree are drawn in a notebook."""

Owner = TypeVar("Owner")

Range: TypeAlias = tuple[Owner, int, int]
"""`(owner, lo, hi)`: the conversation `owner` owns the events with `lo <= seq < hi`."""


def clip(ranges: Iterable[Range[Owner]], start: int, stop: int) -> list[Range[Owner]]:
    """Return the ranges limited to `start <= seq < stop`, without empty ones."""
    parts = ((owner, max(lo, start), min(hi, stop)) for owner, lo, hi in ranges)
    return [(owner, lo, hi) for owner, lo, hi in parts if lo < hi]


def find_owner(ranges: Iterable[Range[Owner]], seq: int) -> Owner | None:
    """Return the owner of the event at `seq`; None if no range contains it."""
    return next((owner for owner, lo, hi in ranges if lo <= seq < hi), None)


def find_last_shared(a: Sequence[Range[Owner]], b: Sequence[Range[Owner]]) -> tuple[Owner, int] | None:
    """Return (owner of the last shared event, number of shared events) of two logs; None if they share nothing."""
    shared: tuple[Owner, int] | None = None
    for (owner, lo, hi), (other, other_lo, other_hi) in zip(a, b, strict=False):
        if owner != other or lo != other_lo or lo == min(hi, other_hi):
            break
        shared = (owner, min(hi, other_hi))
        if hi != other_hi:
            break
    return shared


Status: TypeAlias = Literal[
    "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"
]
"""Status of a conversation."""

Cut: TypeAlias = int | UUID
"""Where to cut: a count of events to share (0 … head), or the id of the last event to share."""

Order: TypeAlias = Literal["updated_desc", "updated", "created_desc", "created", "cost_desc", "cost"]
"""Order of a list of conversations. Those with equal values are ordered by `number`."""

KINDS_WITH_FILES: Final = ("UserMessage", "ToolReturned")
"""The kinds of events that may refer to images and files, whose bytes the store keeps beside them."""

DeleteMode: TypeAlias = Literal["tombstone", "erase", "cascade"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return a datetime as microseconds since 1970, without rounding, as stores record times."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, kw_only=True)
class ConversationRecord:
    """The row of a conversation. Its `StateChanged` events set `status`, `title` and `tags`.

    Attributes:
        parent: The conversation that owns the last shared event (not always the one that was forked); None for roots.
        base: Number of shared events; the conversation's own events start at this seq.
        head: Number of events, including shared ones; the next event gets this seq.
        forked_from: The conversation that the caller forked.
        forked_at: The cut: how many events of that conversation are shared.
        root: The first conversation of the tree; the conversation's own id for a root.
        generation: Raised by every lease. Appends with an older generation are refused.
        config: Data of the conversation layer (agent name, workspace, …).
        lineage: Origin of the fork, for people: actor, reason, overrides.
        project: The folder that the creator of the root assigned it to. Forks belong to their root's.
        imported: Own events before this seq were imported; None if none were.
        usage: Usage of its own events, written with them; 0 for tombstones. Usage before a fork's cut belongs to the
            conversations that own those events.
        number: Position in `EventStore.scan`, specific to the store.
    """

    id: UUID
    root: UUID
    parent: UUID | None = None
    base: int = 0
    head: int = 0
    forked_from: UUID | None = None
    forked_at: int | None = None
    fork_event: UUID | None = None
    generation: int = 0
    deleted: bool = False
    status: Status = "idle"
    owner: str | None = None
    title: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    config: JsonObject = field(default_factory=dict[str, Any])
    lineage: JsonObject = field(default_factory=dict[str, Any])
    created: datetime
    updated: datetime
    project: str | None = None
    imported: int | None = None
    usage: ConversationUsage = NO_USAGE
    number: int = field(default=0, compare=False)


EventTuple: TypeAlias = tuple[int, bytes, str, int, bytes]
"""seq, the 16 bytes of the id, kind, microseconds since 1970, payload."""

_make = cast("Callable[[type[StoredEvent], EventTuple], StoredEvent]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]


class StoredEvent(EventTuple):
    """An event at its position in a conversation. Immutable; equal if seq, id, kind, time and payload are equal.

    It is a tuple, the row of the store. The id, the time and the typed event are built on first access, so that loading
    a long log costs little more than the `select`.

    Attributes:
        seq: Position from 0, without gaps; the same in every fork that shares the event.
        microseconds: Time of the event, since 1970.
        raw: The payload as stored (JSON bytes), without id, kind and time, which have their own fields.
    """

    def __new__(cls, *, seq: int, id: UUID, kind: str, ts: datetime, raw: bytes) -> StoredEvent:
        """Create an event from its fields."""
        return _make(cls, (seq, id.bytes, kind, microseconds(ts), raw))

    @staticmethod
    def of_rows(rows: Iterable[EventTuple]) -> list[StoredEvent]:
        """Return the events of rows `(seq, id, kind, microseconds, payload)`, in order."""
        return list(map(event_of, rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (StoredEvent, tuple(self))

    seq: int = property(itemgetter(0))  # pyright: ignore[reportAssignmentType]
    kind: str = property(itemgetter(2))  # pyright: ignore[reportAssignmentType]
    microseconds: int = property(itemgetter(3))  # pyright: ignore[reportAssignmentType]
    raw: bytes = property(itemgetter(4))  # pyright: ignore[reportAssignmentType]

    @cached_property
    def id(self) -> UUID:
        """The event's id, unique for ever."""
        return UUID(bytes=self[1])

    @property
    def id_text(self) -> str:
        """The event's id as text, without building a UUID."""
        digits = self[1].hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    @cached_property
    def ts(self) -> datetime:
        """Time of the event, UTC."""
        return moment(self[3])

    @cached_property
    def event(self) -> Event:
        """The typed event, decoded on first access and cached.

        Raises:
            StoreError: A newer version of bough wrote the event.
            CorruptLog: The payload does not match its kind.
        """
        from bough.events.codec import decode

        return decode(self.seq, self.id, self.kind, self.ts, self.raw)

    def as_json(self) -> JsonObject:
        """Return the event as one flat JSON object: seq, id, kind, ts, then the payload.

        Raises:
            CorruptLog: The payload is not a JSON object.
        """
        fields = {"seq": self.seq, "id": self.id_text, "kind": self.kind, "ts": self.ts.isoformat()}
        try:
            return fields | json.loads(self.raw)
        except (ValueError, TypeError) as error:
            raise CorruptLog(
                f"event {self.id} (seq {self.seq}, {self.kind}) cannot be read: {error}",
                hint="`bough doctor` checks the whole store",
                details=fields,
            ) from error

    def __repr__(self) -> str:
        return f"StoredEvent(seq={self.seq}, id={self.id}, kind={self.kind!r}, raw={self.raw[:60]!r})"


event_of: Callable[[EventTuple], StoredEvent] = partial(_make, StoredEvent)
"""Return the event of a row `(seq, id, kind, microseconds, payload)`."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to run a conversation until `expires`, or until another owner takes it with a higher generation."""

    conversation: UUID
    owner: str
    generation: int
    expires: datetime


@dataclass(frozen=True, kw_only=True)
class ConversationFilter:
    """Which conversations to list; every field that is set must match.

    Attributes:
        text: Text in the title, case-insensitive.
        agent: Value of `config["agent"]`.
        root: Root of the tree.
        include_deleted: Whether to include tombstones.
        project: Project of the root.
        folder: An absolute path. The workspace of the conversation or of its root is this folder or lies below it.
        ids: Ids of the conversations.
        statuses: Any of these statuses; combined with `status`, both must match.
        created_after: Created at this time or later; `updated_after` likewise.
        created_before: Created earlier; `updated_before` likewise.
        min_cost_usd: At least this cost in dollars; see `ConversationRecord.usage`.

    Raises:
        InvalidInput: `min_cost_usd` is not a number of dollars, 0 or above, or `folder` is not an absolute path.
    """

    status: Status | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    text: str | None = None
    agent: str | None = None
    root: UUID | None = None
    owner: str | None = None
    include_deleted: bool = False
    project: str | None = None
    folder: str | None = None
    ids: Collection[UUID] | None = None
    statuses: Collection[Status] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    min_cost_usd: float | None = None

    def __post_init__(self) -> None:
        folder: Any = self.folder
        if folder is not None and not (isinstance(folder, str) and folder.startswith("/")):
            raise InvalidInput(f"the folder cannot be {folder!r}", hint="give an absolute path as text")
        cost: Any = self.min_cost_usd
        if cost is None:
            return
        is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
        if not is_number or not 0 <= cost <= MAX_USD:  # false for NaN
            raise InvalidInput(f"the lowest cost cannot be {cost!r}", hint="give a number of dollars, 0 or above")


@dataclass(frozen=True, kw_only=True)
class Page:
    """Conversations in the requested order, and the cursor of the next page (None at the end).

    Attributes:
        damaged: Findings for conversations with damaged rows, which are not in `items`.
    """

    items: list[ConversationRecord]
    next_cursor: str | None = None
    damaged: list[IntegrityFinding] = field(default_factory=list["IntegrityFinding"])

    def _repr_markdown_(self) -> str:
        return draw_tree(self.items)


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What `EventStore.prune` deleted: the number of conversations, and the payload bytes of their own events."""

    deleted: int
    bytes: int


OnIndexed: TypeAlias = Callable[[int, int], None]
"""Called as `on_indexed(done, total)` while messages are indexed."""


@dataclass(frozen=True, kw_only=True)
class SearchHit:
    """A message that matches.

    Attributes:
        conversation: The conversation that the message was written in; forks that share it have the same `seq`.
        title: Title of that conversation.
        seq: Position of the message.
        who: `user` for messages, `assistant` for answers of the model.
        when: Time of the message, UTC.
        snippet: The text around the first match, on one line.
        matches: The ranges of `snippet` that match, as (start, end) in characters.
    """

    conversation: UUID
    title: str | None
    seq: int
    who: Literal["user", "assistant"]
    when: datetime
    snippet: str
    matches: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchPage:
    """Hits, the newest first, and the cursor of the next page (None at the end)."""

    items: list[SearchHit]
    next_cursor: str | None = None


@dataclass(frozen=True, kw_only=True)
class MessageQuery:
    """What to search for, and where.

    Attributes:
        text: Words, all of which are required. Quotes make a phrase, `-word` excludes, `word*` is a prefix. Case and
            accents do not count. Everything else is text.
        tags: Tags that the conversation has.
        since: Only messages at this time or later.
        project: Project of the root, as in `ConversationFilter`.
        owner: Only conversations of this owner.
        unowned: Only conversations without an owner.
        limit: Maximum number of hits, from 1 to 100.
        cursor: `next_cursor` of the page before.
    """

    text: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    since: datetime | None = None
    project: str | None = None
    owner: str | None = None
    unowned: bool = False
    limit: int = 20
    cursor: str | None = None


_MAX_INTEGER = 2**63 - 1


def encode_cursor(value: int, number: int) -> str:
    """Return the cursor after the record with this number.

    Args:
        value: What the list is ordered by: microseconds, or billionths of a dollar.
    """
    return urlsafe_b64encode(b"%d.%d" % (value, number)).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> tuple[int, int] | None:
    """Return the value and the number of a cursor; see `encode_cursor`.

    Raises:
        InvalidInput: The cursor is invalid.
    """
    if cursor is None:
        return None
    try:
        value, number = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).split(b".")
        position = int(value), int(number)
    except ValueError as error:
        raise _invalid_cursor(cursor) from error
    if max(map(abs, position)) > _MAX_INTEGER:  # no database accepts such a number as a parameter
        raise _invalid_cursor(cursor)
    return position


def _invalid_cursor(cursor: str) -> InvalidInput:
    return InvalidInput(f"invalid cursor {cursor!r}", hint="use the next_cursor of the page before, or none")


def list_branches(records: Sequence[ConversationRecord]) -> Iterator[tuple[ConversationRecord, str]]:
    """Yield (conversation, lines drawn before it) for a tree: depth first, older forks first.

    A fork of a conversation that is not among the records is drawn as a root.
    """
    record_ids = {record.id for record in records}
    forks: dict[UUID | None, list[ConversationRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.created, record.id), reverse=True):
        forks[record.forked_from if record.forked_from in record_ids else None].append(record)
    # A stack instead of recursion, because a chain of forks may be longer than the recursion limit.
    stack = [(record, "", "") for record in forks[None]]
    while stack:
        record, stem, fork_stem = stack.pop()
        yield record, stem
        for index, fork in enumerate(forks[record.id]):
            # Popped last in, first out: the fork pushed first is drawn last.
            branch, gap = ("└─ ", "   ") if index == 0 else ("├─ ", "│  ")
            stack.append((fork, fork_stem + branch, fork_stem + gap))


def draw_tree(records: Sequence[ConversationRecord]) -> str:
    """Return a tree of forks as Markdown, one line a conversation; the first `MAX_DRAWN`."""
    lines = [_draw(record, stem) for record, stem in list_branches(records[:MAX_DRAWN])]
    if len(records) > MAX_DRAWN:
        lines.append(f"… and {len(records) - MAX_DRAWN} more")
    return fence("\n".join(lines) or "no conversations")


def _draw(record: ConversationRecord, stem: str) -> str:
    cut = f"@{record.forked_at} " if record.forked_at is not None else ""
    title = plain(record.title or "", 80)
    return f"{stem}{cut}{record.id.hex[-8:]}  {record.status}  {record.head} events  {title}".rstrip()


class Ancestry(list[ConversationRecord]):
    """The conversations from which one was forked, oldest first, and itself last. A notebook draws it as a tree."""

    def _repr_markdown_(self) -> str:
        return draw_tree(self)
