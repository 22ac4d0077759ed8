"""Starting the conversation of a request, or finding the one that the same request started earlier."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.auth.sealed import MODEL_KEY
from bough.server.bodies.conversations import NewConversation, StartConversation, ThresholdsBody
from bough.server.bounds.etag import compute_digest
from bough.server.conversations.agents import refuse_if_set, resolve_agent
from bough.server.conversations.conversation import Start, find_existing, start
from bough.server.conversations.policies import openhands_rules, rules_from
from bough.types import JsonObject, new_id

_REFUSED = {
    "agent_definitions": "name a registered agent with sub_agents",
    "hook_config": "hooks are the operator's: hooks.json in the home",
    "plugins": "use skills",
    "client_tools": "use an MCP server of a registered agent",
    "agent_launch_additions": "give the agent itself",
    "worktree": 'fork with workspace: "worktree"',
    "worktree_options": 'fork with workspace: "worktree"',
    "agent_settings": "give agent",
    "agent_profile_id": "give agent",
    "parent_conversation_id": "use /api/tasks",
    "secrets_encrypted": "give secrets in clear over TLS",
    "conversation_runtime": "there is one runtime here",
    "container": "the executor is the operator's",
}
_THRESHOLDS: Mapping[str, int] = {
    "action_observation": 4, "action_error": 3, "monologue": 3, "alternating_pattern": 6,
}  # fmt: skip
"""The defaults of OpenHands' detector of stuck agents."""


async def start_conversation(
    access: Access, body: NewConversation | StartConversation, idempotency_id: UUID | None
) -> tuple[ConversationRecord, bool]:
    """Start a conversation, or return the one that the same request started earlier.

    Args:
        idempotency_id: The id that is derived from the request's `Idempotency-Key`.

    Returns:
        The row, and whether it is new.

    Raises:
        Conflict: Another request used the id.
        InvalidInput: A field cannot be used; the message names it.
        PermissionDenied: A field needs another role or scope.
    """
    digest = compute_digest(body.digestible())
    requested_id = body.conversation_id if isinstance(body, StartConversation) else body.id
    id = requested_id or idempotency_id
    record = await find_existing(access, id, digest)
    if record is not None:
        return record, False
    return await start(access, _plan(access, body, id or new_id(), digest)), True


def _plan(access: Access, body: NewConversation | StartConversation, id: UUID, digest: str) -> Start:
    """Return the conversation to start, from a body of bough's or OpenHands' form.

    Raises:
        InvalidInput: A field cannot be used.
        PermissionDenied: A field needs another role or scope.
    """
    config: JsonObject = {"request": digest}
    if isinstance(body, StartConversation):
        _refuse_unsupported(body)
        agent, rules, title = resolve_agent(access, body.agent), openhands_rules(access, body), None
        options = ("security_analyzer", "max_iterations", "stuck_detection", "tool_module_qualnames")
        posted = (agent.posted or {}) | {name: getattr(body, name) for name in options}
        config |= {"form": "openhands", "posted": posted}
    else:
        agent, rules, title = resolve_agent(access, body.agent), rules_from(access, body), body.title
        config |= {"form": "ours"}
    if agent.condenser is not None:
        rules["condenser"] = agent.condenser
    working_dir = None if body.workspace is None else body.workspace.working_dir
    return Start(
        id=id,
        agent=agent.spec,
        workspace=access.services.workspaces.folder_for(access.caller, id, working_dir),
        title=title,
        tags=body.tags,
        rules=rules,
        message=body.message(),
        run=body.starts_run(),
        secrets=body.secret_values() | ({} if agent.api_key is None else {MODEL_KEY: agent.api_key}),
        about=config,
    )


def _refuse_unsupported(body: StartConversation) -> None:
    """Raise `InvalidInput` if a body sets a field of OpenHands that has no equivalent here."""
    for name, hint in _REFUSED.items():
        refuse_if_set(name, getattr(body, name), hint)
    if not body.stuck_detection:
        raise InvalidInput("stuck_detection: cannot be switched off", hint="limit the run with max_iterations")
    thresholds = _find_changed_thresholds(body.stuck_detection_thresholds)
    refuse_if_set("stuck_detection_thresholds", thresholds, "leave them out: the defaults apply")


def _find_changed_thresholds(thresholds: ThresholdsBody | None) -> JsonObject:
    """Return the thresholds that differ from the defaults."""
    fields = {} if thresholds is None else thresholds.model_extra or {}
    return {name: value for name, value in fields.items() if value is not None and value != _THRESHOLDS.get(name)}
