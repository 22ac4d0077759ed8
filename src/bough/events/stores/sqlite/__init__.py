"""The embedded store: one SQLite file, any number of processes on one machine."""

from bough.events.stores.sqlite.store import SqliteEventStore

__all__ = ["SqliteEventStore"]
