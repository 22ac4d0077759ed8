"""From what a caller says of a task to what its submission writes. Nothing is written here."""

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
from bough.conversation.fork.inherited_rules import inherit_changed_rules
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.state import State
from bough.conversation.message import check_message, events_of
from bough.conversation.open import Beginning
from bough.conversation.rules import Rules
from bough.conversation.run.tracing import read_traceparent
from bough.errors import Conflict, InvalidInput, NotSupported, PermissionDenied
from bough.events.beside import Tables
from bough.events.model import ConversationStarted, Event, StateChanged, UserMessage
from bough.events.record import ConversationRecord, microseconds
from bough.guard import Limits, limits_from_json
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
    rules_of,
    with_model,
    workspace_of,
)
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.rows import parse_id
from bough.tasks.stores.submission import ParentLink, Submission
from bough.types import Clock, JsonObject, SystemClock, new_id

MAX_METADATA_BYTES = 64 << 10
MAX_KEY_CHARACTERS = 200

TRACE = "trace"
"""In a task's metadata: W3C's `traceparent` of the span in which it was submitted."""

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}|~[\w.-]{1,80}")
_KEPT = frozenset({"agent_name", "system_prompt", "config_name"})
_RESERVED = _KEPT | {
    "idempotency_key", "priority", "queue", "not_before", "deadline_seconds", "max_attempts", "id", "parent",
    "conversation", "check", "title", "tags", "workspace", "limits",
}  # fmt: skip
_CHECKED_SPELLING = (*sorted(_KEPT), "idempotency_key", "not_before", "deadline_seconds", "max_attempts")
_KEYS = UUID("4f3f6a1e-6f0b-5b6e-9a57-0d6f1f1f8a10")
"""Namespace of the ids that idempotency keys make."""


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """What a caller says of a task: see `TaskBroker.submit` for the keys of `metadata`.

    Attributes:
        owner: Of the conversation that it makes: the parent's.
        rules: Of the parent, by which the child's are narrowed; None without a parent.
        sender: Who speaks: `user`, or the parent's agent.
        changed_rules: Digests of rule files that tools of the parent wrote; the child does not follow them.
        check: See `Submission`.
        workspace_policy: How it came by its workspace; see `ForkedWorkspace`.
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
        agents: Registered specs by name; the mapping is looked at anew for each submission.
        model: For agents without one of their own.
        cache: Shares what several conversations have in common.
        runs_here: Whether this process runs the tasks of a queue. The model of an agent that names none is settled by
            the process that runs it.
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

    async def prepare(self, asked: SubmissionRequest, *, worker: str | None = None) -> Submission:
        """Return what a submission writes.

        Raises:
            InvalidInput: A key of the metadata has a value that it cannot have, or the input is empty.
            NotFound: The workspace, the agent's skills or its prompt are not there.
            PermissionDenied: A hook refuses the message.
        """
        metadata = asked.metadata
        key = read_key(metadata)
        id = _read_id(metadata, key)
        conversation = _read_uuid(metadata, "conversation")
        shared: dict[str, Any] = {
            "id": id,
            "key": key,
            "metadata": with_trace(read_kept(metadata)),
            "bounds": asked.bounds,
            "priority": _read_int(metadata, "priority", -(2**15), 2**15 - 1) or 0,
            "max_attempts": _read_int(metadata, "max_attempts", 1, 1000) or 3,
            "not_before": _read_moment(metadata, "not_before"),
            "deadline_seconds": read_deadline(metadata),
            "parent": asked.parent,
            "worker": worker,
            "check": asked.check,
        }
        if conversation is not None:
            return self._on_conversation(asked, conversation, shared)
        return await self._new(asked, id, shared)

    def _on_conversation(self, asked: SubmissionRequest, conversation: UUID, shared: JsonObject) -> Submission:
        """Return a submission that runs a conversation which is there."""
        message = None if asked.input is None else check_message(asked.input, sender=asked.sender)
        name = _read_text(asked.metadata, "agent_name")
        queue = read_queue(asked.metadata) or "default"
        return Submission(conversation=conversation, message=message, agent=name, queue=queue, **shared)

    async def _new(self, asked: SubmissionRequest, id: UUID, shared: JsonObject) -> Submission:
        """Return a submission that makes its conversation."""
        message = check_message(asked.input or "", sender=asked.sender)
        found = await self._find(asked.metadata)
        queue = read_queue(asked.metadata)
        if found is None:
            name = _read_text(asked.metadata, "agent_name")
            record, opening = _begin_unresolved(id, name, asked.metadata, self._clock.now())
            shared |= {"agent": name, "queue": queue or "default"}
            opening = (*opening, *inherit_changed_rules(asked.changed_rules))
            return Submission(conversation=id, record=record, opening=opening, message=message, **shared)
        spec, is_configured = found
        rules = self._rules(asked, spec)
        private = await self._is_private(spec, rules, is_configured=is_configured)
        spec = with_model(spec, self._model)
        shared |= {"agent": spec.name, "queue": name_private_queue(spec) if private else queue or spec.queue}
        beginning = Beginning(
            agent=spec,
            workspace=workspace_of(asked.metadata),
            id=id,
            title=_read_text(asked.metadata, "title"),
            tags=_read_tags(asked.metadata),
        )
        prepared = beginning.prepare(
            self._settings,
            rules,
            cache=self._cache,
            changed_rules=asked.changed_rules,
            settle_model=self._settles_model(asked, shared["queue"]),
        )
        executor = spec.executor.name if spec.executor is not None else self._settings.executor
        opening = [*await prepared.greet(executor, rules), *inherit_changed_rules(asked.changed_rules)]
        if asked.workspace_policy != "shared":
            opening.append(StateChanged(changes={"workspace_policy": asked.workspace_policy}))
        state = _fold(opening)
        guard = rules.guard(id, state.workspace)
        verdict = await guard.on_prompt(message.plain)
        if verdict.decision == "deny":
            raise PermissionDenied(f"a hook refused the message: {verdict.reason}", hint="rephrase it")
        registry = prepared.blueprint.registry
        triggers = TriggerIndex(registry.list_all()) if message.sender == "user" else TriggerIndex([])
        said, *activated = events_of(message, state, triggers, registry)
        return Submission(
            conversation=id, record=prepared.record, opening=tuple(opening), message=cast(UserMessage, said),
            activated=(*activated, *verdict.events), **shared,
        )  # fmt: skip

    def _settles_model(self, asked: SubmissionRequest, queue: str) -> bool:
        """Whether an agent that names no model gets one at its submission.

        Otherwise its worker chooses: it has the keys, and this process may have none. A server chooses for its tenants,
        whose right to its model keys depends on the model.
        """
        return asked.parent is not None or asked.owner is not None or self._runs_here(queue)

    async def _find(self, metadata: Mapping[str, Any]) -> tuple[AgentSpec, bool] | None:
        """Return the agent of a task, and whether any process with this `config.yaml` can make it.

        None for a name that is not known here, which its worker may know.
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
        """Whether only a program that has the agent, its hooks and secrets as objects can run its task."""
        if spec.model is None and isinstance(self._model, Model):
            return True
        settings = self._settings
        is_known = is_configured or await has_recorded_agent(spec, settings)
        return not (is_known and await has_recorded_rules(rules, settings))

    def _rules(self, asked: SubmissionRequest, spec: AgentSpec) -> Rules:
        """Return the rules of a new conversation: the spec's, narrowed by what the caller and the parent say."""
        rules = Rules.build(self._settings, **cast(Any, rules_of(spec)))
        limits = read_limits(asked.metadata)
        if limits is not None:
            name = "limits" if limits.per == "run" else "total"
            rules = replace(rules, **{name: narrower(getattr(rules, name), limits)})
        if self._hooks is not None:
            rules = replace(rules, hooks=self._hooks(workspace_of(asked.metadata)))
        return rules if asked.rules is None else rules.narrow(asked.rules)


