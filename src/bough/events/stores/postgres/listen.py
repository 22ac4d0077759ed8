"""Listen for the notifications of other processes about watched conversations."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from uuid import UUID

from psycopg import Error, sql

from bough.events.stores.hub import END, Hub
from bough.events.stores.postgres.bounds import ANSWER_SECONDS, CONNECT_SECONDS, Watchdog
from bough.events.stores.postgres.connection import Db, connect
from bough.events.stores.postgres.reading import PostgresReading
from bough.types import Clock

_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0
EVERYTHING = "*"


class Listener:
    """Listens in a thread. Reconnects after a lost connection, and finds missed events by comparing heads.

    Args:
        own: Server processes of this process's connections, whose commits are published directly.
        poll_seconds: How often heads are compared, even without notifications.
        watchdog: Ends a connection that does not answer, so that it is replaced.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        queries: Mapping[str, str],
        hub: Hub,
        own: Collection[int],
        poll_seconds: float,
        clock: Clock,
        watchdog: Watchdog,
    ) -> None:
        self._url = url
        self._schema = schema
        self._queries = queries
        self._hub = hub
        self._own = own
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._watchdog = watchdog
        self._next_look = monotonic() + poll_seconds
        self._stopping = threading.Event()
        self._heads: dict[UUID, int] = {}
        self._db = self._connect()
        self._thread = threading.Thread(target=self._run, name="bough-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the connection. Idempotent; callable from any thread."""
        self._stopping.set()
        self._db.close()

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._receive()
            except (Error, OSError):
                self._connect_again()

    def _receive(self) -> None:
        notifications = list(self._db.notifies(timeout=max(self._next_look - monotonic(), 0.0), stop_after=1))
        others = {notification.payload for notification in notifications if notification.pid not in self._own}
        if others:  # own commits were published when they were made
            self._hub.publish_commit()
        for payload in others:
            self._publish(payload)
        if monotonic() >= self._next_look:  # also during steady traffic, since a notification may be lost
            self._compare()

    def _publish(self, payload: str) -> None:
        if not payload:
            return  # only side tables changed
        if payload == EVERYTHING:
            self._compare()
            return
        changed = [UUID(part) for part in payload.split(",")]
        watched = [cid for cid in changed if self._hub.watches(cid)]
        if not watched:
            return
        heads = self._read_heads(watched)
        for cid in watched:
            self._hub.publish(cid, None if cid in heads else END)

    def _compare(self) -> None:
        self._next_look = monotonic() + self._poll_seconds
        self._hub.publish_commit()  # a notification may have been missed
        watched = self._hub.list_watched()
        if not watched:
            return
        heads = self._read_heads(watched)
        for cid in watched:
            if cid not in heads:
                self._hub.publish(cid, END)
            elif heads[cid] != self._heads.get(cid):
                self._hub.publish(cid, None)
        self._heads = heads

    def _read_heads(self, watched: Sequence[UUID]) -> dict[UUID, int]:
        with self._watchdog.watch(self._db, ANSWER_SECONDS):
            return PostgresReading(self._db, self._queries, self._clock).heads(watched)

    def _connect(self) -> Db:
        db = connect(self._url, self._schema, self._watchdog)
        with self._watchdog.watch(db, CONNECT_SECONDS):
            db.execute(sql.SQL("listen {}").format(sql.Identifier(self._schema)))
        return db

    def _connect_again(self) -> None:
        pause = _RETRY_SECONDS
        while not self._stopping.is_set():
            try:
                self._db.close()
                self._db = self._connect()
                self._compare()  # after `listen`: what was written before it was not notified
            except (Error, OSError):
                self._stopping.wait(pause)  # unavailable: writers get an error, watchers only wait
                pause = min(pause * 2, _MAX_RETRY_SECONDS)
            else:
                return
