"""Answers about where conversations come from and how two differ."""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel

from bough.events.record import ConversationRecord
from bough.server.forms.info import Ledger
from bough.types import JsonObject


class LineageItem(BaseModel):
    """One conversation of a line of descent: `at` events of the one before are shared."""

    id: UUID
    title: str | None
    at: int | None
    event_id: UUID | None

    @classmethod
    def of(cls, record: ConversationRecord) -> LineageItem:
        """Return it from a row."""
        return cls(id=record.id, title=record.title, at=record.forked_at, event_id=record.fork_event)


class LineageInfo(BaseModel):
    """A line of descent, the root first."""

    items: list[LineageItem]


class ComparedSide(BaseModel):
    """What one of two conversations has of its own."""

    id: UUID
    head: int
    own: Ledger
    calls: list[JsonObject]


class ComparedFile(BaseModel):
    """A file that is not the same in both workspaces."""

    path: str
    change: str


class ComparisonInfo(BaseModel):
    """Two conversations side by side."""

    common: int
    a: ComparedSide
    b: ComparedSide
    cost_usd: float | None
    files: list[ComparedFile]
