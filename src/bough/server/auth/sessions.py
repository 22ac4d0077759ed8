"""Opening and ending sessions of the web page. A session is a row among the keys, with the key that opened it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from bough.errors import LimitExceeded, PermissionDenied
from bough.events.record import moment
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.auth.caller import Caller
from bough.server.auth.keys import IDLE, SERVER, SESSION, hash_key, new_key_text, read_key_id

_MAX_SESSIONS = 50
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class BrowserSession:
    """A new session.

    Attributes:
        text: The text of its key, which is not available later.
    """

    text: str
    expires: datetime


async def open_session(store: EventStore, caller: Caller) -> BrowserSession:
    """Open a session with the rights of the caller's key.

    Raises:
        PermissionDenied: The caller has no key, or a session instead of one.
        LimitExceeded: The key has the maximum number of sessions.
    """
    if caller.key is None or caller.session is not None:
        raise PermissionDenied("a session is opened with a key", hint="send the text of `bough keys create`")
    text = new_key_text()

    def add(tables: Tables) -> datetime:
        now = tables.now()
        # Before the sessions are counted: those that have ended do not count.
        tables.run("server.drop_ended_sessions", parent=caller.key, now=now, idle_since=now - IDLE // _MICROSECOND)
        count_row = tables.one("server.count_sessions", parent=caller.key)
        if count_row is not None and count_row[0] >= _MAX_SESSIONS:
            raise LimitExceeded(f"a key has at most {_MAX_SESSIONS} sessions", hint="sign out in another browser")
        expires = now + SESSION // _MICROSECOND
        tables.run(
            "server.add_session",
            id=read_key_id(text),
            digest=hash_key(text),
            now=now,
            expires=expires,
            parent=caller.key,
        )
        return moment(expires)

    return BrowserSession(text=text, expires=await store.transaction(SERVER, add))


async def end_session(store: EventStore, id: str) -> None:
    """End a session; other processes refuse it within a second."""
    await store.transaction(SERVER, lambda tables: tables.run("server.end_session", id=id, now=tables.now()))
