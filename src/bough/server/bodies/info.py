"""`ConversationInfo`: the document of a conversation in responses and in the frame `full_state`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from bough.conversation import State
from bough.conversation.rules import read_recorded_limits
from bough.events.model import Usage
from bough.events.record import ConversationRecord, Status
from bough.guard import AlwaysConfirm
from bough.server.bodies.base import Stamp, stamp
from bough.server.bodies.openhands_agents import describe_agent, describe_analyzer
from bough.types import JsonObject

MAX_ITERATIONS = 1_000_000
"""Maximum number of steps in a body of OpenHands; it also represents runs without a limit."""


class Ledger(BaseModel):
    """Usage of models."""

    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None

    @classmethod
    def of(cls, usage: Usage) -> Ledger:
        """Return the document of a usage."""
        return cls(**usage.model_dump())


class Lineage(BaseModel):
    """The origin of a fork."""

    root: UUID
    forked_from: UUID
    at: int
    event_id: UUID | None
    reason: str | None
    actor: str | None
    overrides: list[str]
    pending: str
    workspace: str


class WaitingCallInfo(BaseModel):
    """A call that waits for a person."""

    tool_call_id: str
    kind: str
    tool: str
    arguments: JsonObject
    risk: str | None
    reason: str
    since: Stamp


class RunInfo(BaseModel):
    """The latest run of a conversation; `parent` is the conversation whose agent started it."""

    task: UUID
    state: str
    attempts: int = 1
    queue: str = "default"
    request: JsonObject | None = None
    parent: UUID | None = None


class OwnUsage(BaseModel):
    """Usage of the own events of a conversation, without those that it shares with its source."""

    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float


class ConversationSummary(BaseModel):
    """A conversation in a list."""

    id: UUID
    title: str | None
    tags: dict[str, str]
    created_at: Stamp
    updated_at: Stamp
    execution_status: Status
    workspace: JsonObject
    head: int
    forked_from_conversation_id: UUID | None
    forked_from_event_id: UUID | None
    lineage: Lineage | None
    usage: OwnUsage


class ConversationInfo(ConversationSummary):
    """A conversation. The fields from `agent` to `sub_conversation_ids` are in OpenHands' form, the others in ours."""

    agent: JsonObject
    persistence_dir: str
    confirmation_policy: JsonObject
    security_analyzer: JsonObject | None
    stats: JsonObject
    max_iterations: int
    stuck_detection: bool
    hook_config: JsonObject | None
    tool_module_qualnames: dict[str, str]
    client_tools: list[JsonObject]
    secret_registry: JsonObject
    activated_knowledge_skills: list[str]
    invoked_skills: list[str]
    parent_conversation_id: UUID | None
    sub_conversation_ids: list[UUID]
    spec: JsonObject
    own: Ledger
    inherited: Ledger
    delegated: Ledger
    waiting: list[WaitingCallInfo]
    run: RunInfo | None
    limits: JsonObject
    workspace_policy: str


def summarize(record: ConversationRecord, *, running: bool) -> JsonObject:
    """Return the `ConversationSummary` of a row as JSON."""
    summary = _describe_row(record, running)
    if summary["lineage"] is not None:
        summary["lineage"] = summary["lineage"].model_dump(mode="json")
    return summary


@dataclass(frozen=True, kw_only=True)
class InfoDetails:
    """Details of a conversation that neither its row nor its fold contains, only its events.

    Attributes:
        triggered: Skills that a message, a file or a task activated.
        invoked: Skills that the model loaded.
        children: Conversations of sub-agents that this conversation started itself, not its source.
        waiting_since: When the waiting calls began to wait; None without waiting calls.
    """

    triggered: Sequence[str] = ()
    invoked: Sequence[str] = ()
    children: Sequence[UUID] = ()
    waiting_since: datetime | None = None


_NO_DETAILS = InfoDetails()


def build_info(
    record: ConversationRecord, state: State, details: InfoDetails = _NO_DETAILS, *, run: RunInfo | None = None
) -> ConversationInfo:
    """Return the document of a conversation.

    Args:
        state: The fold of its log.
        details: What only its events contain.
        run: Its latest run; None without one.
    """
    posted: JsonObject = record.config.get("posted") or {}
    policies = state.policies
    is_running = run is not None and run.state in ("pending", "running")
    since = stamp(details.waiting_since or record.updated)
    return ConversationInfo(
        **_describe_row(record, is_running),
        agent=describe_agent(posted, state.agent, policies),
        persistence_dir=f"bough:{record.id}",
        confirmation_policy=read_policy(state, policies),
        security_analyzer=_read_analyzer(record, state),
        stats=_describe_stats(state),
        max_iterations=_read_max_iterations(policies),
        stuck_detection=True,
        hook_config=None,
        tool_module_qualnames=posted.get("tool_module_qualnames") or {},
        client_tools=[],
        secret_registry={"secret_sources": _list_secrets(policies)},
        activated_knowledge_skills=list(details.triggered),
        invoked_skills=list(details.invoked),
        parent_conversation_id=None if run is None else run.parent,
        sub_conversation_ids=list(details.children),
        spec=state.agent,
        own=Ledger.of(state.own),
        inherited=Ledger.of(state.inherited),
        delegated=Ledger.of(state.delegated),
        waiting=[_describe_waiting_call(state, id, question, since) for id, question in state.waiting.items()],
        run=run,
        limits=policies.get("limits") or {},
        workspace_policy=state.workspace_policy,
    )


