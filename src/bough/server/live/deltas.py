"""Relaying pieces of text between the processes of one Postgres store: from the running process to those with readers.

A process with a reader of a conversation announces this at once and every ten seconds. While the announcement is
recent, the process that runs the conversation sends the model's text, in at most ten notifications per second and run.
It uses separate connections, and never the transaction of an append. Excess pieces are dropped, because the event
contains the whole text. Workers import this module, so it must not import FastAPI.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from bough.conversation.log.listeners import Delta, Update
from bough.types import new_id

if TYPE_CHECKING:
    from psycopg import AsyncConnection

COLLECT_SECONDS = 0.1
"""How long pieces of one conversation are collected before they are sent, in seconds."""

ANNOUNCED_SECONDS = 30.0
"""How long an announcement is valid, in seconds; it is repeated after a third of that."""

MAX_PAYLOAD_BYTES = 7500
"""Maximum size of a notification; Postgres accepts 8,000 bytes."""

_RECONNECT_SECONDS = 1.0
_IDS_PER_NOTIFICATION = 180

PieceReceiver: TypeAlias = Callable[[UUID, Delta], None]
"""Called with a conversation and a piece of its response that another process sent."""


class DeltaRelay:
    """Sends and receives the pieces of one process. Must be used on the event loop that opens it.

    Args:
        url: The store's URL.
        take: Called with the pieces that other processes send for conversations with readers in this process. None
            receives no pieces.
        list_watched: Returns the conversations that have readers in this process.
        on_drop: Called for pieces that are not sent.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bough",
        take: PieceReceiver | None = None,
        list_watched: Callable[[], Collection[UUID]] = tuple,
        on_drop: Callable[[], object] = lambda: None,
    ) -> None:
        self._url = "postgresql://" + url.split("://", 1)[1]
        self._readers_channel, self._pieces_channel = f"{schema}_readers", f"{schema}_pieces"
        self._take = take
        self._list_watched = list_watched
        self._process = new_id().hex
        self._announced: dict[UUID, float] = {}  # when another process last announced readers
        self._collected: dict[UUID, list[Delta]] = {}
        self._unannounced: set[UUID] = set()
        self._has_announcements = asyncio.Event()
        self._send_connection: AsyncConnection[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._on_drop = on_drop

    async def open(self) -> None:
        """Start to listen and to send. While the database is unavailable, it is retried and pieces are dropped."""
        loops = [self._reconnect(self._listen), self._reconnect(self._send_announcements)]
        self._tasks = [asyncio.create_task(loop, name="pieces of other processes") for loop in loops]

    async def aclose(self) -> None:
        """Stop listening and sending."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def announce(self, cid: UUID) -> None:
        """Announce to the other processes that a conversation has a reader in this process."""
        self._unannounced.add(cid)
        self._has_announcements.set()

    def take_update(self, cid: UUID, update: Update) -> None:
        """Send a piece of text of a run in this process, if another process announced a reader of the conversation."""
        if not isinstance(update, Delta) or not self._is_announced(cid):
            return
        if cid not in self._collected:
            self._collected[cid] = []
            asyncio.get_running_loop().call_later(COLLECT_SECONDS, self._flush, cid)
        pieces = self._collected[cid]
        if pieces and _is_next(pieces[-1], update):
            pieces[-1] = replace(pieces[-1], text=pieces[-1].text + update.text)
        else:
            pieces.append(update)

    def _is_announced(self, cid: UUID) -> bool:
        announced = self._announced.get(cid)
        return announced is not None and time.monotonic() - announced < ANNOUNCED_SECONDS

    def _flush(self, cid: UUID) -> None:
        """Send the collected pieces, unless they are too long or the connection is unavailable or busy."""
        pieces = [(piece.response.hex, piece.kind, piece.offset, piece.text) for piece in self._collected.pop(cid)]
        payload = json.dumps({"p": self._process, "c": cid.hex, "d": pieces}, separators=(",", ":"))
        db = self._send_connection
        is_too_long = len(payload) > MAX_PAYLOAD_BYTES  # characters are bytes: `json.dumps` writes ASCII only
        if is_too_long or db is None or db.closed or db.lock.locked():
            self._on_drop()
            return
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.create_task(self._send(db, payload), name="pieces to others"))

    async def _send(self, db: AsyncConnection[Any], payload: str) -> None:
        from psycopg import Error

        with suppress(Error):  # `_reconnect` replaces a lost connection
            await _notify(db, self._pieces_channel, payload)

    async def _reconnect(self, work: Callable[[AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Do some work on a separate connection, and start it again on a new one whenever the connection is lost."""
        from psycopg import AsyncConnection, Error

        while True:
            with suppress(Error, OSError):
                async with await AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5) as db:
                    await work(db)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen(self, db: AsyncConnection[Any]) -> None:
        """Receive the announcements of other processes and, with `take`, their pieces."""
        from psycopg import sql

        channels = (self._readers_channel, self._pieces_channel) if self._take else (self._readers_channel,)
        for channel in channels:
            await db.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._unannounced.update(self._list_watched())  # again, since pieces may have been missed without a connection
        self._has_announcements.set()
        async for notification in db.notifies():
            if notification.channel == self._readers_channel:
                now = time.monotonic()
                self._announced |= {UUID(part): now for part in notification.payload.split(",")}
                self._announced = {
                    cid: announced for cid, announced in self._announced.items() if now - announced < ANNOUNCED_SECONDS
                }
            elif self._take is not None:
                self._take_payload(json.loads(notification.payload))

    def _take_payload(self, payload: dict[str, Any]) -> None:
        """Pass on the pieces of a notification, unless this process sent it or has no reader of the conversation."""
        cid = UUID(payload["c"])
        if self._take is None or payload["p"] == self._process or cid not in self._list_watched():
            return
        for response, kind, offset, text in payload["d"]:
            self._take(cid, Delta(text=text, kind=kind, response=UUID(hex=response), offset=offset))

    async def _send_announcements(self, db: AsyncConnection[Any]) -> None:
        """Announce new watched conversations at once, and all of them after each third of `ANNOUNCED_SECONDS`."""
        self._send_connection = db
        while True:
            self._has_announcements.clear()
            ids, self._unannounced = [cid.hex for cid in self._unannounced], set()
            for start in range(0, len(ids), _IDS_PER_NOTIFICATION):
                await _notify(db, self._readers_channel, ",".join(ids[start : start + _IDS_PER_NOTIFICATION]))
            try:
                async with asyncio.timeout(ANNOUNCED_SECONDS / 3):
                    await self._has_announcements.wait()
            except TimeoutError:
                self._unannounced.update(self._list_watched())


def _is_next(earlier: Delta, later: Delta) -> bool:
    is_same = (earlier.response, earlier.kind, earlier.tool_call_id) == (later.response, later.kind, later.tool_call_id)
    return is_same and later.offset == earlier.offset + len(earlier.text)


async def _notify(db: AsyncConnection[Any], channel: str, payload: str) -> None:
    await db.execute("select pg_notify(%s, %s)", (channel, payload))
