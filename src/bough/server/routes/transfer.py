"""Routes for conversations as files: export, import, and adopting an import, which ends its quarantine."""

from __future__ import annotations

import tempfile
from typing import IO, Annotated, Any, Literal, cast

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from bough.events.bundle.keys import parse_public_key, read_known_keys
from bough.server.access import Approver, Reader, Writer
from bough.server.bodies.base import Form
from bough.server.bodies.info import ConversationInfo
from bough.server.bodies.rules import PolicyForm, parse_policy
from bough.server.bounds.etag import set_tag
from bough.server.conversations.conversation import info, info_of_record, open_conversation
from bough.server.conversations.transfer import SPOOLED_BYTES, import_file, iterate_file, write_file
from bough.server.requests.routing import ConversationId, router
from bough.types import JsonObject

routes = router("Transfer")

_MEDIA_TYPES = {"bundle": "application/octet-stream", "jsonl": "application/x-ndjson", "md": "text/markdown"}
_REQUEST_BODY: JsonObject = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Keys = Annotated[
    list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None,
    Query(
        max_length=20,
        description="Public keys, one of which must have signed the bundle; default: known keys.",
    ),
]


class ExportForm(Form):
    """The format of the file."""

    format: Literal["bundle", "jsonl", "md"] = "bundle"


class Adoption(Form):
    """A policy that applies in addition to the rules recorded in the log."""

    policy: PolicyForm | None = None


@routes.post(
    "/api/conversations/{id}/export",
    response_class=Response,
    responses={200: {"description": "The file.", "content": {kind: {} for kind in _MEDIA_TYPES.values()}}},
)
async def export_conversation(id: ConversationId, access: Reader, body: ExportForm | None = None) -> StreamingResponse:
    """Write a conversation to a file: a signed bundle for other stores, JSON lines, or a document to read."""
    form = body or ExportForm()
    file = await write_file(access, await access.store.get(id), form.format)
    suffix = "bough" if form.format == "bundle" else form.format
    headers = {"Content-Disposition": f'attachment; filename="{id}.{suffix}"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(iterate_file(file), headers=headers, media_type=_MEDIA_TYPES[form.format])


@routes.post(
    "/api/conversations/import",
    status_code=201,
    responses={200: {"model": ConversationInfo}},
    openapi_extra=_REQUEST_BODY,
)
async def import_conversation(
    request: Request,
    response: Response,
    access: Writer,
    signed_by: _Keys = None,
    accept_unknown: Annotated[bool, Query(description="Accept bundles with any signature.")] = False,
    workspace: Annotated[
        str | None, Query(min_length=1, max_length=4096, description="The folder on the server.")
    ] = None,
) -> ConversationInfo:
    """Import a conversation from a bundle. It remains in quarantine until it is adopted.

    Importing a bundle again adds nothing (200).
    """
    await access.store.count_new_conversation()
    home = access.services.settings.home
    trusted = [parse_public_key(key) for key in signed_by] if signed_by else read_known_keys(home)
    with cast("IO[bytes]", tempfile.SpooledTemporaryFile(SPOOLED_BYTES)) as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.seek(0)
        options: Any = {"trusted": None if accept_unknown and not signed_by else trusted, "workspace": workspace}
        record, is_new = await import_file(access, file, **options)
    access.services.states.forget(record.id)
    set_tag(response, record.head)
    response.headers["Location"] = f"/api/conversations/{record.id}"
    response.status_code = 201 if is_new else 200
    return await info_of_record(access, record)


@routes.post("/api/conversations/{id}/adopt")
async def adopt_conversation(id: ConversationId, access: Approver, body: Adoption | None = None) -> ConversationInfo:
    """End the quarantine of an import. Its rules apply, narrowed by the server's; its open calls still wait.

    Responds with 403 if the caller may not use the base URL of its model.
    """
    policy = None if body is None or body.policy is None else parse_policy(body.policy.as_json())
    async with open_conversation(access, id) as conversation:
        if conversation.state.quarantined:
            await access.services.agents.require_recorded_address(access.caller, conversation.state)
        await conversation.adopt(by=access.caller.name, policy=policy)
    return await info(access, id)