def request_retry(task: Task, metadata: Mapping[str, Any]) -> SubmissionRequest:
    """Return what is submitted to continue with the conversation of a task that failed or was cancelled.

    Args:
        metadata: Instead of what the task was submitted with.

    Raises:
        Conflict: The task has not ended, or it completed.
    """
    if not task.is_terminal or task.state is TaskState.COMPLETED or task.conversation is None:
        raise Conflict(
            f"task {task.id} is {task.state.value}", hint="a task that failed or was cancelled can be retried"
        )
    kept = {key: value for key, value in task.metadata.items() if key not in metadata}
    carried: dict[str, Any] = {"queue": task.queue, "priority": task.priority}
    return SubmissionRequest(input=None, metadata={**kept, **carried, **metadata, "conversation": task.conversation})


def check_spelling(metadata: Mapping[str, Any]) -> None:
    """Check that no key is nearly, but not exactly, one that says how the task runs.

    A misspelt `agent_name` would be kept as a label, and another agent would run the task.

    Raises:
        InvalidInput: A key is misspelt.
    """
    for key in metadata.keys() - _RESERVED:
        if nearest := difflib.get_close_matches(key, _CHECKED_SPELLING, 1, 0.85):
            raise InvalidInput(
                f"{key!r} is not an option of a task",
                hint=f"did you mean {nearest[0]!r}? Give a label of your own a name that differs more",
            )


