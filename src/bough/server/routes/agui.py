"""The route of AG-UI: one run of an agent, as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from fastapi import Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from bough.errors import InvalidInput, NotFound, Unavailable
from bough.extras import missing_package
from bough.server.access import Access, Writer
from bough.server.openai.messages import IGNORED_HEADER
from bough.server.requests.routing import router
from bough.server.routes.openai import CONVERSATION_HEADER
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.server.agui.threads import ThreadRun

routes = router("AG-UI")


@routes.post("/agui/{agent}", response_class=EventSourceResponse)
async def run_agent(agent: str, body: JsonObject, access: Writer) -> Response:
    """Run an agent for a thread of AG-UI. The body is a `RunAgentInput` of AG-UI 1.0, the answer its events.

    A call that needs an approval ends the run with an interrupt, which `resume` of a later run answers. A thread that
    continues from an earlier message is a fork there.
    """
    try:
        # Imported here: servers work without the extra `agui`, and start without its models.
        from bough.server.agui.input import list_ignored, parse_input
        from bough.server.agui.threads import begin_run
    except ImportError as error:
        raise missing_package(error) or Unavailable(f"AG-UI: {error}", hint="pip install 'bough[agui]'") from error
    try:
        spec = access.services.agents.find_named(agent)
    except InvalidInput as error:
        raise NotFound("no agent has that name", hint=error.hint) from None
    # Before a run is started whose events the caller could not read.
    access.services.limits.require_stream(access.caller)
    run = parse_input(body)
    thread = await begin_run(access, spec, run)
    headers = {CONVERSATION_HEADER: str(thread.conversation), "X-Accel-Buffering": "no"}
    if ignored := list_ignored(run):
        headers[IGNORED_HEADER] = ", ".join(ignored)
    server = access.services.server
    return EventSourceResponse(
        _encode(access, thread),
        ping=max(1, round(server.heartbeat_seconds)),
        send_timeout=server.send_seconds,
        headers=headers,
        sep="\n",
    )


async def _encode(access: Access, thread: ThreadRun) -> AsyncGenerator[bytes]:
    from bough.server.agui.events import stream_events

    async for event in stream_events(access, thread):
        yield ServerSentEvent(data=event.model_dump_json(by_alias=True), sep="\n").encode()