def _describe_row(record: ConversationRecord, is_running: bool) -> dict[str, Any]:
    return {
        "id": record.id,
        "title": record.title,
        "tags": record.tags,
        "created_at": stamp(record.created),
        "updated_at": stamp(record.updated),
        "execution_status": "running" if is_running else record.status,
        "workspace": {"kind": "LocalWorkspace", "working_dir": record.config.get("workspace", ".")},
        "head": record.head,
        "forked_from_conversation_id": record.forked_from,
        "forked_from_event_id": record.fork_event,
        "lineage": _make_lineage(record),
        "usage": {
            "requests": record.usage.requests,
            "input_tokens": record.usage.input_tokens,
            "output_tokens": record.usage.output_tokens,
            "cost_usd": record.usage.cost_usd,
        },
    }


def _make_lineage(record: ConversationRecord) -> Lineage | None:
    if record.forked_from is None or record.forked_at is None:
        return None
    lineage = record.lineage
    return Lineage(
        root=record.root,
        forked_from=record.forked_from,
        at=record.forked_at,
        event_id=record.fork_event,
        reason=lineage.get("reason"),
        actor=lineage.get("actor"),
        overrides=lineage.get("overrides") or [],
        pending=lineage.get("pending", "close"),
        workspace=lineage.get("workspace", "shared"),
    )


def read_policy(state: State, policies: JsonObject) -> JsonObject:
    """Return the policy in force under recorded rules; in quarantine, every call waits for confirmation."""
    if state.quarantined:
        return AlwaysConfirm().to_json()
    return _read_rule(policies, "policy") or {"kind": "NeverConfirm"}


def _read_rule(policies: JsonObject, name: str) -> JsonObject | None:
    """Return a recorded rule; a name alone, as imported logs may have it, is the kind of a rule."""
    value = policies.get(name)
    if isinstance(value, str):
        return {"kind": value}
    return cast("JsonObject", value) if isinstance(value, dict) else None


def _read_analyzer(record: ConversationRecord, state: State) -> JsonObject | None:
    """Return the analyzer in force, in the form in which the conversation was started."""
    analyzer = _read_rule(state.policies, "analyzer")
    if record.config.get("form") != "openhands":
        return analyzer
    posted: JsonObject = record.config.get("posted") or {}
    return describe_analyzer(analyzer, posted.get("security_analyzer"))


def _read_max_iterations(policies: JsonObject) -> int:
    steps = read_recorded_limits(policies)[0].steps
    return MAX_ITERATIONS if steps is None else steps


def _list_secrets(policies: JsonObject) -> JsonObject:
    return {name: {"kind": "StaticSecret", "value": None} for name in policies.get("secrets") or ()}


def _describe_stats(state: State) -> JsonObject:
    model = str(state.agent.get("model") or "offline")
    metrics = {"agent": _describe_metrics(model, state.own)}
    if state.delegated.requests:
        metrics["sub_agents"] = _describe_metrics(model, state.delegated)
    return {"usage_to_metrics": metrics}


def _describe_metrics(model: str, used: Usage) -> JsonObject:
    tokens = {
        "model": model,
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "cache_read_tokens": used.cache_read_tokens,
        "cache_write_tokens": used.cache_write_tokens,
    }
    return {"model_name": model, "accumulated_cost": used.cost_usd or 0.0, "accumulated_token_usage": tokens}


def _describe_waiting_call(state: State, id: str, question: JsonObject, since: str) -> WaitingCallInfo:
    call = state.calls.get(id)
    return WaitingCallInfo(
        tool_call_id=id,
        kind=str(question.get("kind", "approval")),
        tool=str(question.get("tool", "")),
        arguments=call.parsed_arguments if call else {},
        risk=question.get("risk"),
        reason=str(question.get("reason") or ""),
        since=since,
    )


class LineageItem(BaseModel):
    """One conversation of a lineage. It shares `at` events with the previous one."""

    id: UUID
    title: str | None
    at: int | None
    event_id: UUID | None

    @classmethod
    def of(cls, record: ConversationRecord) -> LineageItem:
        """Return the item of a row."""
        return cls(id=record.id, title=record.title, at=record.forked_at, event_id=record.fork_event)


class LineageInfo(BaseModel):
    """The lineage of a conversation, root first."""

    items: list[LineageItem]


class ComparedSide(BaseModel):
    """The part of a conversation that the other one does not share, up to event `stop`."""

    id: UUID
    head: int
    stop: int
    own: Ledger
    calls: list[JsonObject]


class ComparedFile(BaseModel):
    """A file that differs between the two workspaces."""

    path: str
    change: str


class ComparisonInfo(BaseModel):
    """The comparison of two conversations; they share the first `common` events."""

    common: int
    a: ComparedSide
    b: ComparedSide
    cost_usd: float | None
    files: list[ComparedFile]
