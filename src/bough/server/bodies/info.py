"""`ConversationInfo`: the one document of create, get, list, fork and of the frame `full_state`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from bough.conversation import State
from bough.conversation.rules import read_recorded_limits
from bough.events.model import Usage
from bough.events.record import ConversationRecord, Status
from bough.guard import AlwaysConfirm
from bough.server.bodies.base import Stamp, stamp
from bough.server.bodies.openhands_agents import agent_in_force, describe_analyzer
from bough.types import JsonObject

MAX_ITERATIONS = 1_000_000
"""The most steps that a body of OpenHands can ask for; it also stands for runs without a limit."""


class Ledger(BaseModel):
    """What was used."""

    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None

    @classmethod
    def of(cls, usage: Usage) -> Ledger:
        """Return it from the log's form."""
        return cls(**usage.model_dump())


class Lineage(BaseModel):
    """Where a fork came from."""

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


class ConversationSummary(BaseModel):
    """What lists say of a conversation."""

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


class ConversationInfo(ConversationSummary):
    """A conversation. `agent` to `sub_conversation_ids` are as OpenHands' client reads them; the rest is ours."""

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
    """Return what a list says of a conversation, of its row alone: a `ConversationSummary` as JSON."""
    row = _row(record, running)
    return row if row["lineage"] is None else row | {"lineage": row["lineage"].model_dump(mode="json")}


@dataclass(frozen=True, kw_only=True)
class InfoDetails:
    """What single events say of a conversation, beside its row and its fold.

    Attributes:
        triggered: Skills that a message, a file or a task brought in; `invoked`: those that the model loaded.
        children: Conversations of sub-agents that it started itself.
        waiting_since: When the calls that wait began to; None where none does.
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
        details: What single events of it say.
        run: Its latest run, if this server knows of one.
    """
    posted: JsonObject = record.config.get("posted") or {}
    policies = state.policies
    running = run is not None and run.state in ("pending", "running")
    since = stamp(details.waiting_since or record.updated)
    return ConversationInfo(
        **_row(record, running),
        agent=agent_in_force(posted, state.agent, policies),
        persistence_dir=f"bough:{record.id}",
        confirmation_policy=_policy_in_force(state),
        security_analyzer=_analyzer_in_force(record, state),
        stats=_stats(state),
        max_iterations=_steps_in_force(policies),
        stuck_detection=True,
        hook_config=None,
        tool_module_qualnames=posted.get("tool_module_qualnames") or {},
        client_tools=[],
        secret_registry={"secret_sources": _secret_names(policies)},
        activated_knowledge_skills=list(details.triggered),
        invoked_skills=list(details.invoked),
        parent_conversation_id=None if run is None else run.parent,
        sub_conversation_ids=list(details.children),
        spec=state.agent,
        own=Ledger.of(state.own),
        inherited=Ledger.of(state.inherited),
        delegated=Ledger.of(state.delegated),
        waiting=[_waiting_call(state, id, about, since) for id, about in state.waiting.items()],
        run=run,
        limits=policies.get("limits") or {},
        workspace_policy=state.workspace_policy,
    )


def _row(record: ConversationRecord, running: bool) -> dict[str, Any]:
    return {
        "id": record.id,
        "title": record.title,
        "tags": record.tags,
        "created_at": stamp(record.created),
        "updated_at": stamp(record.updated),
        "execution_status": "running" if running else record.status,
        "workspace": {"kind": "LocalWorkspace", "working_dir": record.config.get("workspace", ".")},
        "head": record.head,
        "forked_from_conversation_id": record.forked_from,
        "forked_from_event_id": record.fork_event,
        "lineage": _lineage(record),
    }


def _lineage(record: ConversationRecord) -> Lineage | None:
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


def _policy_in_force(state: State) -> JsonObject:
    if state.quarantined:
        return AlwaysConfirm().to_json()
    return state.policies.get("policy") or {"kind": "NeverConfirm"}


def _analyzer_in_force(record: ConversationRecord, state: State) -> JsonObject | None:
    """Return the analyzer in the form that the conversation was started in."""
    analyzer: JsonObject | None = state.policies.get("analyzer")
    if record.config.get("form") != "openhands":
        return analyzer
    posted: JsonObject = record.config.get("posted") or {}
    return describe_analyzer(analyzer, posted.get("security_analyzer"))


def _steps_in_force(policies: JsonObject) -> int:
    steps = read_recorded_limits(policies)[0].steps
    return MAX_ITERATIONS if steps is None else steps


def _secret_names(policies: JsonObject) -> JsonObject:
    return {name: {"kind": "StaticSecret", "value": None} for name in policies.get("secrets") or ()}


def _stats(state: State) -> JsonObject:
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


def _waiting_call(state: State, id: str, about: JsonObject, since: str) -> WaitingCallInfo:
    call = state.calls.get(id)
    return WaitingCallInfo(
        tool_call_id=id,
        kind=str(about.get("kind", "approval")),
        tool=str(about.get("tool", "")),
        arguments=call.given if call else {},
        risk=about.get("risk"),
        reason=str(about.get("reason") or ""),
        since=since,
    )


class LineageItem(BaseModel):
    """One conversation of a line of descent: `at` events of the one before are shared."""

    id: UUID
    title: str | None
    at: int | None
    event_id: UUID | None

    @classmethod
    def of(cls, record: ConversationRecord) -> LineageItem:
        """Return it from a row."""
        return cls(id=record.id, title=record.title, at=record.forked_at, event_id=record.fork_event)


class LineageInfo(BaseModel):
    """A line of descent, the root first."""

    items: list[LineageItem]


class ComparedSide(BaseModel):
    """What one of two conversations has of its own."""

    id: UUID
    head: int
    own: Ledger
    calls: list[JsonObject]


class ComparedFile(BaseModel):
    """A file that is not the same in both workspaces."""

    path: str
    change: str


class ComparisonInfo(BaseModel):
    """Two conversations side by side."""

    common: int
    a: ComparedSide
    b: ComparedSide
    cost_usd: float | None
    files: list[ComparedFile]
