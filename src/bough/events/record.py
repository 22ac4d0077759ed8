"""What a store hands out: records of conversations, stored events, leases and pages. Plain data, cheap to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.model import Event

Status: TypeAlias = Literal[
    "idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"
]
"""Where a conversation stands."""


@dataclass(frozen=True, kw_only=True)
class ConversationRecord:
    """A conversation as its row says; `status`, `title` and `tags` follow its `StateChanged` events.

    Attributes:
        parent: The conversation that owns the last shared event (not always the one that was forked); None for roots.
        base: How many events are shared; the conversation's own events start at this seq.
        head: How many events there are, shared ones included; the next event gets this seq.
        forked_from: The conversation that the caller forked.
        forked_at: The cut: how many events of it are shared.
        root: The first conversation of the tree; itself for a root.
        generation: Raised with every lease; an append with an older one is refused.
        config: Whatever the conversation layer keeps with it (agent name, workspace, tags, …).
        lineage: Where the fork came from, in words: actor, reason, overrides.
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


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """An event at its place in a conversation.

    Attributes:
        seq: Its place, from 0, without gaps; the same in every fork that shares it.
        raw: The payload as stored (JSON bytes), without id, kind and time, which have their own fields.
    """

    seq: int
    id: UUID
    kind: str
    ts: datetime
    raw: bytes

    @cached_property
    def event(self) -> Event:
        """The typed event, decoded on first use and kept.

        Raises:
            CorruptLog: The payload is not what its kind says.
        """
        from bough.events.codec import decode

        return decode(self)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to run a conversation until `expires`, unless someone takes it with a higher generation."""

    conversation: UUID
    owner: str
    generation: int
    expires: datetime


@dataclass(frozen=True, kw_only=True)
class ConversationFilter:
    """Which conversations to list; every field that is set must match.

    Attributes:
        text: Occurs in the title, whatever the case.
        agent: Equals `config["agent"]`.
        root: Belongs to this tree.
        include_deleted: Tombstones too.
    """

    status: Status | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    text: str | None = None
    agent: str | None = None
    root: UUID | None = None
    owner: str | None = None
    include_deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """Conversations, the most recently updated first, and the cursor of the next page (None at the end)."""

    items: list[ConversationRecord]
    next_cursor: str | None = None
