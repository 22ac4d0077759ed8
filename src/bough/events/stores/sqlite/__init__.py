"""The SQLite store: one file, shared by any number of processes on one machine."""

from bough.events.stores.sqlite.store import SqliteEventStore

__all__ = ["SqliteEventStore"]
