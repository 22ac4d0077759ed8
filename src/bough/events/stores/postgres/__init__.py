"""The Postgres store, shared by any number of processes on many machines."""

from bough.events.stores.postgres.store import PostgresEventStore

__all__ = ["PostgresEventStore"]
