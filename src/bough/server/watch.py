"""Streams end when the key that opened them is not valid any more: revoked, expired, or its tenant disabled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from bough.errors import BoughError, Unauthenticated
from bough.server.access import Access
from bough.server.live.broadcast import Broadcast

CHECK_SECONDS = 1.0
"""Between two looks at the key of an open stream."""


async def wait_refused(access: Access) -> None:
    """Return when the key of an open stream is not valid any more. A store that does not answer refuses none."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await access.services.keys.require_valid(access.key)
        except Unauthenticated:
            return
        except BoughError:
            continue


@contextlib.asynccontextmanager
async def watch_key(access: Access, broadcast: Broadcast) -> AsyncGenerator[Callable[[], bool]]:
    """Give whether the key of a reader was refused by now; the broadcast wakes its readers when that happens."""
    refused = asyncio.create_task(wait_refused(access), name="key of a stream")
    refused.add_done_callback(lambda _: broadcast.wake())
    try:
        yield refused.done
    finally:
        refused.cancel()
        await asyncio.gather(refused, return_exceptions=True)
