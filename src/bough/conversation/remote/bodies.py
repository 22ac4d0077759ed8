"""What a server is told of agents, rules and forks; functions and objects of this process cannot be told."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, spec_of
from bough.conversation.log.condenser import Condenser, NoCondenser, SummarizingCondenser, condenser_to_json
from bough.conversation.rules import GivenRules
from bough.errors import Conflict, InvalidInput, NotSupported
from bough.events.model import ContentPart, ImagePart, TextPart
from bough.events.record import ConversationFilter, ConversationRecord
from bough.guard import Limits, SecurityAnalyzer, analyzer_from_json
from bough.types import JsonObject

_AGENT_FIELDS = frozenset({
    "name", "description", "model", "base_url", "system_prompt", "system_prompt_path", "skill_roots", "discover_skills",
    "workspace_access", "catalog_tokens",
})  # fmt: skip
_ACCESS = ("none", "read", "write", "run")
_EMPTY: tuple[Any, ...] = (None, [], {}, ())


def agent_body(agent: AgentLike | None) -> str | JsonObject | None:
    """Return an agent as a body says it; a spec that has nothing but a name is one that the server has by that name.

    Raises:
        NotSupported: It has what a body cannot say; the message names it.
    """
    spec = spec_of(agent)
    if spec is None:
        return None
    set_fields = {name for name in spec.model_fields_set if getattr(spec, name) not in _EMPTY}
    if set_fields == {"name"}:
        return spec.name
    if unsaid := sorted(set_fields - _AGENT_FIELDS):
        raise _not_over_http(f"agent.{unsaid[0]}", "register the agent with `bough serve --agents`, and give its name")
    if not isinstance(spec.model, str | None):
        raise _not_over_http("a model object", "name the model by its string")
    return _plain(spec, set_fields)


def rules_body(rules: GivenRules) -> JsonObject:
    """Return the rules of a new conversation as a body says them; secrets are posted behind it.

    Raises:
        NotSupported: A rule is a function or an object of this process.
    """
    body: JsonObject = {}
    if (policy := rules.get("confirmation_policy")) is not None:
        body["confirmation_policy"] = policy.to_json()
    if (analyzer := rules.get("security_analyzer")) is not None:
        body["security_analyzer"] = analyzer_body(analyzer)
    if (limits := rules.get("limits")) is not None:
        body["limits"] = limits_body(limits)
    hooks, allow_list, condenser = rules.get("hooks"), rules.get("allow_list"), rules.get("condenser")
    if hooks is not None and hooks.hooks:
        raise _not_over_http("hooks", "hooks are the operator's: hooks.json in the server's home")
    if allow_list is not None and allow_list.lists:
        body["allow_list"] = allow_list.to_json()
    if condenser is not None and not isinstance(condenser, NoCondenser):
        body["condenser"] = _condenser_body(condenser)
    return body


def _condenser_body(condenser: Condenser) -> JsonObject:
    body = condenser_to_json(condenser)
    if body is None or (isinstance(condenser, SummarizingCondenser) and condenser.model is not None):
        raise _not_over_http("this condenser", "use KeepFirstCondenser, or SummarizingCondenser without a model")
    return body


def analyzer_body(analyzer: SecurityAnalyzer) -> JsonObject:
    """Return an analyzer as data.

    Raises:
        NotSupported: It is one of this program.
    """
    try:
        body = analyzer.to_json()
        analyzer_from_json(body)
    except (InvalidInput, NotImplementedError) as error:
        raise _not_over_http("a security_analyzer of your own", "RuleAnalyzer or ModelAnalyzer") from error
    return body


def limits_body(limits: Limits | Sequence[Limits]) -> JsonObject:
    """Return the bounds of each run.

    Raises:
        NotSupported: A bound counts the whole conversation.
    """
    for bounds in [limits] if isinstance(limits, Limits) else limits:
        if bounds.per == "conversation":
            if bounds.bounds:
                raise _not_over_http("limits of a whole conversation", "limits per run")
            continue
        unset: JsonObject = dict.fromkeys(("steps", "tasks", "depth"))
        return {**unset, **bounds.bounds, "unpriced": bounds.unpriced}
    return {}


def overrides_body(overrides: Mapping[str, Any]) -> JsonObject:
    """Return what a fork does otherwise.

    Raises:
        NotSupported: An override is a function or an object of this process.
    """
    remaining = dict(overrides)
    body: JsonObject = {
        name: remaining.pop(name) for name in ("model", "system_prompt") if remaining.get(name) is not None
    }
    return body | rules_body(cast("GivenRules", remaining))


def content_body(parts: Sequence[ContentPart]) -> list[JsonObject]:
    """Return the parts of a message as a body says them.

    Raises:
        NotSupported: A part is a file, which the server has not.
    """
    return [_part_body(part) for part in parts]


def filter_query(filter: ConversationFilter | None) -> dict[str, Any]:
    """Return a filter as a query.

    Raises:
        NotSupported: It asks for what a server does not tell.
    """
    if filter is None:
        return {}
    for name in ("owner", "include_deleted", "project", "ids", "statuses"):
        if getattr(filter, name) not in (None, False, (), frozenset()):
            raise _not_over_http(f"filter.{name}", "status, tags, text, agent, root and times")
    query: dict[str, Any] = {
        name: str(value) for name in ("status", "text", "agent", "root") if (value := getattr(filter, name)) is not None
    }
    query |= {
        name: value.isoformat()
        for name in ("created_after", "created_before", "updated_after", "updated_before")
        if (value := getattr(filter, name)) is not None
    }
    return query | ({"tag": [f"{name}:{value}" for name, value in filter.tags.items()]} if filter.tags else {})


def require_as_asked(document: JsonObject, body: JsonObject) -> None:
    """Check that a conversation that is there is the one that a body would make, but for its title, tags and place.

    Raises:
        Conflict: Its agent or a rule is another one; over HTTP neither is replaced by opening it.
    """
    differing = _agent_difference(document["spec"], body.get("agent"))
    for name in ("allow_list", "condenser"):  # a server does not show them, so they cannot be compared
        differing = differing or (name if body.get(name) is not None else None)
    for name in ("confirmation_policy", "limits"):
        requested: JsonObject = body.get(name) or {}
        fields = {field: value for field, value in requested.items() if value is not None and field != "unpriced"}
        if any(document[name].get(field) != value for field, value in fields.items()):
            differing = differing or name
    if differing is not None:
        raise Conflict(
            f"the conversation is there with another {differing}",
            hint="open it, or fork it with agent= and overrides=",
        )


def _agent_difference(spec: JsonObject, agent: str | JsonObject | None) -> str | None:
    """Return what differs between a recorded agent and one that a body says; None where nothing does."""
    if agent is None:
        return None
    if isinstance(agent, str):
        return None if spec.get("name") == agent else "agent"
    for field, value in agent.items():
        recorded = spec.get(field)
        if field == "model" and str(recorded).endswith(f":{value}"):
            continue  # the server has settled whose model of that name it is
        if field == "workspace_access" and _ACCESS.index(str(recorded)) < _ACCESS.index(str(value)):
            continue  # the tenant may have no more
        if recorded != value:
            return f"agent.{field}"
    return None


def record_of(document: JsonObject) -> ConversationRecord:
    """Return the record that a document of the server stands for; rows say more than servers do."""
    lineage: JsonObject = document.get("lineage") or {}
    id = UUID(document["id"])
    forked_from, event = lineage.get("forked_from"), lineage.get("event_id")
    return ConversationRecord(
        id=id,
        root=UUID(lineage["root"]) if lineage else id,
        base=lineage.get("at") or 0,
        head=document["head"],
        forked_from=None if forked_from is None else UUID(forked_from),
        forked_at=lineage.get("at"),
        fork_event=None if event is None else UUID(event),
        status=document["execution_status"],
        title=document["title"],
        tags=document["tags"],
        config={"workspace": document["workspace"]["working_dir"]},
        lineage={name: lineage[name] for name in ("actor", "reason", "overrides") if lineage.get(name)},
        created=datetime.fromisoformat(document["created_at"]),
        updated=datetime.fromisoformat(document["updated_at"]),
    )


def require_absent(**arguments: object) -> None:
    """Check that nothing is given that belongs to this process.

    Raises:
        NotSupported: Something is; the message names it.
    """
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise _not_over_http(f"{name}=", "leave it out: the server has its own")


def _plain(spec: AgentSpec[Any], names: set[str]) -> JsonObject:
    values = {name: getattr(spec, name) for name in names}
    if "skill_roots" in values:
        values["skill_roots"] = [str(path) for path in values["skill_roots"]]
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _part_body(part: ContentPart) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(content=bytes(content)):
            data = base64.b64encode(content).decode()
            return {"type": "image", "image_urls": [f"data:{part.media_type};base64,{data}"]}
        case ImagePart(data=data) if data:
            return {"type": "image", "image_urls": [f"data:{part.media_type};base64,{data}"]}
        case ImagePart():
            raise _not_over_http("the URL of an image", "give the image itself")
        case _:
            raise _not_over_http("a file in a message", "upload it into the workspace, and name it")


def _not_over_http(subject: str, hint: str) -> NotSupported:
    return NotSupported(f"{subject}: not possible with server=", hint=hint)
