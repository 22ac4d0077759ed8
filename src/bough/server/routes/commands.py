"""OpenHands' routes for commands: start, run, stop, and read the output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

from fastapi import Query, Request
from pydantic import Field

from bough.server.access import CommandReader, CommandWriter
from bough.server.bodies.base import Form, ItemPage, Moment, Success, stamp
from bough.server.environment.commands import CommandForm, CommandInfo, OutputInfo
from bough.server.requests.routing import workspace_router
from bough.server.routes.places import WorkspacePlace, find_place

routes = workspace_router()


class OutputQuery(Form):
    """A filter of output, and the page."""

    command_id__eq: UUID | None = None
    kind__eq: Literal["BashOutput", "BashCommand"] | None = None
    order__gt: int | None = None
    timestamp__gte: Moment | None = None
    timestamp__lt: Moment | None = None
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"
    page_id: str | None = Field(default=None, max_length=80)
    limit: int = Field(default=100, ge=1, le=100)


@routes.post("/bash/start_bash_command")
async def start_command(body: CommandForm, request: Request, access: CommandWriter) -> CommandInfo:
    """Start a command, and return at once."""
    place = await find_place(request, access)
    return access.services.commands.start(access.caller.tenant, body, _resolve_cwd(body, place))


@routes.post("/bash/execute_bash_command")
async def execute_command(body: CommandForm, request: Request, access: CommandWriter) -> OutputInfo:
    """Run a command, and return its output when it has ended."""
    place = await find_place(request, access)
    info = access.services.commands.start(access.caller.tenant, body, _resolve_cwd(body, place))
    return await access.services.commands.wait(access.caller.tenant, info.id)


@routes.post("/bash/bash_commands/{command}/stop")
async def stop_command(command: UUID, request: Request, access: CommandWriter) -> Success:
    """Stop a command by killing it."""
    await find_place(request, access)
    await access.services.commands.stop(access.caller.tenant, command)
    return Success()


@routes.get("/bash/bash_events/search")
async def search_output(
    query: Annotated[OutputQuery, Query()], request: Request, access: CommandReader
) -> ItemPage[OutputInfo | CommandInfo]:
    """Return commands and their output."""
    await find_place(request, access)
    tenant, commands = access.caller.tenant, access.services.commands
    id = query.command_id__eq
    selected = commands.list_for(tenant) if id is None else [commands.find(tenant, id)]
    all_events = [event for command in selected for event in (command.info, *command.output)]
    events = [event for event in all_events if _is_wanted(event, query)]
    events.sort(key=lambda event: (event.timestamp, str(event.id)), reverse=query.sort_order == "TIMESTAMP_DESC")
    ids = [str(event.id) for event in events]
    start = ids.index(query.page_id) if query.page_id in ids else 0
    stop = start + query.limit
    next_page_id = ids[stop] if stop < len(ids) else None
    return ItemPage(items=events[start:stop], next_page_id=next_page_id)


def _is_wanted(event: OutputInfo | CommandInfo, query: OutputQuery) -> bool:
    if query.kind__eq is not None and event.kind != query.kind__eq:
        return False
    if query.order__gt is not None and (isinstance(event, CommandInfo) or event.order <= query.order__gt):
        return False
    start, stop = query.timestamp__gte, query.timestamp__lt
    return (start is None or event.timestamp >= stamp(start)) and (stop is None or event.timestamp < stamp(stop))


def _resolve_cwd(body: CommandForm, place: WorkspacePlace) -> Path:
    return place.base if body.cwd is None else place.resolve_folder(body.cwd)
