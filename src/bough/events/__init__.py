"""The event log: what happened, where it is kept, and how it is shared between forks.

Names are loaded on first use, so that listing conversations does not pay for the event model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.events.memory import MemoryEventStore
    from bough.events.open import open_store
    from bough.events.postgres import PostgresEventStore
    from bough.events.record import ConversationFilter, ConversationRecord, Lease, Page, StoredEvent
    from bough.events.sqlite import SqliteEventStore
    from bough.events.store import Cut, EventStore

__all__ = [
    "ConversationFilter",
    "ConversationRecord",
    "Cut",
    "EventStore",
    "Lease",
    "MemoryEventStore",
    "Page",
    "PostgresEventStore",
    "SqliteEventStore",
    "StoredEvent",
    "open_store",
]

_HOMES = {
    "ConversationFilter": "record",
    "ConversationRecord": "record",
    "Cut": "store",
    "EventStore": "store",
    "Lease": "record",
    "MemoryEventStore": "memory",
    "Page": "record",
    "PostgresEventStore": "postgres",
    "SqliteEventStore": "sqlite",
    "StoredEvent": "record",
    "open_store": "open",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
