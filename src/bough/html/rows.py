"""The rows of a timeline: plain data made from events, one row for a call and its outcome, and finding a text in them.

Each event belongs to exactly one row. A row is known by the seq of its first event.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

from bough.html.fields import read_count, read_list, read_number, read_object, read_objects, read_text, read_texts
from bough.html.numbers import format_bytes, format_count, format_duration, format_usd, parse_moment
from bough.types import Json, JsonObject

Tone: TypeAlias = Literal["", "good", "warn", "bad", "dim"]
Sign: TypeAlias = Literal["ok", "failed", "rejected", "lost", "waiting", "running"]

MAX_FIELD_CHARS = 8192
"""A longer field is cut on the timeline; the event's own page shows all of it."""


_UNSEEN_FIELDS: Final = frozenset(
    {"seq", "seqs", "moment", "turn", "icon", "at", "link", "page", "page_label", "has_result"}
)
"""Fields that say where a row is and how it looks; a search for `run` must not find each row with that icon."""


class Fact(NamedTuple):
    """A short text at the end of a row, such as a duration."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the rows of one conversation have in common.

    Attributes:
        base: The address of the conversation, such as `/c/ID`; empty in a file, where nothing links to a server.
        agent: Name of the agent.
        waiting: The calls that wait for a person now, by id, with `tool`, `arguments`, `risk`, `reason` and `kind`.
        is_running: Whether a call without an outcome may still get one.
        max_field_chars: Longer fields are cut; None for a file, in which nothing is cut.
        now: Times of this day are shown without a date.
    """

    base: str = ""
    agent: str = ""
    waiting: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    is_running: bool = False
    max_field_chars: int | None = None
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the timeline.

    Attributes:
        template: The macro that writes it.
        seqs: The seqs of the events that it shows, ascending.
    """

    template: ClassVar[str] = "line"
    seqs: tuple[int, ...]
    moment: datetime | None = None

    @property
    def seq(self) -> int:
        """The seq of its first event."""
        return self.seqs[0]


@dataclass(frozen=True, kw_only=True)
class AttachedFile:
    """An image or a file of a message."""

    name: str
    facts: str


@dataclass(frozen=True, kw_only=True)
class MessageRow(Row):
    """A message from outside.

    Attributes:
        chips: What the message activated or carries, such as names of skills.
        turn: Number of the turn that it begins; None if it came during a run.
    """

    template: ClassVar[str] = "message"
    sender: str
    text: str
    attachments: tuple[AttachedFile, ...] = ()
    chips: tuple[str, ...] = ()
    turn: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepRow(Row):
    """A response of a model.

    Attributes:
        notes: What is unusual about it: a finish reason, parts that are not text.
    """

    template: ClassVar[str] = "step"
    model: str
    text: str
    thinking: str = ""
    notes: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallRow(Row):
    """A tool call with its outcome.

    Attributes:
        facts: Shown at the end of the row; `result_facts` beside the result.
        error: Why it failed, or was not run.
        events: The fields of its outcome that a cut text links to.
    """

    template: ClassVar[str] = "call"
    id: str
    tool: str
    sign: Sign
    arguments: JsonObject
    subject: str = ""
    result: Json = None
    has_result: bool = False
    error: str = ""
    facts: tuple[Fact, ...] = ()
    result_facts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the row is shown unfolded: failures, and changes of files."""
        return self.sign in ("failed", "rejected") or (self.sign == "ok" and self.tool == "edit_file")


@dataclass(frozen=True, kw_only=True)
class LineRow(Row):
    """Anything else on one line.

    Attributes:
        label: The bold beginning.
        body: What unfolds; a JSON value if it is not a text.
        at: An event of this conversation that the row links to.
        link: An address of the page that the row links to, relative to the site.
        page: A page of the conversation on which a person does something about the event, with its label.
    """

    icon: str
    text: str
    label: str = ""
    tone: Tone = ""
    facts: tuple[Fact, ...] = ()
    body: Json = None
    at: int | None = None
    link: str = ""
    page: str = ""
    page_label: str = ""


@dataclass(frozen=True, kw_only=True)
class ErrorRow(Row):
    """An error that ended a run."""

    template: ClassVar[str] = "error"
    message: str
    hint: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class AskedCall:
    """A call that waits for a person.

    Attributes:
        need: What it needs of the person: an answer, a result, or else an approval.
    """

    id: str
    tool: str
    arguments: JsonObject
    subject: str
    need: str = "requires approval"
    risk: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AskRow(Row):
    """Calls that wait for a person now."""

    template: ClassVar[str] = "ask"
    calls: tuple[AskedCall, ...]


@dataclass(frozen=True, kw_only=True)
class QuietItem:
    """An event that is only bookkeeping."""

    seq: int
    word: str
    text: str


@dataclass(frozen=True, kw_only=True)
class QuietRow(Row):
    """Neighbouring events that are only bookkeeping, folded."""

    template: ClassVar[str] = "quiet"
    items: tuple[QuietItem, ...]


@dataclass(frozen=True, kw_only=True)
class HiddenRow(Row):
    """An event that another row shows.

    Attributes:
        shown_by: The seq of that row.
    """

    template: ClassVar[str] = "hidden"
    shown_by: int


def read_moment(event: JsonObject) -> datetime | None:
    """Return the time of an event; None if it is damaged."""
    return parse_moment(read_text(event, "ts"))


