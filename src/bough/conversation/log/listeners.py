"""Who listens to a conversation in this process: told of durable events, and of text on its way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from bough.events.record import StoredEvent


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a response while it is being written; never an event.

    Attributes:
        kind: `text` or `thinking`.
    """

    text: str
    kind: str = "text"


Update = StoredEvent | Delta
"""What a listener gets: durable events, and pieces of text on their way."""

OnEvent = Callable[[Update], Awaitable[None] | None]
"""A caller's function for updates; it may be a coroutine function."""


class Audience:
    """The listeners of one conversation. None of them can hold up the run."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self.listeners: list[Callable[[Update], None]] = []

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
        updates: asyncio.Queue[Update | None] = asyncio.Queue()
        calling = asyncio.create_task(self._call_for_each(updates, on_event))
        self.listeners.append(updates.put_nowait)
        try:
            yield
        finally:
            self.listeners.remove(updates.put_nowait)
            updates.put_nowait(None)
            await calling

    async def _call_for_each(self, updates: asyncio.Queue[Update | None], on_event: OnEvent) -> None:
        try:
            while (update := await updates.get()) is not None:
                called = on_event(update)
                if inspect.isawaitable(called):
                    await called
        except Exception as error:  # noqa: BLE001 - the listeners' boundary, as in `tell`
            self._report(error)

    def _report(self, error: Exception) -> None:
        told = {"message": f"a listener of conversation {self._cid} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(told)
