"""Prepare submissions: validate a request and compute what the submission writes. Writes nothing."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID, uuid5

from pydantic_ai.models import Model

from bough.agents.build import BlueprintCache
from bough.agents.spec import AgentSpec
from bough.conversation.check import RunCheck
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.state import State, inherit_changed_rules
from bough.conversation.message import check_message, make_message_events
from bough.conversation.open import Beginning
from bough.conversation.rules import LIMITS_FIELDS, Rules, read_spec_rules
from bough.conversation.run.tracing import read_traceparent
from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.events.model import ConversationStarted, Event, StateChanged, UserMessage
from bough.events.record import ConversationRecord, microseconds
from bough.events.side_tables import Tables
from bough.guard import Limits, limits_from_json
from bough.guard.budget import join_budgets, parse_budgets
from bough.guard.limits import narrower
from bough.settings import Settings
from bough.skills.match.triggers import TriggerIndex
from bough.tasks.agents import (
    FindHooks,
    find_configured,
    find_registered,
    has_recorded_agent,
    has_recorded_rules,
    make_agent,
    name_private_queue,
    read_workspace,
    with_model,
)
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.rows import parse_id
from bough.tasks.stores.submission import ParentLink, Submission
from bough.types import Clock, JsonObject, SystemClock, new_id

MAX_METADATA_BYTES = 64 << 10
MAX_KEY_CHARACTERS = 200

TRACE = "trace"
"""Metadata key of a task: the W3C `traceparent` of the span that submitted it."""

CHECK = "check"
"""Metadata key of a task: the command that judges its files before it completes; see `RunCheck`."""

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}|~[\w.-]{1,80}")
_STORED = frozenset({"agent_name", "system_prompt", "config_name"})
_RESERVED = _STORED | {
    "idempotency_key", "priority", "queue", "not_before", "deadline_seconds", "max_attempts", "id", "parent",
    "conversation", CHECK, "title", "tags", "workspace", "limits", "budget",
}  # fmt: skip
_CHECKED_SPELLING = (*sorted(_STORED), "idempotency_key", "not_before", "deadline_seconds", "max_attempts")
_KEYS = UUID("4f3f6a1e-6f0b-5b6e-9a57-0d6f1f1f8a10")
"""UUID namespace for the ids of tasks with an idempotency key."""


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """A request to submit a task: see `TaskBroker.submit` for the keys of `metadata`.

    Attributes:
        owner: Owner of the new conversation: the parent's owner.
        rules: The parent's rules, which narrow the child's; None without a parent.
        sender: Sender of the message: `user`, or the parent's agent.
        changed_rules: Digests of rule files that tools of the parent wrote; the child ignores these files.
        check: See `Submission`.
        workspace_policy: How the workspace was created: see `ForkedWorkspace`.
    """

    input: str | None
    metadata: Mapping[str, Any]
    parent: ParentLink | None = None
    owner: str | None = None
    rules: Rules | None = None
    sender: str = "user"
    bounds: tuple[JsonObject, ...] = ()
    workspace_policy: WorkspacePolicy = "shared"
    changed_rules: frozenset[str] = frozenset()
    check: Callable[[Tables], None] | None = None


class Submitter:
    """Prepares submissions.

    Args:
        agents: Registered specs by name. A live mapping: later registrations apply to later submissions.
        model: Used by agents that name no model.
        cache: Shares blueprints between conversations.
        runs_here: Returns whether this process runs the tasks of a queue. The process that runs a task chooses the
            model of an agent that names none.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSpec],
        model: str | Model | None,
        settings: Settings,
        clock: Clock | None = None,
        *,
        hooks: FindHooks | None = None,
        cache: BlueprintCache | None = None,
        runs_here: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        self._agents = agents
        self._runs_here = runs_here
        self._model = model
        self._settings = settings
        self._hooks = hooks
        self._cache = cache
        self._clock = clock or SystemClock()

    async def prepare(self, request: SubmissionRequest, *, worker: str | None = None) -> Submission:
        """Validate a request, and return the submission to write.

        Args:
            worker: Name of the submitting process, recorded with the submission.

        Raises:
            InvalidInput: A metadata key has an invalid value, or the input is empty.
            NotFound: The workspace, the agent's skills or its prompt file do not exist.
            PermissionDenied: A hook refuses the message.
        """
        metadata = request.metadata
        key = read_key(metadata)
        id = _read_id(metadata, key)
        conversation = _read_uuid(metadata, "conversation")
        shared: dict[str, Any] = {
            "id": id,
            "key": key,
            "metadata": with_trace(read_stored_metadata(metadata)),
            "bounds": request.bounds,
            "priority": _read_int(metadata, "priority", -(2**15), 2**15 - 1) or 0,
            "max_attempts": _read_int(metadata, "max_attempts", 1, 1000) or 3,
            "not_before": _read_moment(metadata, "not_before"),
            "deadline_seconds": read_deadline(metadata),
            "parent": request.parent,
            "worker": worker,
            "check": request.check,
        }
        if conversation is not None:
            if metadata.get("budget") is not None:
                raise InvalidInput(
                    "a task of an existing conversation takes no budget",
                    hint="give the budget to the conversation: AsyncConversation.open(…, budget=…)",
                )
            return self._prepare_existing(request, conversation, shared)
        return await self._prepare_new(request, id, shared)

    def _prepare_existing(self, request: SubmissionRequest, conversation: UUID, shared: JsonObject) -> Submission:
        """Return a submission that runs an existing conversation."""
        message = None if request.input is None else check_message(request.input, sender=request.sender)
        name = _read_text(request.metadata, "agent_name")
        queue = read_queue(request.metadata) or "default"
        return Submission(conversation=conversation, message=message, agent=name, queue=queue, **shared)

    async def _prepare_new(self, request: SubmissionRequest, id: UUID, shared: JsonObject) -> Submission:
        """Return a submission that creates its conversation.

        Args:
            shared: The fields that every submission has.
        """
        message = check_message(request.input or "", sender=request.sender)
        agent = await self._find_agent(request.metadata)
        queue = read_queue(request.metadata)
        if agent is None:
            name = _read_text(request.metadata, "agent_name")
            if request.metadata.get("budget") is not None:
                raise InvalidInput(
                    f"a budget needs an agent that this process knows, and {name!r} is not registered",
                    hint="register the agent, or give the budget to the orchestrator's conversation",
                )
            record, opening = _begin_unresolved(id, name, request.metadata, self._clock.now())
            shared |= {"agent": name, "queue": queue or "default"}
            opening = (*opening, *inherit_changed_rules(request.changed_rules))
            return Submission(conversation=id, record=record, opening=opening, message=message, **shared)
        spec, is_configured = agent
        rules = self._make_rules(request, spec)
        is_private = await self._is_private(spec, rules, is_configured=is_configured)
        spec = with_model(spec, self._model)
        shared |= {"agent": spec.name, "queue": name_private_queue(spec) if is_private else queue or spec.queue}
        beginning = Beginning(
            agent=spec,
            workspace=read_workspace(request.metadata),
            id=id,
            title=_read_text(request.metadata, "title"),
            tags=_read_tags(request.metadata),
        )
        prepared = beginning.prepare(
            self._settings,
            rules,
            cache=self._cache,
            changed_rules=request.changed_rules,
            settle_model=self._settles_model(request, shared["queue"]),
        )
        executor = spec.executor.name if spec.executor is not None else self._settings.executor
        opening = [*await prepared.make_first_events(executor, rules), *inherit_changed_rules(request.changed_rules)]
        if request.workspace_policy != "shared":
            opening.append(StateChanged(changes={"workspace_policy": request.workspace_policy}))
        state = _fold(opening)
        guard = rules.guard(id, state.workspace)
        # Before anything is written: a refused message leaves no conversation behind.
        verdict = await guard.on_prompt(message.plain)
        if verdict.decision == "deny":
            raise PermissionDenied(f"a hook refused the message: {verdict.reason}", hint="rephrase it")
        registry = prepared.blueprint.registry
        triggers = TriggerIndex(registry.list_all()) if message.sender == "user" else TriggerIndex([])
        user_message, *activated = make_message_events(message, state, triggers, registry)
        return Submission(
            conversation=id, record=prepared.record, opening=tuple(opening), message=cast(UserMessage, user_message),
            activated=(*activated, *verdict.events), **shared,
        )  # fmt: skip

    def _settles_model(self, request: SubmissionRequest, queue: str) -> bool:
        """Whether the submission chooses the model of an agent that names none.

        Otherwise the worker chooses: it has the API keys, and this process may have none. A server chooses for its
        tenants, whose right to use its model keys depends on the model.
        """
        return request.parent is not None or request.owner is not None or self._runs_here(queue)

    async def _find_agent(self, metadata: Mapping[str, Any]) -> tuple[AgentSpec, bool] | None:
        """Return the agent of a task, and whether any process with this `config.yaml` can make it.

        Returns None for an unknown name, since a worker may know it.
        """
        name = _read_text(metadata, "agent_name")
        if name is None:
            return await make_agent(metadata, self._settings), "config_name" in metadata
        registered = find_registered(metadata, name, self._agents)
        if registered is not None:
            return registered, False
        configured = await find_configured(metadata, name, self._settings)
        return None if configured is None else (configured, True)

    async def _is_private(self, spec: AgentSpec, rules: Rules, *, is_configured: bool) -> bool:
        """Whether only a program that holds the agent, its hooks and secrets as objects can run its task."""
        if spec.model is None and isinstance(self._model, Model):
            return True
        settings = self._settings
        if not is_configured and not await has_recorded_agent(spec, settings):
            return True
        return not await has_recorded_rules(rules, settings)

    def _make_rules(self, request: SubmissionRequest, spec: AgentSpec) -> Rules:
        """Return a new conversation's rules: the spec's, narrowed by those of the request and by the parent's."""
        rules = Rules.build(self._settings, **read_spec_rules(spec))
        limits = read_limits(request.metadata)
        if limits is not None:
            name = LIMITS_FIELDS[limits.per]
            rules = replace(rules, **{name: narrower(getattr(rules, name), limits)})
        rules = replace(rules, budgets=join_budgets(rules.budgets, parse_budgets(request.metadata.get("budget"))))
        if self._hooks is not None:
            rules = replace(rules, hooks=self._hooks(read_workspace(request.metadata)))
        return rules if request.rules is None else rules.narrow(request.rules)


