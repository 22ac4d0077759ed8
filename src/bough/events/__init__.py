"""The event log: what happened, where it is kept, and how it is shared between forks.

Names are loaded on first use, so that listing conversations does not pay for the event model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.events.beside import Beside, Tables
    from bough.events.open import open_store
    from bough.events.record import ConversationFilter, ConversationRecord, Lease, Page, StoredEvent
    from bough.events.store import Cut, EventStore
    from bough.events.stores.postgres import PostgresEventStore
    from bough.events.stores.sqlite import SqliteEventStore

__all__ = [
    "Beside",
    "ConversationFilter",
    "ConversationRecord",
    "Cut",
    "EventStore",
    "Lease",
    "Page",
    "PostgresEventStore",
    "SqliteEventStore",
    "StoredEvent",
    "Tables",
    "open_store",
]

_HOMES = {
    "Beside": "beside",
    "ConversationFilter": "record",
    "ConversationRecord": "record",
    "Cut": "store",
    "EventStore": "store",
    "Lease": "record",
    "Page": "record",
    "PostgresEventStore": "stores.postgres",
    "SqliteEventStore": "stores.sqlite",
    "StoredEvent": "record",
    "Tables": "beside",
    "open_store": "open",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
