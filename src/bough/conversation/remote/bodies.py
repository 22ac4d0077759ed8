"""Makes request bodies for agents, rules, messages and forks. Functions and objects of this process cannot be sent."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast, get_args
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, convert_agent
from bough.conversation.fork.request import ForkRequest
from bough.conversation.log.condenser import Condenser, NoCondenser, SummarizingCondenser, condenser_to_json
from bough.conversation.rules import GivenRules
from bough.errors import Conflict, InvalidInput, NotSupported
from bough.events.model import ContentPart, ImagePart, TextPart
from bough.events.record import ConversationFilter, ConversationRecord, MessageQuery, Order, SearchHit
from bough.events.usage import NO_USAGE, ConversationUsage, round_to_nanos
from bough.guard import Limits, SecurityAnalyzer, analyzer_from_json
from bough.guard.budget import parse_budgets
from bough.types import JsonObject, new_id

_AGENT_FIELDS = frozenset({
    "name", "description", "model", "base_url", "system_prompt", "system_prompt_path", "skill_roots", "discover_skills",
    "workspace_access", "catalog_tokens",
})  # fmt: skip
_ACCESS = ("none", "read", "write", "run")
_EMPTY: tuple[Any, ...] = (None, [], {}, ())


def make_agent_body(agent: AgentLike | None) -> str | JsonObject | None:
    """Return the body of an agent: its fields, or only its name if nothing else is set; None without an agent.

    A name alone refers to an agent that is registered with the server.

    Raises:
        NotSupported: A field of the agent cannot be sent; the message names it.
    """
    spec = convert_agent(agent)
    if spec is None:
        return None
    set_fields = {name for name in spec.model_fields_set if getattr(spec, name) not in _EMPTY}
    if set_fields == {"name"}:
        return spec.name
    unsupported = sorted(set_fields - _AGENT_FIELDS)
    if unsupported:
        raise _make_unsupported_error(
            f"agent.{unsupported[0]}", "register the agent with `bough serve --agents`, and give its name"
        )
    if not isinstance(spec.model, str | None):
        raise _make_unsupported_error("a model object", "name the model by its string")
    return _encode_fields(spec, set_fields)


def make_rules_body(rules: GivenRules) -> JsonObject:
    """Return the body of a new conversation's rules, without secrets, which are sent in a later request.

    Raises:
        NotSupported: A rule is a function or an object of this process.
    """
    body: JsonObject = {}
    if (policy := rules.get("confirmation_policy")) is not None:
        body["confirmation_policy"] = policy.to_json()
    if (analyzer := rules.get("security_analyzer")) is not None:
        body["security_analyzer"] = make_analyzer_body(analyzer)
    if (limits := rules.get("limits")) is not None:
        body["limits"] = make_limits_body(limits)
    hooks, allow_list, condenser = rules.get("hooks"), rules.get("allow_list"), rules.get("condenser")
    budgets = parse_budgets(rules.get("budget"))
    if len(budgets) > 1:
        raise _make_unsupported_error("more than one budget", "give one; a fork adds another")
    if budgets:
        body["budget"] = budgets[0].to_json()
    if rules.get("keep_files") is False:
        raise _make_unsupported_error("keep_files", "the operator sets keep_files in the server's home")
    if hooks is not None and hooks.hooks:
        raise _make_unsupported_error("hooks", "hooks are the operator's: hooks.json in the server's home")
    if allow_list is not None and allow_list.lists:
        body["allow_list"] = allow_list.to_json()
    if condenser is not None and not isinstance(condenser, NoCondenser):
        body["condenser"] = _make_condenser_body(condenser)
    return body


def _make_condenser_body(condenser: Condenser) -> JsonObject:
    body = condenser_to_json(condenser)
    if body is None or (isinstance(condenser, SummarizingCondenser) and condenser.model is not None):
        raise _make_unsupported_error(
            "this condenser", "use KeepFirstCondenser, or SummarizingCondenser without a model"
        )
    return body


def make_analyzer_body(analyzer: SecurityAnalyzer) -> JsonObject:
    """Return the body of an analyzer.

    Raises:
        NotSupported: The analyzer is a class of this program, which a server cannot rebuild.
    """
    try:
        body = analyzer.to_json()
        analyzer_from_json(body)
    except (InvalidInput, NotImplementedError) as error:
        raise _make_unsupported_error("a custom security_analyzer", "use RuleAnalyzer or ModelAnalyzer") from error
    return body


def make_limits_body(limits: Limits | Sequence[Limits]) -> JsonObject:
    """Return the body of the limits per run; empty if there are none.

    Raises:
        NotSupported: There are limits per conversation.
    """
    for item in [limits] if isinstance(limits, Limits) else limits:
        if item.per == "conversation":
            if item.bounds:
                raise _make_unsupported_error("limits of a whole conversation", "use limits per run")
            continue
        unset: JsonObject = dict.fromkeys(("steps", "tasks", "depth"))
        return {**unset, **item.bounds, "unpriced": item.unpriced}
    return {}


def make_overrides_body(overrides: Mapping[str, Any]) -> JsonObject:
    """Return the body of a fork's overrides.

    Raises:
        NotSupported: An override is a function or an object of this process.
    """
    remaining = dict(overrides)
    body: JsonObject = {
        name: remaining.pop(name) for name in ("model", "system_prompt", "tools") if remaining.get(name) is not None
    }
    return body | make_rules_body(cast("GivenRules", remaining))


def make_fork_body(request: ForkRequest) -> JsonObject:
    """Return the body of a fork.

    Raises:
        NotSupported: An argument cannot be sent; the message names it.
    """
    require_absent(secrets=request.secrets if request.secrets != "reference" else None)
    require_absent(ephemeral=request.ephemeral)
    body: JsonObject = {"id": str(request.id or new_id()), "title": request.title, "reason": request.reason}
    body |= {"agent": make_agent_body(request.agent), "tags": None if request.tags is None else dict(request.tags)}
    body |= {"reset_metrics": request.reset_metrics, "snap": request.snap, "pending": request.pending}
    body |= {"inherit_tags": request.inherit_tags, "workspace": request.workspace}
    body |= {} if request.moment == "then" else {"moment": request.moment}
    body |= {"overrides": make_overrides_body(request.overrides)} if request.overrides else {}
    if isinstance(request.at, int):
        return body | {"at": request.at}
    return body if request.at is None else body | {"from_event_id": str(request.at)}


def search_query(query: MessageQuery) -> dict[str, Any]:
    """Return the query parameters of a search."""
    parameters: dict[str, Any] = {"q": query.text, "limit": query.limit}
    parameters |= {"tag": [f"{name}:{value}" for name, value in query.tags.items()]} if query.tags else {}
    parameters |= {} if query.project is None else {"project": query.project}
    parameters |= {} if query.since is None else {"since": query.since.isoformat()}
    parameters |= {} if query.cursor is None else {"page_id": query.cursor}
    return parameters


def read_hit(item: JsonObject) -> SearchHit:
    """Return a hit of a server's search."""
    return SearchHit(
        conversation=UUID(item["conversation"]),
        title=item["title"],
        seq=item["seq"],
        who=item["who"],
        when=datetime.fromisoformat(item["when"]),
        snippet=item["snippet"],
        matches=tuple((start, end) for start, end in item["matches"]),
    )