def list_usage_facts(usage: JsonObject) -> list[Fact]:
    """Return tokens and cost of a usage; empty if nothing was used."""
    sent, received = read_count(usage, "input_tokens"), read_count(usage, "output_tokens")
    cost = read_number(usage, "cost_usd")
    facts = [Fact(f"{format_count(sent)} → {format_count(received)} tokens")] if sent or received else []
    if sent and (cached := read_count(usage, "cache_read_tokens")):
        facts.append(Fact(f"{cached / sent:.0%} cached"))
    if cost is not None:
        facts.append(Fact(format_usd(cost)))
    return facts


def make_message(event: JsonObject, turns: Mapping[int, int]) -> MessageRow:
    """Return the row of a `UserMessage`.

    Args:
        turns: The number of the turn that an event begins, by seq.
    """
    parts = read_objects(event, "content")
    texts = [read_text(part, "text") for part in parts if part.get("type") == "text"]
    return MessageRow(
        seqs=(read_count(event, "seq"),),
        moment=read_moment(event),
        sender=read_text(event, "sender") or "user",
        text="\n\n".join(texts),
        attachments=tuple(_describe_attachment(part) for part in parts if part.get("type") != "text"),
        chips=(*read_texts(event, "skills"), *(f"task {task}" for task in read_texts(event, "tasks"))),
        turn=turns.get(read_count(event, "seq")),
    )


def make_step(event: JsonObject) -> StepRow:
    """Return the row of a `ModelResponded`."""
    parts = read_objects(read_object(event, "response"), "parts")
    reason = read_text(event, "finish_reason")
    notes = [f"ended by {reason.replace('_', ' ')}"] if reason not in ("", "stop", "tool_call") else []
    if event.get("partial") is True:
        notes.append("cut off")
    notes += [
        f"part {read_text(part, 'part_kind')}"
        for part in parts
        if part.get("part_kind") not in ("text", "thinking", "tool-call")
    ]
    seconds = read_number(event, "latency_seconds")
    return StepRow(
        seqs=(read_count(event, "seq"),),
        moment=read_moment(event),
        model=read_text(event, "model"),
        text="".join(read_text(part, "content") for part in parts if part.get("part_kind") == "text").strip(),
        thinking="\n".join(read_text(part, "content") for part in parts if part.get("part_kind") == "thinking").strip(),
        notes=tuple(notes),
        facts=(
            *list_usage_facts(read_object(event, "usage")),
            *([] if seconds is None else [Fact(format_duration(seconds))]),
        ),
    )


def make_stored(event: JsonObject) -> MessageRow | StepRow:
    """Return the row of a `MessageStored`, the message of a PydanticAI program."""
    message = read_object(event, "message")
    if message.get("kind") == "response":
        fields = {"response": message, "model": message.get("model_name"), "usage": message.get("usage")}
        return make_step({"seq": event.get("seq"), "ts": event.get("ts"), **fields})
    texts = [_read_stored_text(part) for part in read_objects(message, "parts")]
    return MessageRow(
        seqs=(read_count(event, "seq"),),
        moment=read_moment(event),
        sender=", ".join(dict.fromkeys(read_text(part, "part_kind") for part in read_objects(message, "parts"))),
        text="\n\n".join(filter(None, texts)),
    )


def _read_stored_text(part: JsonObject) -> str:
    content = part.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        item if isinstance(item, str) else read_text({"item": item}, "item") for item in read_list(part, "content")
    ) or read_text(part, "content")


def _describe_attachment(part: JsonObject) -> AttachedFile:
    size = read_number(part, "size_bytes")
    digest = read_text(part, "sha256")
    facts = (
        read_text(part, "media_type"),
        "" if size is None else format_bytes(int(size)),
        f"sha256 {digest[:12]}" if digest else "",
    )
    name = read_text(part, "name") or read_text(part, "path") or read_text(part, "url") or read_text(part, "type")
    return AttachedFile(name=name, facts=" · ".join(filter(None, facts)))


def seqs_of(rows: Collection[Row] | Sequence[Row]) -> list[int]:
    """Return the seqs of the events that rows show, ascending."""
    return sorted(seq for row in rows for seq in row.seqs)


def find_rows(rows: Iterable[Row], text: str) -> list[int]:
    """Return the seqs of the rows that contain a text, ascending. Upper and lower case are equal.

    An event of a folded row has its own seq, so that a reader gets to its line.
    """
    needle = text.casefold()
    seqs: list[int] = []
    for row in rows:
        if isinstance(row, HiddenRow):
            continue  # the row that shows the event is found
        for part in row.items if isinstance(row, QuietRow) else (row,):
            if any(needle in text.casefold() for text in _iterate_texts(part)):
                seqs.append(part.seq)
    return sorted(seqs)


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield the texts of a row, or of a value in it: names and values of JSON, numbers as JSON writes them."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for attribute in fields(value):
            if attribute.name not in _UNSEEN_FIELDS and (item := getattr(value, attribute.name)) is not None:
                yield from _iterate_texts(item)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[str, Any]", value).items():
            yield name
            yield from _iterate_texts(item)
    elif isinstance(value, tuple | list):
        for item in cast("list[Any]", value):
            yield from _iterate_texts(item)
    else:
        yield json.dumps(value)