def request_retry(task: Task, metadata: Mapping[str, Any]) -> SubmissionRequest:
    """Return the request that continues the conversation of a task that failed or was cancelled.

    Args:
        metadata: Overrides keys of the task's metadata.

    Raises:
        Conflict: The task has not ended, or it completed.
    """
    if not task.is_terminal or task.state is TaskState.COMPLETED or task.conversation is None:
        raise Conflict(
            f"task {task.id} is {task.state.value}", hint="a task that failed or was cancelled can be retried"
        )
    inherited = {key: value for key, value in task.metadata.items() if key not in metadata}
    carried: dict[str, Any] = {"queue": task.queue, "priority": task.priority}
    return SubmissionRequest(
        input=None, metadata={**inherited, **carried, **metadata, "conversation": task.conversation}
    )


def check_spelling(metadata: Mapping[str, Any]) -> None:
    """Check that no key is a misspelling of an option of the task.

    A misspelled `agent_name` would be stored as a label, and another agent would run the task.

    Raises:
        InvalidInput: A key is misspelled.
    """
    for key in metadata.keys() - _RESERVED:
        if nearest := difflib.get_close_matches(key, _CHECKED_SPELLING, 1, 0.85):
            raise InvalidInput(
                f"{key!r} is not an option of a task",
                hint=f"did you mean {nearest[0]!r}? For a label, use a name that differs more",
            )


