"""`POST /api/conversations/{id}/fork`.

Source: OpenHands, the REST endpoint.
"""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from fastapi import Request, Response

from bough.conversation import ForkOverrides
from bough.conversation.log.condenser import condenser_to_json
from bough.errors import InvalidInput, NotSupported
from bough.events.model import StateChanged
from bough.events.record import ConversationRecord
from bough.server.access import Access, Writer
from bough.server.auth.sealed import MODEL_KEY
from bough.server.bodies.agents import parse_agent
from bough.server.bodies.conversations import Fork, Overrides, drop_unset
from bough.server.bodies.info import ConversationInfo
from bough.server.bodies.openhands_events import parse_id
from bough.server.bounds.etag import IdempotencyKey, IfMatch, compute_digest, id_from_key, require_match
from bough.server.conversations.agents import ResolvedAgent, mask_keys, resolve_agent
from bough.server.conversations.conversation import find_existing, info_of_new, info_of_record
from bough.server.conversations.forking import NewFork, fork
from bough.server.conversations.policies import parse_rules
from bough.server.requests.routing import ConversationId, router
from bough.server.routes.conversations import answer_made
from bough.types import JsonObject

routes = router("Conversations")


@routes.post("/api/conversations/{id}/fork", status_code=201, responses={200: {"model": ConversationInfo}})
async def fork_conversation(
    id: ConversationId,
    access: Writer,
    request: Request,
    response: Response,
    body: Fork | None = None,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> ConversationInfo:
    """Fork a conversation, which is not changed. The same request with the same id returns the existing fork (200)."""
    plan = body or Fork()
    source = await access.store.get(id)
    require_match(source, if_match)
    requested_id = plan.id or id_from_key(access.caller, request, idempotency_key)
    digest_input = plan.model_dump(mode="json", exclude={"id"})
    if digest_input["overrides"] is not None:
        digest_input["overrides"] = drop_unset(digest_input["overrides"])
    digest_input["agent"] = mask_keys(digest_input["agent"])
    digest = compute_digest([str(id), digest_input])
    is_keyed = idempotency_key is not None
    record = await find_existing(access, requested_id, digest)
    if record is not None:
        answer_made(response, record, is_new=False, keyed=is_keyed)
        return await info_of_record(access, record)
    new_fork = await _create_fork(access, source, plan, requested_id, digest)
    answer_made(response, new_fork.record, is_new=True, keyed=is_keyed)
    if not new_fork.is_new:
        return await info_of_record(access, new_fork.record)
    return await info_of_new(access, new_fork.record, new_fork.state)


async def _create_fork(access: Access, source: ConversationRecord, plan: Fork, id: UUID | None, digest: str) -> NewFork:
    if plan.moment is not None:
        raise NotSupported("the server does not save files of earlier moments", hint="leave moment out")
    if plan.at is not None and plan.from_event_id is not None:
        raise InvalidInput("from_event_id and at cannot be combined", hint="send one of them")
    if plan.at is not None and plan.at > source.head:
        raise InvalidInput(f"at: the conversation has {source.head} events", hint=f"use 0 to {source.head}")
    if plan.from_event_id is not None:
        await access.store.locate(parse_id(plan.from_event_id).event, cid=source.id)
    agent = None if plan.agent is None else resolve_agent(access, parse_agent(plan.agent))
    config: JsonObject = {"request": digest}
    if agent is not None and agent.posted is not None:
        config["posted"] = (source.config.get("posted") or {}) | agent.posted
    options: dict[str, Any] = {} if plan.title is None else {"title": plan.title}
    new_fork = await fork(
        access,
        source,
        about=config,
        api_key=None if agent is None else agent.api_key,
        id=id,
        agent=None if agent is None else agent.spec,
        tags=plan.tags,
        reset_metrics=plan.reset_metrics,
        at=plan.at if plan.from_event_id is None else parse_id(plan.from_event_id).event,
        snap=plan.snap,
        pending=plan.pending,
        overrides=_parse_overrides(plan.overrides),
        inherit_tags=plan.inherit_tags,
        workspace=plan.workspace,
        reason=plan.reason,
        **options,
    )
    if agent is None:
        return new_fork
    await _apply_agent(access, new_fork, agent)
    return new_fork._replace(record=await access.store.get(new_fork.record.id), is_new=False)


async def _apply_agent(access: Access, fork: NewFork, agent: ResolvedAgent) -> None:
    """Record the condenser of a posted agent in a fork, and store the encrypted key of its model."""
    record, state, _ = fork
    if agent.condenser is not None:
        changes = {"policies": {"condenser": condenser_to_json(agent.condenser)}}
        await access.store.append(record.id, [StateChanged(changes=changes)])
    if agent.api_key is not None:
        await access.services.sealed.put(record, state.policies, {MODEL_KEY: agent.api_key})


def _parse_overrides(overrides: Overrides | None) -> ForkOverrides:
    if overrides is None:
        return ForkOverrides()
    agent = overrides.model_dump(include={"model", "system_prompt", "tools"}, exclude_none=True)
    return cast("ForkOverrides", {**agent, **parse_rules(overrides)})
