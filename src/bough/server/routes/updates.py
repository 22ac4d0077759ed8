"""The route that streams what changed in the caller's tenant, for lists and counts that stay up to date."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from bough.server.access import Access, Reader, watch_key
from bough.server.live.updates import TenantFeed
from bough.server.requests.routing import router
from bough.server.routes.live import RETRY_MILLISECONDS

routes = router("Updates")


@routes.get("/api/updates", response_class=EventSourceResponse)
async def stream_updates(
    access: Reader,
    until: Annotated[Literal["caught_up"] | None, Query(description="End after the current number.")] = None,
) -> EventSourceResponse:
    """Stream changes: `conversation` with the row of one, `approvals` with the number of conversations that wait.

    A row has `id`, `title`, `execution_status`, `head`, `updated_at` and `cost_usd`. Changes of half a second come
    together, a conversation once. After a pause, read the list again: there is no replay.
    """
    access.services.limits.require_stream(access.caller)
    server = access.services.server
    return EventSourceResponse(
        _make_frames(access, ends_at_once=until is not None),
        ping=max(1, round(server.heartbeat_seconds)),
        send_timeout=server.send_seconds,
        headers={"X-Accel-Buffering": "no"},
    )


async def _make_frames(access: Access, *, ends_at_once: bool) -> AsyncIterator[bytes]:
    services = access.services

    def make_feed() -> TenantFeed:
        return TenantFeed(access.store, services.runs.live_among)

    with services.limits.stream(access.caller):
        async with (
            services.feeds.join(access.caller.owner, make_feed) as feed,
            watch_key(access, feed) as is_refused,
        ):
            async for change in feed.read(is_refused):
                text = json.dumps(change.data, ensure_ascii=False, separators=(",", ":"))
                yield ServerSentEvent(data=text, event=change.kind, retry=RETRY_MILLISECONDS).encode()
                if ends_at_once:
                    return