def make_content_body(parts: Sequence[ContentPart]) -> list[JsonObject]:
    """Return the body of a message's parts.

    Raises:
        NotSupported: A part is a file or the URL of an image.
    """
    return [_make_part_body(part) for part in parts]


def make_filter_query(filter: ConversationFilter | None) -> dict[str, Any]:
    """Return the query parameters of a filter.

    Raises:
        NotSupported: The filter has a field that servers do not support.
    """
    if filter is None:
        return {}
    for name in ("owner", "include_deleted", "folder", "ids", "statuses"):
        if getattr(filter, name) not in (None, False, (), frozenset()):
            hint = "filter by status, tags, text, agent, root, project, times or cost"
            raise _make_unsupported_error(f"filter.{name}", hint)
    query: dict[str, Any] = {}
    for name in ("status", "text", "agent", "root", "project"):
        value = getattr(filter, name)
        if value is not None:
            query[name] = str(value)
    for name in ("created_after", "created_before", "updated_after", "updated_before"):
        moment = getattr(filter, name)
        if moment is not None:
            query[name] = moment.isoformat()
    if filter.min_cost_usd is not None:
        query["min_cost_usd"] = filter.min_cost_usd
    if filter.tags:
        query["tag"] = [f"{name}:{value}" for name, value in filter.tags.items()]
    return query


