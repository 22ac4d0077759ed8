"""`POST /api/conversations/{id}/fork`.

Source: OpenHands, the REST endpoint.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast
from uuid import UUID

from fastapi import Request, Response
from pydantic import ValidationError

from bough.agents.spec import AgentSpec
from bough.conversation import ForkOverrides
from bough.conversation.log.condenser import condenser_to_json
from bough.errors import InvalidInput, NotSupported
from bough.events.model import StateChanged
from bough.events.record import ConversationRecord
from bough.server.access import Access, Writer
from bough.server.auth.sealed import MODEL_KEY
from bough.server.bounds.etag import IfMatch, require_match
from bough.server.bounds.idempotency import IdempotencyKey, digest_of, id_from_key
from bough.server.conversations.conversation import existing, info_of_record
from bough.server.conversations.forking import MadeFork, fork
from bough.server.conversations.policies import parse_analyzer, parse_policy
from bough.server.forms.conversations import AgentForm, Fork, Overrides, drop_unset, read_allow_list
from bough.server.forms.info import ConversationInfo
from bough.server.openhands.bodies import AgentBody
from bough.server.openhands.ids import parse_id
from bough.server.openhands.starting import agent_of, condenser_of, describe_posted_agent, mask_keys
from bough.server.requests.routing import ConversationId, router
from bough.server.routes.conversations import answer_made
from bough.types import JsonObject, new_id

routes = router("Conversations")
_Form = TypeVar("_Form", AgentForm, AgentBody)


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
    """Branch off; the source is not changed. The same id with the same request gives the same fork (200)."""
    asked = body or Fork()
    source = await access.store.get(id)
    require_match(source, if_match)
    wanted = asked.id or id_from_key(access.caller, request, idempotency_key)
    said = asked.model_dump(mode="json", exclude={"id"})
    if said["overrides"] is not None:
        said["overrides"] = drop_unset(said["overrides"])
    said["agent"] = mask_keys(said["agent"])
    digest = digest_of([str(id), said])
    record = await existing(access, wanted, digest)
    is_new = record is None
    if record is None:
        record = await _fork(access, source, asked, wanted or new_id(), digest)
    answer_made(response, record, is_new=is_new, keyed=idempotency_key is not None)
    return await info_of_record(access, record)


async def _fork(access: Access, source: ConversationRecord, asked: Fork, id: UUID, digest: str) -> ConversationRecord:
    if asked.moment is not None:
        raise NotSupported("files of an earlier moment are not kept", hint="leave moment out: the files of now")
    if asked.at is not None and asked.from_event_id is not None:
        raise InvalidInput("from_event_id and at both say where to cut", hint="give one")
    if asked.at is not None and asked.at > source.head:
        raise InvalidInput(f"at: the conversation has {source.head} events", hint="0 to that many")
    if asked.from_event_id is not None:
        await access.store.locate(parse_id(asked.from_event_id).event, cid=source.id)
    given = _read_agent(asked.agent)
    agent, posted = _agent_of(access, given)
    key = _key_of(given)
    kept: JsonObject = {"request": digest, **({} if posted is None else _make_posted(source, posted))}
    options: dict[str, Any] = {} if asked.title is None else {"title": asked.title}
    made = await fork(
        access,
        source,
        about=kept,
        api_key=key,
        id=id,
        agent=agent,
        tags=asked.tags,
        reset_metrics=asked.reset_metrics,
        at=asked.at if asked.from_event_id is None else parse_id(asked.from_event_id).event,
        snap=asked.snap,
        pending=asked.pending,
        overrides=_overrides_of(asked.overrides),
        inherit_tags=asked.inherit_tags,
        workspace=asked.workspace,
        reason=asked.reason,
        **options,
    )
    await _complete(access, made, given)
    return await access.store.get(made.record.id)


async def _complete(access: Access, made: MadeFork, given: str | AgentForm | AgentBody | None) -> None:
    """Give a fork what a posted agent brings beside the agent: its condenser, and its model's key, sealed."""
    if isinstance(given, AgentBody) and (condenser := condenser_of(given.condenser)) is not None:
        recorded = {"policies": {"condenser": condenser_to_json(condenser)}}
        await access.store.append(made.record.id, [StateChanged(changes=recorded)])
    if (key := _key_of(given)) is not None:
        await access.services.sealed.put(await access.store.get(made.record.id), made.state.policies, {MODEL_KEY: key})


def _key_of(given: str | AgentForm | AgentBody | None) -> str | None:
    """Return the model's key that is posted with an agent; None without one."""
    match given:
        case AgentForm():
            return given.api_key
        case AgentBody():
            return given.llm.api_key or None
        case _:
            return None


def _make_posted(source: ConversationRecord, agent: JsonObject) -> JsonObject:
    return {"posted": (source.config.get("posted") or {}) | agent}


def _read_agent(given: str | JsonObject | None) -> str | AgentForm | AgentBody | None:
    """Return the agent of a body in the form that it has: a name, ours, or OpenHands'."""
    if given is None or isinstance(given, str):
        return given
    return _parse(AgentBody, given) if given.keys() & {"kind", "llm"} else _parse(AgentForm, given)


def _agent_of(access: Access, given: str | AgentForm | AgentBody | None) -> tuple[AgentSpec | None, JsonObject | None]:
    """Return the agent that replaces the source's, and what the row keeps of one that was posted in OpenHands' form."""
    agents = access.services.agents
    if given is None:
        return None, None
    if not isinstance(given, AgentBody):
        return agents.agent_for(access.caller, given), None
    condenser_of(given.condenser)  # refused before anything is made
    spec = agents.narrow(access.caller, agent_of(access, given))
    return spec, describe_posted_agent(given, spec)


def _parse(form: type[_Form], given: JsonObject) -> _Form:
    try:
        return form.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(["agent", *map(str, first["loc"])])
        raise InvalidInput(f"{where}: {first['msg']}", hint="see /docs for the fields") from error


def _overrides_of(given: Overrides | None) -> ForkOverrides:
    if given is None:
        return ForkOverrides()
    found: JsonObject = {}
    if given.model is not None:
        found["model"] = given.model
    if given.system_prompt is not None:
        found["system_prompt"] = given.system_prompt
    if given.confirmation_policy is not None:
        found["confirmation_policy"] = parse_policy(given.confirmation_policy.as_json())
    if given.security_analyzer is not None:
        found["security_analyzer"] = parse_analyzer(given.security_analyzer)
    if given.limits is not None:
        found["limits"] = given.limits.limits()
    if given.allow_list is not None:
        found["allow_list"] = read_allow_list(given.allow_list)
    return cast("ForkOverrides", found)
