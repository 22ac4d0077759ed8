"""Cancelling what waits for a writer of a store that is held up: it is written after its waiter was told to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from bough.events.store import EventStore

_TURNS = 5
"""Turns of the event loop in which a request reaches the writer."""


async def cancel_while_writer_is_held(store: EventStore, waiting: Coroutine[Any, Any, object]) -> None:
    """Begin `waiting`, which writes, cancel it before its turn comes, and return when both it and the writer are done.

    It must end with the cancellation.
    """
    may_go_on = threading.Event()
    holding = asyncio.create_task(store.transaction((), lambda _: may_go_on.wait(20)))
    await asyncio.sleep(0)
    task = asyncio.create_task(waiting)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    task.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await holding
