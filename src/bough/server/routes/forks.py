"""`POST /api/conversations/{id}/fork`.

Source: OpenHands, the REST endpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import Query, Request, Response
from starlette.status import HTTP_200_OK

from bough.conversation import ForkOverrides
from bough.conversation.log.condenser import condenser_to_json
from bough.errors import InvalidInput
from bough.events.model import StateChanged
from bough.events.record import ConversationRecord
from bough.server.access import Access, Writer
from bough.server.auth.sealed import MODEL_KEY
from bough.server.bodies.agents import parse_agent
from bough.server.bodies.conversations import Fork, Overrides, drop_unset
from bough.server.bodies.fork_preview import ForkPreview, describe_plan
from bough.server.bodies.info import ConversationInfo
from bough.server.bodies.openhands_events import parse_id
from bough.server.bodies.rules import make_budget
from bough.server.bounds.etag import IdempotencyKey, IfMatch, compute_digest, id_from_key, require_match
from bough.server.conversations.agents import ResolvedAgent, mask_keys, resolve_agent
from bough.server.conversations.conversation import find_existing, info_of_new, info_of_record
from bough.server.conversations.forking import ForkSpec, NewFork, fork, plan
from bough.server.conversations.policies import parse_rules
from bough.server.requests.routing import ConversationId, router
from bough.server.routes.conversations import answer_made
from bough.types import JsonObject

routes = router("Conversations")


@routes.post(
    "/api/conversations/{id}/fork", status_code=201, responses={200: {"model": ConversationInfo | ForkPreview}}
)
async def fork_conversation(
    id: ConversationId,
    access: Writer,
    request: Request,
    response: Response,
    body: Fork | None = None,
    dry_run: Annotated[bool, Query(description="Only describe the fork, with the same checks (200).")] = False,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> ConversationInfo | ForkPreview:
    """Fork a conversation, which is not changed. The same request with the same id returns the existing fork (200).

    With `dry_run`, describe what the fork would keep and inherit, or refuse what the fork would refuse. Nothing is
    written.
    """
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
    # After `find_existing`, so that an id in use is refused as it would be for the fork.
    if dry_run:
        response.status_code = HTTP_200_OK
        return await preview_fork(access, source, plan)
    if record is not None:
        answer_made(response, record, is_new=False, keyed=is_keyed)
        return await info_of_record(access, record)
    new_fork = await _create_fork(access, source, plan, requested_id, digest)
    answer_made(response, new_fork.record, is_new=True, keyed=is_keyed)
    if not new_fork.is_new:
        return await info_of_record(access, new_fork.record)
    return await info_of_new(access, new_fork.record, new_fork.state)


async def preview_fork(access: Access, source: ConversationRecord, body: Fork) -> ForkPreview:
    """Return what a fork would keep and inherit. Writes nothing. Raises what the fork would raise."""
    agent = await _read_agent(access, source, body)
    return describe_plan(source, await plan(access, source, _read_spec(access, body, agent)))


async def _create_fork(access: Access, source: ConversationRecord, plan: Fork, id: UUID | None, digest: str) -> NewFork:
    agent = await _read_agent(access, source, plan)
    config: JsonObject = {"request": digest}
    if agent is not None and agent.posted is not None:
        config["posted"] = (source.config.get("posted") or {}) | agent.posted
    spec = _read_spec(access, plan, agent)
    new_fork = await fork(access, source, replace(spec, about=config, options=spec.options | {"id": id}))
    if agent is None:
        return new_fork
    await _apply_agent(access, new_fork, agent)
    return new_fork._replace(record=await access.store.get(new_fork.record.id), is_new=False)


async def _read_agent(access: Access, source: ConversationRecord, body: Fork) -> ResolvedAgent | None:
    """Check the cut of a body, and return its agent; None for that of the source."""
    if body.at is not None and body.from_event_id is not None:
        raise InvalidInput("from_event_id and at cannot be combined", hint="send one of them")
    if body.at is not None and body.at > source.head:
        raise InvalidInput(f"at: the conversation has {source.head} events", hint=f"use 0 to {source.head}")
    if body.from_event_id is not None:
        await access.store.locate(parse_id(body.from_event_id).event, cid=source.id)
    return None if body.agent is None else resolve_agent(access, parse_agent(body.agent))


def _read_spec(access: Access, body: Fork, agent: ResolvedAgent | None) -> ForkSpec:
    names = {"id", "title", "tags", "reset_metrics", "snap", "pending", "inherit_tags", "workspace", "reason"}
    options: dict[str, Any] = {name: getattr(body, name) for name in names}
    options["moment"] = body.moment or "then"
    options["at"] = body.at if body.from_event_id is None else parse_id(body.from_event_id).event
    return ForkSpec(
        agent=None if agent is None else agent.spec,
        api_key=None if agent is None else agent.api_key,
        overrides=_parse_overrides(access, body.overrides),
        options=options,
    )


async def _apply_agent(access: Access, fork: NewFork, agent: ResolvedAgent) -> None:
    """Record the condenser of a posted agent in a fork, and store the encrypted key of its model."""
    record, state, _ = fork
    if agent.condenser is not None:
        changes = {"policies": {"condenser": condenser_to_json(agent.condenser)}}
        await access.store.append(record.id, [StateChanged(changes=changes)])
    if agent.api_key is not None:
        await access.services.sealed.put(record, state.policies, {MODEL_KEY: agent.api_key})


def _parse_overrides(access: Access, overrides: Overrides | None) -> ForkOverrides:
    if overrides is None:
        return ForkOverrides()
    agent = overrides.model_dump(include={"model", "system_prompt", "tools"}, exclude_none=True)
    budget = {} if overrides.budget is None else {"budget": make_budget(access.caller.owner, overrides.budget)}
    return cast("ForkOverrides", {**agent, **parse_rules(overrides), **budget})