def read_stored_metadata(metadata: Mapping[str, Any]) -> JsonObject:
    """Return the part of a submission's metadata that is stored with the task.

    Raises:
        InvalidInput: The metadata is not JSON, or longer than 64 KiB, or its check is invalid.
    """
    stored = {key: value for key, value in metadata.items() if key not in _RESERVED or key in _STORED}
    if (check := metadata.get(CHECK)) is not None:
        stored[CHECK] = RunCheck.parse(check).to_json()
    try:
        text = json.dumps(stored, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a task's metadata must be JSON: {error}", hint="use strings, numbers, lists and objects"
        ) from error
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"a task's metadata has {len(text.encode())} bytes",
            hint="at most 64 KiB are allowed: put the rest into a file or the input",
        )
    return json.loads(text)


def with_trace(metadata: JsonObject) -> JsonObject:
    """Add the current span to a task's metadata, as the parent of the task's span. A `trace` of the caller is kept."""
    traceparent = read_traceparent()
    return metadata if traceparent is None or TRACE in metadata else {**metadata, TRACE: traceparent}


def read_key(metadata: Mapping[str, Any]) -> str | None:
    """Return the idempotency key. Raises `InvalidInput` if it is empty or too long."""
    key = _read_text(metadata, "idempotency_key")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise _make_value_error("idempotency_key", key[:40], f"1 to {MAX_KEY_CHARACTERS} characters")
    return key


