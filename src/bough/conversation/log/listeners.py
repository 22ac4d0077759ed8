"""Who listens to a conversation in this process: told of durable events, and of text on its way."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID

from bough.events.record import StoredEvent
from bough.types import new_id

DeltaKind = Literal["text", "thinking", "tool_arguments"]

CHANNEL_PIECES = 256
"""How many pieces wait for a listener; beyond, the oldest go."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a response while it is being written; never an event.

    It comes after every event that was there before it, and before the event of its response.

    Attributes:
        text: Of the answer, of what the model thinks, or of the JSON of a call's arguments.
        response: The id that the `ModelResponded` of its response will have.
        order: Counts the pieces of a response, from 0.
        head: How many events there were when it came.
        tool_call_id: Of the call that it is a piece of; `tool` is its name.
        lost: How many pieces before this one were dropped, because this listener was slow.
    """

    text: str
    kind: DeltaKind = "text"
    response: UUID = field(default_factory=new_id)
    order: int = 0
    head: int = 0
    tool_call_id: str | None = None
    tool: str | None = None
    lost: int = 0


Update = StoredEvent | Delta
"""What a listener gets: durable events, and pieces of text on their way."""

OnEvent = Callable[[Update], Awaitable[None] | None]
"""A caller's function for updates; it may be a coroutine function."""


Listener: TypeAlias = Callable[[Update], None]
"""Is told of updates, and may not wait."""


class UpdateChannel:
    """What waits for one listener: every event, and the latest pieces. Putting something in never waits."""

    def __init__(self) -> None:
        self._updates: deque[Update | None] = deque()
        self._arrived = asyncio.Event()
        self._pieces = 0
        self._lost = 0

    def put(self, update: Update | None) -> None:
        """Leave an update; None: there will be no more."""
        if isinstance(update, Delta):
            if self._pieces >= CHANNEL_PIECES:
                self._updates.remove(next(update for update in self._updates if isinstance(update, Delta)))
                self._pieces, self._lost = self._pieces - 1, self._lost + 1
            self._pieces += 1
        self._updates.append(update)
        self._arrived.set()

    async def take(self) -> Update | None:
        """Return the next update, waiting for one; None at the end."""
        while not self._updates:
            self._arrived.clear()
            await self._arrived.wait()
        update = self._updates.popleft()
        if isinstance(update, Delta):
            self._pieces -= 1
            update, self._lost = replace(update, lost=self._lost), 0
        return update


class Listeners:
    """The listeners of one conversation. None of them can hold up the run."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self.listeners: list[Listener] = []

    def tell(self, update: Update) -> None:
        """Tell every listener. One that raises is reported to the event loop and not told again."""
        for listener in tuple(self.listeners):
            try:
                listener(update)
            except Exception as error:  # noqa: BLE001 - the listeners' boundary: the event is in the log already
                self.listeners.remove(listener)
                self._report(error)

    @asynccontextmanager
    async def call_for_updates(self, on_event: OnEvent) -> AsyncGenerator[None]:
        """Call `on_event` for every update of the block, in order, and end when it has had the last one.

        The run does not wait for it. One that raises is reported to the event loop and not called again.
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
                called = on_event(update)
                if inspect.isawaitable(called):
                    await called
        except Exception as error:  # noqa: BLE001 - the listeners' boundary, as in `tell`
            self._report(error)

    def _report(self, error: Exception) -> None:
        context = {"message": f"a listener of conversation {self._cid} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
