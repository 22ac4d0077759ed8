"""Listeners of a conversation in this process. They get durable events and pieces of streamed text."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from bough.events.record import StoredEvent
from bough.types import new_id

DeltaKind = Literal["text", "thinking", "tool_arguments"]

CHANNEL_PIECES = 256
"""At most this many pieces are queued for a listener. Then the oldest piece is dropped for each new one."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a response that is being streamed; not an event.

    A listener gets it after all earlier events and before the event of its response.

    Attributes:
        text: Text of the answer, of the model's thinking, or of the JSON of a call's arguments.
        response: The id that the `ModelResponded` of its response will have.
        order: Counts the pieces of a response, from 0.
        offset: How many characters the earlier pieces of the same kind and call have. If a client has received fewer,
            it has missed a piece.
        head: The number of events in the log when the piece arrived.
        tool_call_id: For a piece of arguments, the id of the call.
        tool: For a piece of arguments, the name of the tool.
        lost: How many pieces before this one were dropped because this listener was slow.
    """

    text: str
    kind: DeltaKind = "text"
    response: UUID = field(default_factory=new_id)
    order: int = 0
    offset: int = 0
    head: int = 0
    tool_call_id: str | None = None
    tool: str | None = None
    lost: int = 0


Update = StoredEvent | Delta
"""What a listener gets: a durable event or a piece of streamed text."""

OnEvent = Callable[[Update], Awaitable[None] | None]
"""A caller's function for updates; it may be a coroutine function."""


Listener: TypeAlias = Callable[[Update], None]
"""Called with updates. Must not block."""


class UpdateChannel:
    """The queue of one listener: all events and the latest pieces. `put` never waits."""

    def __init__(self) -> None:
        self._updates: deque[Update | None] = deque()
        self._arrived = asyncio.Event()
        self._queued_pieces = 0
        self._dropped_pieces = 0

    def put(self, update: Update | None) -> None:
        """Add an update; None marks the end."""
        if isinstance(update, Delta):
            if self._queued_pieces >= CHANNEL_PIECES:
                oldest = next(queued for queued in self._updates if isinstance(queued, Delta))
                self._updates.remove(oldest)
                self._queued_pieces, self._dropped_pieces = self._queued_pieces - 1, self._dropped_pieces + 1
            self._queued_pieces += 1
        self._updates.append(update)
        self._arrived.set()

    async def take(self) -> Update | None:
        """Wait for the next update and return it; None at the end."""
        while not self._updates:
            self._arrived.clear()
            await self._arrived.wait()
        update = self._updates.popleft()
        if isinstance(update, Delta):
            self._queued_pieces -= 1
            update = replace(update, lost=self._dropped_pieces)
            self._dropped_pieces = 0
        return update


class LocalFollowers:
    """Sends pieces of text to followers on the event loop of the run. They read events from the store themselves."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, list[Listener]]] = WeakKeyDictionary()

    @contextmanager
    def join(self, store_url: str, cid: UUID, listener: Listener) -> Generator[None]:
        """Call `listener` with the pieces of text of a conversation while the block runs."""
        by_key, key = self._by_loop.setdefault(asyncio.get_running_loop(), {}), (store_url, cid)
        listeners = by_key.setdefault(key, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del by_key[key]

    def publish(self, store_url: str, cid: UUID, piece: Delta) -> None:
        """Send a piece of text to the followers of its conversation."""
        by_key = self._by_loop.get(asyncio.get_running_loop(), {})
        for listener in tuple(by_key.get((store_url, cid), ())):
            listener(piece)


_Key = tuple[str, UUID]
local_followers = LocalFollowers()


class Listeners:
    """The listeners of one conversation. None of them can block the run."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self.listeners: list[Listener] = []

    def notify(self, update: Update) -> None:
        """Call every listener. A listener that raises is removed, and its error is reported to the event loop."""
        for listener in tuple(self.listeners):
            try:
                listener(update)
            except Exception as error:  # noqa: BLE001 - a listener must not fail the writer: the event is in the log already
                self.listeners.remove(listener)
                self._report(error)

    @asynccontextmanager
    async def call_for_updates(self, on_event: OnEvent) -> AsyncGenerator[None]:
        """Call `on_event` for every update during the block, in order. Exits after the call for the last update.

        The run does not wait for `on_event`. If it raises, the error is reported to the event loop, and it is not
        called again.
        """
        updates = UpdateChannel()
        calling = asyncio.create_task(self._call_for_each(updates, on_event))
        self.listeners.append(updates.put)
        try:
            yield
        finally:
            if updates.put in self.listeners:
                self.listeners.remove(updates.put)
            updates.put(None)
            await calling

    async def _call_for_each(self, updates: UpdateChannel, on_event: OnEvent) -> None:
        try:
            while (update := await updates.take()) is not None:
                result = on_event(update)
                if inspect.isawaitable(result):
                    await result
        except Exception as error:  # noqa: BLE001 - as in `notify`
            self._report(error)

    def _report(self, error: Exception) -> None:
        context = {"message": f"a listener of conversation {self._cid} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