def read_queue(metadata: Mapping[str, Any]) -> str | None:
    """Return the requested queue. Raises `InvalidInput` for an invalid name."""
    queue = _read_text(metadata, "queue")
    if queue is not None and not _QUEUE.fullmatch(queue):
        raise _make_value_error("queue", queue, "1 to 64 letters, digits, `_`, `.` or `-`")
    return queue


def read_deadline(metadata: Mapping[str, Any]) -> float | None:
    """Return the deadline in seconds from submission. Raises `InvalidInput` unless it is a number above 0."""
    seconds = metadata.get("deadline_seconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
        raise _make_value_error("deadline_seconds", seconds, "a number above 0")
    return seconds


def read_limits(metadata: Mapping[str, Any]) -> Limits | None:
    """Return the requested limits, per run by default; None if none are requested."""
    limits = metadata.get("limits")
    if limits is None or isinstance(limits, Limits):
        return limits
    return limits_from_json({"per": "run", **limits} if isinstance(limits, dict) else limits)


def task_id_for_key(key: str) -> UUID:
    """Return the id of the task with an idempotency key."""
    return uuid5(_KEYS, key)


def _read_id(metadata: Mapping[str, Any], key: str | None) -> UUID:
    id = _read_uuid(metadata, "id")
    if id is not None:
        return id
    return new_id() if key is None else task_id_for_key(key)


def _read_uuid(metadata: Mapping[str, Any], name: str) -> UUID | None:
    value = metadata.get(name)
    if value is None or isinstance(value, UUID):
        return value
    id = parse_id(value) if isinstance(value, str) else None
    if id is None:
        raise _make_value_error(name, value, "a UUID")
    return id


def _read_text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _make_value_error(name, value, "text")


def _read_int(metadata: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _make_value_error(name, value, f"a whole number from {low} to {high}")
    return value


def _read_moment(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _make_value_error(name, value, "a time with a time zone") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _make_value_error(name, value, "a time with a time zone")
    return microseconds(value)


def _read_tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    tags: Any = metadata.get("tags") or {}
    if isinstance(tags, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):  # pyright: ignore
        return dict(cast("Mapping[str, str]", tags))
    raise _make_value_error("tags", metadata["tags"], "an object of texts")


def _make_value_error(name: str, value: object, expected: str) -> InvalidInput:
    return InvalidInput(f"{name} cannot be {value!r:.80}", hint=f"give {expected}", details={"key": name})


def _begin_unresolved(
    id: UUID, agent: str | None, metadata: Mapping[str, Any], created: datetime
) -> tuple[ConversationRecord, tuple[Event, ...]]:
    """Return the record and first events of a conversation whose agent only a worker can resolve."""
    folder = read_workspace(metadata).expanduser().absolute()
    title, tags = _read_text(metadata, "title"), _read_tags(metadata)
    started = ConversationStarted(workspace=str(folder), title=title, tags=tags)
    config: JsonObject = {"agent": agent, "workspace": str(folder)}
    record = ConversationRecord(id=id, root=id, title=title, tags=tags, config=config, created=created, updated=created)
    return record, (started,)


def _fold(events: list[Event]) -> State:
    state = State()
    for seq, event in enumerate(events):
        state.apply(seq, event)
    return state