def read_kept(metadata: Mapping[str, Any]) -> JsonObject:
    """Return the part of a submission's metadata that is kept with the task.

    Raises:
        InvalidInput: It is not JSON, or longer than 64 KiB.
        NotSupported: A check is asked for.
    """
    if metadata.get("check") is not None:
        raise NotSupported(
            "a task cannot check its result yet", hint="run the check after the task, and leave check out"
        )
    kept = {key: value for key, value in metadata.items() if key not in _RESERVED or key in _KEPT}
    try:
        text = json.dumps(kept, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a task's metadata must be JSON: {error}", hint="give texts, numbers, lists, objects"
        ) from error
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"a task's metadata has {len(text.encode())} bytes",
            hint="at most 64 KiB; put more into a file or the input",
        )
    return json.loads(text)


def with_trace(kept: JsonObject) -> JsonObject:
    """Return a task's metadata with the span that submits it, so that its own is below that; a caller's own stays."""
    traceparent = read_traceparent()
    return kept if traceparent is None or TRACE in kept else {**kept, TRACE: traceparent}


def read_key(metadata: Mapping[str, Any]) -> str | None:
    """Return the idempotency key. Raises `InvalidInput` for one that is empty or too long."""
    key = _read_text(metadata, "idempotency_key")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise _wrong("idempotency_key", key[:40], f"1 to {MAX_KEY_CHARACTERS} characters")
    return key


def read_queue(metadata: Mapping[str, Any]) -> str | None:
    """Return the queue that was asked for. Raises `InvalidInput` for a name that no queue can have."""
    queue = _read_text(metadata, "queue")
    if queue is not None and not _QUEUE.fullmatch(queue):
        raise _wrong("queue", queue, "1 to 64 letters, digits, `_`, `.` or `-`")
    return queue


def read_deadline(metadata: Mapping[str, Any]) -> float | None:
    """Return within how many seconds the task has to end. Raises `InvalidInput` for what is not a number above 0."""
    seconds = metadata.get("deadline_seconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**9:
        raise _wrong("deadline_seconds", seconds, "a number above 0")
    return seconds


def read_limits(metadata: Mapping[str, Any]) -> Limits | None:
    """Return the bounds that were asked for."""
    limits = metadata.get("limits")
    if limits is None or isinstance(limits, Limits):
        return limits
    return limits_from_json({"per": "run", **limits} if isinstance(limits, dict) else limits)


def id_of_key(key: str) -> UUID:
    """Return the id of the task that an idempotency key makes."""
    return uuid5(_KEYS, key)


def _read_id(metadata: Mapping[str, Any], key: str | None) -> UUID:
    given = _read_uuid(metadata, "id")
    if given is not None:
        return given
    return new_id() if key is None else id_of_key(key)


def _read_uuid(metadata: Mapping[str, Any], name: str) -> UUID | None:
    value = metadata.get(name)
    if value is None or isinstance(value, UUID):
        return value
    found = parse_id(value) if isinstance(value, str) else None
    if found is None:
        raise _wrong(name, value, "a UUID")
    return found


def _read_text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(name, value, "text")


def _read_int(metadata: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")
    return value


def _read_moment(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _wrong(name, value, "a time with a time zone") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _wrong(name, value, "a time with a time zone")
    return microseconds(value)


def _read_tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    tags: Any = metadata.get("tags") or {}
    if isinstance(tags, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):  # pyright: ignore
        return dict(cast("Mapping[str, str]", tags))
    raise _wrong("tags", metadata["tags"], "an object of texts")


def _wrong(name: str, value: object, expected: str) -> InvalidInput:
    return InvalidInput(f"{name} cannot be {value!r:.80}", hint=f"give {expected}", details={"key": name})


def _begin_unresolved(
    id: UUID, agent: str | None, metadata: Mapping[str, Any], now: datetime
) -> tuple[ConversationRecord, tuple[Event, ...]]:
    """Return the beginning of a conversation whose agent is only named: its worker says more."""
    folder = workspace_of(metadata).expanduser().absolute()
    title, tags = _read_text(metadata, "title"), _read_tags(metadata)
    started = ConversationStarted(workspace=str(folder), title=title, tags=tags)
    config: JsonObject = {"agent": agent, "workspace": str(folder)}
    record = ConversationRecord(id=id, root=id, title=title, tags=tags, config=config, created=now, updated=now)
    return record, (started,)


def _fold(events: list[Event]) -> State:
    state = State()
    for seq, event in enumerate(events):
        state.apply(seq, event)
    return state