def name_order(order: Order) -> str:
    """Return the name of an order in requests to a server.

    Raises:
        InvalidInput: The order is invalid.
    """
    if order not in get_args(Order):
        raise InvalidInput(f"no order named {order!r}", hint=", ".join(get_args(Order)))
    name = order.removesuffix("_desc").upper()
    return (name if name == "COST" else f"{name}_AT") + ("_DESC" if order.endswith("_desc") else "")


def require_same_conversation(document: JsonObject, body: JsonObject) -> None:
    """Check that an existing conversation has the agent and the rules of a request body.

    Title, tags and workspace may differ.

    Raises:
        Conflict: The agent or a rule differs. Opening a conversation over HTTP replaces neither.
    """
    differing = _find_agent_difference(document["spec"], body.get("agent"))
    for name in ("allow_list", "condenser", "budget"):  # servers do not return them, so they cannot be compared
        differing = differing or (name if body.get(name) is not None else None)
    for name in ("confirmation_policy", "limits"):
        requested: JsonObject = body.get(name) or {}
        fields = {field: value for field, value in requested.items() if value is not None and field != "unpriced"}
        if any(document[name].get(field) != value for field, value in fields.items()):
            differing = differing or name
    if differing is not None:
        raise Conflict(
            f"the conversation exists with another {differing}",
            hint="open it, or fork it with agent= and overrides=",
        )


def _find_agent_difference(spec: JsonObject, agent: str | JsonObject | None) -> str | None:
    """Return the first field in which a recorded agent differs from the agent of a body; None if none does."""
    if agent is None:
        return None
    if isinstance(agent, str):
        return None if spec.get("name") == agent else "agent"
    for field, value in agent.items():
        recorded = spec.get(field)
        if field == "model" and str(recorded).endswith(f":{value}"):
            continue  # the server has added the provider's name
        if field == "workspace_access" and _ACCESS.index(str(recorded)) < _ACCESS.index(str(value)):
            continue  # the server has limited the access to what the tenant may have
        if recorded != value:
            return f"agent.{field}"
    return None


def read_record(document: JsonObject) -> ConversationRecord:
    """Return the record of a conversation from the server's document, which lacks some fields of a stored record."""
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
        usage=_read_usage(document.get("usage")),
    )


def _read_usage(document: JsonObject | None) -> ConversationUsage:
    if document is None:  # an older server does not send it
        return NO_USAGE
    cost_nanos = round_to_nanos(document["cost_usd"])
    return ConversationUsage(document["requests"], document["input_tokens"], document["output_tokens"], cost_nanos)


def require_absent(**arguments: object) -> None:
    """Check that no argument is set that only works with a local conversation.

    Raises:
        NotSupported: An argument is neither None nor False; the message names it.
    """
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise _make_unsupported_error(f"{name}=", "omit it: the server has its own")


def _encode_fields(spec: AgentSpec[Any], names: set[str]) -> JsonObject:
    values = {name: getattr(spec, name) for name in names}
    if "skill_roots" in values:
        values["skill_roots"] = [str(path) for path in values["skill_roots"]]
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _make_part_body(part: ContentPart) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(content=bytes(content)):
            data = base64.b64encode(content).decode()
            return {"type": "image", "image_urls": [f"data:{part.media_type};base64,{data}"]}
        case ImagePart(data=data) if data:
            return {"type": "image", "image_urls": [f"data:{part.media_type};base64,{data}"]}
        case ImagePart():
            raise _make_unsupported_error("the URL of an image", "give the image itself")
        case _:
            raise _make_unsupported_error(
                "a file in a message", "upload it into the workspace, and give its path in the text"
            )


def _make_unsupported_error(subject: str, hint: str) -> NotSupported:
    return NotSupported(f"{subject} cannot be used with server=", hint=hint)
