"""A run that is iterated: its updates as they come, and no run that continues where nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from bough.conversation.log.listeners import Listener, Update, UpdateChannel


class RunStream(AsyncIterator[Update]):
    """Iterates the durable events and the pieces of text of one run, which begins with the first step.

    Leaving the `async for` statement early asks the run to stop before the next line: an object and not an asynchronous
    generator, since an event loop closes one of those later, when a tool may have begun.

    Args:
        start: Begins the run.
        leave: Stops a run that is under way, and returns when it has ended.
        abandon: Does so where nobody can wait; called on the event loop, and stops it before it returns.
    """

    def __init__(
        self,
        listeners: list[Listener],
        start: Callable[[], asyncio.Task[Any]],
        leave: Callable[[asyncio.Task[Any]], Awaitable[None]],
        abandon: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._run: asyncio.Task[Any] | None = None
        self._is_closed = False
        self._updates = UpdateChannel()
        self._listeners = listeners
        self._start = start
        self._leave = leave
        self._abandon = abandon

    async def __anext__(self) -> Update:
        """Return the next update; begin the run at the first call, and end with it."""
        if self._is_closed:
            raise StopAsyncIteration
        if self._run is None:
            updates = self._updates
            self._listeners.append(updates.put)
            self._run = self._start()
            self._run.add_done_callback(lambda _: updates.put(None))
        try:
            update = await self._updates.take()
        except BaseException:
            await self.aclose()
            raise
        if update is not None:
            return update
        self._stop_listening()
        await self._run
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the run if it is under way, and return when it has ended. Closing twice is fine."""
        run = self._stop_listening()
        if run is None:
            return
        if not run.done():
            await self._leave(run)
        await asyncio.gather(run, return_exceptions=True)

    def _stop_listening(self) -> asyncio.Task[Any] | None:
        self._is_closed = True
        if self._updates.put in self._listeners:
            self._listeners.remove(self._updates.put)
        return self._run

    def __del__(self) -> None:
        if self._is_closed or self._run is None:
            return
        run, abandon = self._stop_listening(), self._abandon
        if run is None or run.done() or (loop := run.get_loop()).is_closed():
            return
        if _is_running_here(loop):
            abandon(run)
        else:
            with suppress(RuntimeError):  # closed in this very moment
                loop.call_soon_threadsafe(abandon, run)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
