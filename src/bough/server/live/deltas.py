"""Relaying pieces of text between the processes of one Postgres store, from the running one to those with readers.

A process with a reader announces it, at once and every ten seconds; the process that runs the conversation sends its
model's text while an announcement is recent, at most ten notifications per second and run, on separate connections and
never in the transaction of an append. Excess pieces are dropped: the text is in its event. Workers import this:
it must not import FastAPI.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from bough.conversation.log.listeners import Delta, Update
from bough.types import new_id

if TYPE_CHECKING:
    from psycopg import AsyncConnection

JOIN_SECONDS = 0.1
"""How long pieces of one conversation are collected, in seconds."""

WORD_SECONDS = 30.0
"""How long an announcement is valid, in seconds; it is repeated after a third of that."""

MAX_PAYLOAD_BYTES = 7500
"""Maximum size of a notification; Postgres accepts 8,000 bytes."""

_AWAY_SECONDS = 1.0
_IDS_A_WORD = 180

TakePiece: TypeAlias = Callable[[UUID, str, str], None]
"""Receives a piece that another process sent: conversation, kind, text."""


class DeltaRelay:
    """Sends and receives the pieces of one process. Must be used on the event loop that opens it.

    Args:
        url: The store's URL.
        take: Called with the pieces that other processes send for conversations with readers here.
        read_here: Returns the conversations that have readers here.
        on_drop: Called for pieces that are not sent.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bough",
        take: TakePiece | None = None,
        read_here: Callable[[], Collection[UUID]] = tuple,
        on_drop: Callable[[], object] = lambda: None,
    ) -> None:
        self._url = "postgresql://" + url.split("://", 1)[1]
        self._channels = (f"{schema}_readers", f"{schema}_delta")
        self._take = take
        self._read_here = read_here
        self._process = new_id().hex
        self._heard: dict[UUID, float] = {}
        self._joined: dict[UUID, list[tuple[str, str]]] = {}
        self._words: set[UUID] = set()
        self._woken = asyncio.Event()
        self._sending: AsyncConnection[Any] | None = None
        self._works: list[asyncio.Task[None]] = []
        self._on_drop = on_drop

    async def open(self) -> None:
        """Start to listen and to send. An unavailable server is retried, and pieces are dropped meanwhile."""
        works = [self._repeat(self._listen), self._repeat(self._send_words)]
        self._works = [asyncio.create_task(work, name="pieces of other processes") for work in works]

    async def aclose(self) -> None:
        """Stop."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    def announce(self, cid: UUID) -> None:
        """Announce that a conversation has a reader here."""
        self._words.add(cid)
        self._woken.set()

    def take_update(self, cid: UUID, update: Update) -> None:
        """Send a piece of a response of a run in this process, if another process has a reader."""
        if not isinstance(update, Delta) or time.monotonic() - self._heard.get(cid, -WORD_SECONDS) >= WORD_SECONDS:
            return
        if cid not in self._joined:
            self._joined[cid] = []
            asyncio.get_running_loop().call_later(JOIN_SECONDS, self._flush, cid)
        pieces = self._joined[cid]
        if pieces and pieces[-1][0] == update.kind:
            pieces[-1] = (update.kind, pieces[-1][1] + update.text)
        else:
            pieces.append((update.kind, update.text))

    def _flush(self, cid: UUID) -> None:
        """Send the collected pieces, unless they are too long or the connection is unavailable or busy."""
        pieces = self._joined.pop(cid)
        payload = json.dumps({"p": self._process, "c": cid.hex, "d": pieces}, separators=(",", ":"))
        db = self._sending
        if db is None or db.closed or db.lock.locked() or len(payload) > MAX_PAYLOAD_BYTES:  # JSON of ASCII alone
            self._on_drop()
            return
        self._works = [work for work in self._works if not work.done()]
        self._works.append(asyncio.create_task(self._send(db, payload), name="pieces to others"))

    async def _send(self, db: AsyncConnection[Any], payload: str) -> None:
        from psycopg import Error

        with suppress(Error):  # who holds the connection makes it again
            await _notify(db, self._channels[1], payload)

    async def _repeat(self, work: Callable[[AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Do some work on a separate connection, and again whenever the connection is lost."""
        from psycopg import AsyncConnection, Error

        while True:
            with suppress(Error, OSError):
                async with await AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5) as db:
                    await work(db)
            await asyncio.sleep(_AWAY_SECONDS)

    async def _listen(self, db: AsyncConnection[Any]) -> None:
        from psycopg import sql

        readers, delta = self._channels
        for channel in (readers, delta) if self._take else (readers,):
            await db.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._words.update(self._read_here())  # said again by a process that may have missed answers
        self._woken.set()
        async for notification in db.notifies():
            if notification.channel == readers:
                now = time.monotonic()
                self._heard |= {UUID(part): now for part in notification.payload.split(",")}
                self._heard = {cid: at for cid, at in self._heard.items() if now - at < WORD_SECONDS}
            elif self._take is not None:
                self._take_payload(json.loads(notification.payload))

    def _take_payload(self, payload: dict[str, Any]) -> None:
        cid = UUID(payload["c"])
        if self._take is None or payload["p"] == self._process or cid not in self._read_here():
            return
        for kind, text in payload["d"]:
            self._take(cid, kind, text)

    async def _send_words(self, db: AsyncConnection[Any]) -> None:
        """Announce the conversations with readers here, at once and then repeatedly."""
        self._sending = db
        while True:
            self._woken.clear()
            words, self._words = [cid.hex for cid in self._words], set()
            for start in range(0, len(words), _IDS_A_WORD):
                await _notify(db, self._channels[0], ",".join(words[start : start + _IDS_A_WORD]))
            try:
                async with asyncio.timeout(WORD_SECONDS / 3):
                    await self._woken.wait()
            except TimeoutError:
                self._words.update(self._read_here())


async def _notify(db: AsyncConnection[Any], channel: str, payload: str) -> None:
    await db.execute("select pg_notify(%s, %s)", (channel, payload))
