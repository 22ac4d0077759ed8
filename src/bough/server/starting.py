"""From a body to a conversation that is started, in whichever of the two forms it came."""

from __future__ import annotations

from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import Body
from pydantic import Discriminator, Tag

from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.auth.sealed import MODEL_KEY
from bough.server.bounds.idempotency import digest_of
from bough.server.conversations.conversation import Start, existing, start
from bough.server.conversations.policies import rules_from
from bough.server.forms.conversations import AgentForm, NewConversation
from bough.server.openhands.bodies import FIELDS, StartConversation
from bough.server.openhands.starting import start_of
from bough.types import JsonObject, new_id

_OURS, _THEIRS = "form:ours", "form:openhands"
_OWN_FIELDS = frozenset(NewConversation.model_fields)


def form_of(body: Any) -> str:
    """Return which form a body has: OpenHands' where it says a kind or has a field of that form alone."""
    if not isinstance(body, dict):
        return _THEIRS if isinstance(body, StartConversation) else _OURS
    given = cast("JsonObject", body)
    if any(isinstance(part := given.get(name), dict) and "kind" in part for name in ("agent", "workspace")):
        return _THEIRS
    return _THEIRS if given.keys() & (FIELDS - _OWN_FIELDS) else _OURS


AnyStart = Annotated[
    Annotated[NewConversation, Tag(_OURS)] | Annotated[StartConversation, Tag(_THEIRS)],
    Discriminator(form_of),
    Body(),
]
"""The body of `POST /api/conversations`."""


async def start_conversation(
    access: Access, body: NewConversation | StartConversation, keyed: UUID | None
) -> tuple[ConversationRecord, bool]:
    """Start a conversation, or return the one that the same request made before.

    Returns:
        Its row, and whether it is new.

    Raises:
        Conflict: The id is taken by anything else.
        InvalidInput: A field cannot be honoured; the message names it.
        PermissionDenied: A field needs another role or scope.
    """
    digest = digest_of(body.digestible())
    asked = body.conversation_id if isinstance(body, StartConversation) else body.id
    id = asked or keyed
    if there := await existing(access, id, digest):
        return there, False
    new = start_of if isinstance(body, StartConversation) else _start_of
    planned = new(access, body, id or new_id(), {"request": digest})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return await start(access, planned), True


def _secrets_of(body: NewConversation) -> dict[str, str]:
    """Return the secrets of a body, its model's key among them."""
    key = body.agent.api_key if isinstance(body.agent, AgentForm) else None
    return (body.secrets or {}) | ({} if key is None else {MODEL_KEY: key})


def _start_of(access: Access, body: NewConversation, id: UUID, about: JsonObject) -> Start:
    services = access.services
    folder = services.workspaces.folder_for(access.caller, id, body.workspace and body.workspace.working_dir)
    return Start(
        id=id,
        agent=services.agents.agent_for(access.caller, body.agent),
        workspace=folder,
        title=body.title,
        tags=body.tags,
        rules=rules_from(access, body),
        message=body.message(),
        run=body.run,
        secrets=_secrets_of(body),
        about=about | {"form": "ours"},
    )
