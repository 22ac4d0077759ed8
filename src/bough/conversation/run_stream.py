"""The asynchronous iterator over the updates of a run. Leaving the iteration interrupts the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from bough.conversation.log.listeners import Listener, Update, UpdateChannel


class RunStream(AsyncIterator[Update]):
    """Iterates the durable events and the pieces of text of one run, which begins with the first `__anext__`.

    Leaving the `async for` statement early interrupts the run at once. This is a class and not an asynchronous
    generator, because the event loop closes an abandoned generator later, when another tool may have started.

    Args:
        listeners: The listeners of the conversation.
        start: Begins the run.
        stop: Interrupts the run, and returns when it has ended.
        abandon: Interrupts the run without waiting for its end. It is called on the event loop, and no tool starts
            after it has returned.
    """

    def __init__(
        self,
        listeners: list[Listener],
        start: Callable[[], asyncio.Task[Any]],
        stop: Callable[[asyncio.Task[Any]], Awaitable[None]],
        abandon: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._run: asyncio.Task[Any] | None = None
        self._is_closed = False
        self._updates = UpdateChannel()
        self._listeners = listeners
        self._start = start
        self._stop = stop
        self._abandon = abandon

    async def __anext__(self) -> Update:
        """Return the next update. The first call begins the run, and the iteration ends when the run has ended."""
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
        """Interrupt the run if it is in progress, and return when it has ended. Idempotent."""
        run = self._stop_listening()
        if run is None:
            return
        if not run.done():
            await self._stop(run)
        await asyncio.gather(run, return_exceptions=True)

    def _stop_listening(self) -> asyncio.Task[Any] | None:
        """Close the iterator, and return the task of the run; None if it has not begun."""
        self._is_closed = True
        if self._updates.put in self._listeners:
            self._listeners.remove(self._updates.put)
        return self._run

    def __del__(self) -> None:
        if self._is_closed or self._run is None:
            return
        run, abandon = self._stop_listening(), self._abandon
        if run is None or run.done():
            return
        loop = run.get_loop()
        if loop.is_closed():
            return
        if _is_running_here(loop):
            abandon(run)
        else:
            with suppress(RuntimeError):  # the loop was closed since the check
                loop.call_soon_threadsafe(abandon, run)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
