"""Following the run that answers a client, in the client's own request: a client that leaves stops the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID

from bough.cancellation import finish
from bough.errors import NotFound
from bough.events.record import StoredEvent
from bough.server.access import Access, watch_key
from bough.server.live.broadcast import StreamEnd, StreamItem
from bough.server.live.steps import Step, StepReader


class FollowedStep(NamedTuple):
    """A step of a run.

    Attributes:
        head: How many events the conversation has with the event of the step; 0 for a piece of streamed text.
    """

    step: Step
    head: int


@asynccontextmanager
async def follow_run(access: Access, id: UUID, after: int, *, kind: str) -> AsyncGenerator[AsyncIterator[FollowedStep]]:
    """Yield the steps of a conversation after seq `after`. They end only with the block.

    If the block does not end by itself, as when the client disconnects, the run is interrupted.

    Args:
        kind: The client's protocol, for the metrics of streams.

    Raises:
        LimitExceeded: The key or the tenant has the maximum number of streams.
        NotFound: The conversation was deleted, the key has become invalid, or the server stops.
    """
    services = access.services
    with services.limits.stream(access.caller):
        async with (
            _interrupt_if_left(access, id),
            services.broadcasts.join(id, kind=kind) as broadcast,
            watch_key(access, broadcast) as is_refused,
        ):
            # From before the message: the run may have events already, which are then read from the store.
            yield _iterate_steps(broadcast.read(after, is_refused))


async def _iterate_steps(items: AsyncIterator[StreamItem]) -> AsyncIterator[FollowedStep]:
    steps = StepReader()
    async for item in items:
        if isinstance(item, StreamEnd):
            raise NotFound(f"the conversation can no longer be followed: {item.reason}", hint="send it again")
        for step in steps.read(item):
            yield FollowedStep(step, item.seq + 1 if isinstance(item, StoredEvent) else 0)


@asynccontextmanager
async def _interrupt_if_left(access: Access, id: UUID) -> AsyncGenerator[None]:
    has_ended = False
    try:
        yield
        has_ended = True
    except Exception:
        has_ended = True
        raise
    finally:
        if not has_ended:
            # Finished in spite of the cancellation, which would otherwise end the interrupt and leave the run alone.
            await finish(access.services.runs.interrupt(id, by=access.caller.name, reason="the client disconnected"))
