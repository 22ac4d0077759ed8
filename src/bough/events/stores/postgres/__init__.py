"""The store for many machines: one Postgres database, any number of processes."""

from bough.events.stores.postgres.store import PostgresEventStore

__all__ = ["PostgresEventStore"]
