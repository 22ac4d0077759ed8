"""The connection over which leases are renewed: one of its own, so that no other work keeps a lease waiting."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import Error

from bough.events.record import Lease
from bough.events.stores.postgres.bounds import ANSWER_SECONDS, Watchdog
from bough.events.stores.postgres.connection import Db, connect, store_error
from bough.events.stores.postgres.writing import PostgresWriting


class RenewalConnection:
    """Renews leases over a connection that is made when it is first needed, and again when it was lost.

    Args:
        writing: Makes the writer over a connection.
        watchdog: Ends a renewal that the server does not answer.
    """

    def __init__(self, url: str, schema: str, writing: Callable[[Db], PostgresWriting], watchdog: Watchdog) -> None:
        self._url = url
        self._schema = schema
        self._writing = writing
        self._watchdog = watchdog
        self._db: Db | None = None

    def renew(self, lease: Lease, ttl_seconds: float) -> None:
        """Extend a lease. Blocks.

        Raises:
            Conflict: It was lost meanwhile.
            StoreError: The server cannot be reached.
        """
        try:
            if self._db is None:
                self._db = connect(self._url, self._schema, self._watchdog)
            with self._watchdog.watch(self._db, min(ttl_seconds, ANSWER_SECONDS)), self._db.transaction():
                self._writing(self._db).renew(lease, ttl_seconds)
        except (Error, OSError) as error:
            self.close()
            raise store_error(self._url, error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()
            self._db = None
