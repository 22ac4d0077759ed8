"""The state of a conversation at one point of its log, and `Fold`, which derives it and the view from the events."""

from __future__ import annotations

import asyncio
import copy
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args
from uuid import UUID

from bough.errors import BoughError, CorruptLog, InvalidInput
from bough.events.model import (
    Condensed,
    ConversationStarted,
    Event,
    FilesKept,
    FinishReason,
    ForkedFrom,
    Imported,
    LimitReached,
    MessageStored,
    ModelResponded,
    OutputGiven,
    PauseRequested,
    RulesChanged,
    SkillActivated,
    StateChanged,
    TaskEnded,
    TaskLinked,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolOutcome,
    ToolRejected,
    ToolReturned,
    Usage,
    UsageAdded,
    UserMessage,
)
from bough.events.record import Status, StoredEvent
from bough.events.stores import faults
from bough.guard import limits_from_json
from bough.markdown import table
from bough.types import Json, JsonObject, parse_arguments

if TYPE_CHECKING:
    from bough.conversation.log.view import View, ViewMark

NOTHING_USED = Usage(requests=0)


@dataclass(kw_only=True)
class ToolCall:
    """A call of the latest model response.

    Attributes:
        arguments: As the model gave them: JSON text, or an object.
        started: Whether its `ToolCalled` is in the log, so that the tool may have had effects.
        approved: Whether someone approved it.
        carried: Whether it was made before a fork or import. It then needs a new approval under every policy.
        edited: The arguments by which a person replaced the model's; None if they are unchanged.
        edited_by: Who replaced the arguments.
        outcome: The event that ended it; None while it is open.
    """

    id: str
    tool: str
    arguments: str | JsonObject = ""
    started: bool = False
    idempotent: bool = False
    approved: bool = False
    carried: bool = False
    edited: JsonObject | None = None
    edited_by: str | None = None
    outcome: ToolOutcome | None = None

    @property
    def parsed_arguments(self) -> JsonObject:
        """The effective arguments as an object. Other values and unparsable JSON are under the key `_`."""
        if self.edited is not None:
            return self.edited
        return parse_arguments(self.arguments)


@dataclass(frozen=True, kw_only=True)
class TaskLink:
    """A task that the conversation started.

    Attributes:
        call: The tool call that started it.
        background: Whether the call returned without waiting for the task.
        state: The state of the task; `pending` until it ends.
        ended: Seq of its `TaskEnded`, which has the result, the error and the usage; None while the task is open.
        reported: Whether the model was shown the result.
    """

    agent: str | None = None
    call: str | None = None
    background: bool = False
    state: str = "pending"
    ended: int | None = None
    reported: bool = False


@dataclass(frozen=True, kw_only=True)
class KeptFiles:
    """The latest snapshot of the workspace's files.

    Attributes:
        tree: Digest of the stored tree; None if nothing was stored, with the `reason`.
        place: Id of the folder in which the objects of the tree are stored.
        seq: Seq of its event.
        files: Number of files in the tree; `bytes` is their size.
    """

    tree: str | None
    place: str = ""
    seq: int = 0
    files: int = 0
    bytes: int = 0
    reason: str = ""


@dataclass(kw_only=True)
class State:
    """The fold of a log. Only `apply` changes it, and the result depends only on the events.

    Attributes:
        base: Events before this seq are shared with the source of the fork.
        head: How many events have been folded; the next one has this seq.
        workspace_policy: `readonly` if the tools may only read the workspace, else how a fork got its workspace.
        calls: Tool calls of the latest model response by id, in its order.
        unanswered: Whether the log has a message or a result that the model has not answered.
        pausing: Whether someone asked the run to stop at its next step.
        waiting: Calls that wait for a person, by id, with risk and reason.
        request_tokens: Input tokens of the latest request, as the provider counted them.
        limit: The limit that ended the latest run; None if no limit did.
        own: Usage of this conversation's requests since the fork.
        delegated: Usage since the fork that sub-agents' tasks and tools reported.
        inherited: Usage before the fork.
        used_before_run: The sum of `own` and `delegated` when the latest run began.
        spent: Usage and number of the conversation's tasks when the latest run began; None without sub-agents.
        tasks: Tasks that this conversation started, by id; one that has ended and was reported is removed.
        active_skills: Content hash by name of every skill whose text is in the log.
        skill_trees: Digest by name of the snapshot that an active skill's scripts and files are read from.
        changed_rules: Digests of rule files that tools wrote. They are not used without a person's review.
        task: The task skill that was called last, with its inputs; None if no task skill was called.
        allowed_tools: Tools that the skills activated since the user's last message allow; None without such a list.
        output: Text of the latest model response without tool calls.
        finish_reason: Why the latest response ended.
        partial: Whether the text of the latest response is truncated.
        data: The latest run's value of the output type, as JSON; None without one.
        turns: How many turns of a user have begun.
        turn_start: Seq of the message that began the last turn.
        response_seq: Seq of the latest model response; None before the first one.
        import_seq: Seq of the event that marks all earlier events as imported; None without an import.
        quarantined: Whether the imported events are not adopted yet, so that every call needs an approval.
        last_id: Id of the last event; None before the first one.
        files: The latest snapshot of the workspace's files; None before the first one.
    """

    base: int = 0
    head: int = 0
    status: Status = "idle"
    title: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    agent: JsonObject = field(default_factory=dict[str, Any])
    workspace: Path = Path()
    workspace_policy: str = "shared"
    instructions: str = ""
    policies: JsonObject = field(default_factory=dict[str, Any])
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    unanswered: bool = False
    pausing: bool = False
    waiting: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    request_tokens: int = 0
    limit: str | None = None
    own: Usage = NOTHING_USED
    delegated: Usage = NOTHING_USED
    inherited: Usage = NOTHING_USED
    used_before_run: Usage = NOTHING_USED
    spent: JsonObject | None = None
    active_skills: dict[str, str] = field(default_factory=dict[str, str])
    skill_trees: dict[str, str] = field(default_factory=dict[str, str])
    changed_rules: frozenset[str] = frozenset()
    task: tuple[str, dict[str, str]] | None = None
    allowed_tools: tuple[str, ...] | None = None
    output: str = ""
    finish_reason: FinishReason = "stop"
    partial: bool = False
    data: Json = None
    tasks: dict[str, TaskLink] = field(default_factory=dict[str, TaskLink])
    turns: int = 0
    turn_start: int = 0
    response_seq: int | None = None
    last_id: UUID | None = None
    import_seq: int | None = None
    quarantined: bool = False
    files: KeptFiles | None = None
    _last_message: int = -1
    _seen: int = 0

    def _repr_markdown_(self) -> str:
        return table(
            [
                ("title", self.title or ""),
                ("status", f"{self.status}: {self.limit}" if self.limit else self.status),
                ("events", str(self.head)),
                ("turns", str(self.turns)),
                ("shared with the source", str(self.base) if self.base else ""),
                ("agent", str(self.agent.get("name") or "")),
                ("workspace", str(self.workspace)),
                ("tokens", f"{self.own.input_tokens} + {self.own.output_tokens}"),
                ("waiting", ", ".join(f"{call.get('tool')} ({id})" for id, call in self.waiting.items())),
                ("skills", ", ".join(self.active_skills)),
                ("tasks", ", ".join(f"{id}: {task.state}" for id, task in self.tasks.items())),
                ("output", self.output),
            ]
        )

    @property
    def has_message(self) -> bool:
        """Whether there is any message."""
        return self._last_message >= 0

    @property
    def open_calls(self) -> list[ToolCall]:
        """Calls of the latest response that have no outcome yet, in its order."""
        return [call for call in self.calls.values() if call.outcome is None]

    @property
    def used_by_run(self) -> Usage:
        """Usage since the latest run began."""
        return subtract_usage(add_usage(self.own, self.delegated), self.used_before_run)

    @property
    def used_in_all(self) -> Usage:
        """All usage, with the usage before a fork, whether or not the fork reset its own."""
        return add_usage(self.inherited, add_usage(self.own, self.delegated))

    @property
    def tasks_to_report(self) -> tuple[str, ...]:
        """Ids of the tasks that the model must still be told of: started in the background, or ended."""
        return tuple(
            id for id, link in self.tasks.items() if not link.reported and (link.background or link.ended is not None)
        )

    @property
    def has_work(self) -> bool:
        """Whether a run has anything to do: answer a message or a result, or finish a call."""
        return self.unanswered or bool(self.open_calls)

    def copy(self) -> State:
        """Return an independent copy."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)  # a quarter of the time of `copy.copy`; every fork copies a state
        new.tags = dict(self.tags)
        new.calls = {id: copy.copy(call) for id, call in self.calls.items()}
        return new

    def apply(self, seq: int, event: Event) -> None:  # noqa: C901 - one case a kind of event
        """Fold one event. O(1); a response costs O(its calls)."""
        match event:
            case ConversationStarted():
                self.agent, self.workspace = event.agent, Path(event.workspace)
                self.instructions, self.policies = event.instructions, event.policies
                self.title, self.tags = event.title, dict(event.tags)
            case ForkedFrom():
                self._begin_fork(event)
            case StateChanged():
                self._apply_changes(read_changes(event.changes))
            case PauseRequested():
                self.pausing = True
            case LimitReached():
                self.limit = event.limit
            case TaskLinked():
                link = TaskLink(agent=event.agent, call=event.tool_call_id, background=event.background)
                self.tasks = self.tasks | {event.task_id: link}
            case TaskEnded():
                self._end_task(seq, event)
            case UserMessage():
                self._report_tasks(event.tasks)
                if not self.has_work:
                    self.turns, self.turn_start = self.turns + 1, seq
                self.unanswered, self._last_message = True, seq
                if event.sender == "user":
                    self.allowed_tools = None
            case ModelResponded():
                self._apply_response(seq, event)
            case ToolCalled():
                if call := self.calls.get(event.tool_call_id):
                    call.started, call.idempotent = True, event.idempotent
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted():
                call = self.calls.get(event.tool_call_id)
                if isinstance(event, ToolReturned | ToolFailed):
                    self._report_tasks(event.tasks)
                    self.delegated = add_usage(self.delegated, event.usage or NOTHING_USED)
                if call is not None and call.outcome is None:  # the first outcome counts: a resumed run may repeat it
                    call.outcome, self.unanswered = event, True
            case SkillActivated():
                self.active_skills = self.active_skills | {event.name: event.content_hash}
                if event.tree:
                    self.skill_trees = self.skill_trees | {event.name: event.tree}
                if event.trigger in ("task", "slash"):
                    self.task = (event.name, event.inputs)
                if event.allowed_tools is not None:
                    self.allowed_tools = (self.allowed_tools or ()) + event.allowed_tools
            case FilesKept():
                self.files = KeptFiles(
                    tree=event.tree,
                    place=event.place,
                    seq=seq,
                    files=event.files,
                    bytes=event.bytes,
                    reason=event.reason,
                )
            case RulesChanged():
                self.changed_rules = self.changed_rules.union(event.hashes)
            case Imported():
                self._begin_import(seq, event)
            case OutputGiven():
                self.data = event.data
                self.unanswered = self._last_message >= self._seen  # outcomes of output tools need no answer
            case Condensed() if event.usage is not None:
                self.own = add_usage(self.own, event.usage)
            case UsageAdded():
                self.own = add_usage(self.own, event.usage)
            case _:
                pass
        self.head, self.last_id = seq + 1, event.id

    def _apply_changes(self, changes: JsonObject) -> None:
        """Apply the changes of a `StateChanged`. A new status ends a request to pause and all waiting."""
        if "status" in changes:
            self.status, self.pausing, self.waiting = changes["status"], False, {}
            if self.status == "running":
                self.used_before_run, self.spent = add_usage(self.own, self.delegated), changes.get("spent")
                self.limit, self.data = None, None
        self.waiting = changes.get("waiting", self.waiting)
        self._apply_call_changes(changes)
        self.policies = self.policies | changes.get("policies", {})
        if "adopted" in changes:
            self.quarantined = False
        self.title = changes.get("title", self.title)
        self.tags = changes.get("tags", self.tags)
        if "workspace" in changes:
            self.workspace = Path(changes["workspace"])
        self.workspace_policy = changes.get("workspace_policy", self.workspace_policy)
        self.agent = changes.get("agent", self.agent)
        self.instructions = changes.get("instructions", self.instructions)

    def _apply_call_changes(self, changes: JsonObject) -> None:
        """Apply the part of a `StateChanged` that concerns calls: approvals, edited arguments, and waiting."""
        for id in changes.get("approved", ()):
            if call := self.calls.get(id):
                call.approved = True
        for id, edit in changes.get("edited", {}).items():
            if call := self.calls.get(id):
                call.edited, call.edited_by = edit["after"], edit["by"]
        for id, wait in changes.get("waiting", {}).items():
            # A tool that asks for a decision has had no effect yet. It runs again after the decision.
            if (call := self.calls.get(id)) and wait.get("kind") in ("approval", "external"):
                call.started = False

    def _begin_import(self, seq: int, event: Imported) -> None:
        """Mark all earlier events as imported. Approvals among them are not valid here."""
        self.import_seq, self.quarantined, self.pausing = seq, True, False
        self.workspace, self.workspace_policy = Path(event.workspace), "shared"
        for call in self.calls.values():
            call.approved, call.carried = False, True
        self.waiting = {call.id: describe_imported(call) for call in self.open_calls}
        self.status = "waiting_for_confirmation" if self.waiting else "idle"
        self.tasks = {id: link for id, link in self.tasks.items() if link.ended is not None}

    def _end_task(self, seq: int, event: TaskEnded) -> None:
        link = self.tasks.get(event.task_id, TaskLink())
        self.tasks = self.tasks | {event.task_id: replace(link, state=event.state, ended=seq, reported=False)}
        self.delegated = add_usage(self.delegated, event.usage or NOTHING_USED)

    def _report_tasks(self, ids: Collection[str]) -> None:
        """Mark tasks as reported, and remove those that have ended. A task that only asked a question remains."""
        if not ids:
            return
        remaining: dict[str, TaskLink] = {}
        for id, link in self.tasks.items():
            if id not in ids:
                remaining[id] = link
            elif link.ended is None:
                remaining[id] = replace(link, reported=True)
        self.tasks = remaining

    def _begin_fork(self, event: ForkedFrom) -> None:
        """Begin the fork: earlier events are shared. Open calls need a new approval; running tasks are the source's."""
        self.base, self.status, self.pausing, self.waiting = event.at, "idle", False, {}
        for call in self.calls.values():
            call.approved, call.carried = False, True
        self.tasks = {id: link for id, link in self.tasks.items() if link.ended is not None}
        if event.reset_metrics:
            used = add_usage(self.own, self.delegated)
            self.own, self.delegated, self.inherited = NOTHING_USED, NOTHING_USED, add_usage(self.inherited, used)
        self.used_before_run, self.spent = add_usage(self.own, self.delegated), None

    def _apply_response(self, seq: int, event: ModelResponded) -> None:
        self.calls, self.response_seq = {call.id: call for call in list_calls(event)}, seq
        parts = event.response.get("parts", [])
        text = "".join(part["content"] for part in parts if part.get("part_kind") == "text")
        if not self.calls:
            self.output = text
        self.finish_reason, self.partial = event.finish_reason, event.partial
        self._seen = seq if event.seen is None else event.seen
        self.unanswered = self._last_message >= self._seen
        self.own = add_usage(self.own, event.usage)
        self.request_tokens = event.usage.input_tokens


def describe_imported(call: ToolCall) -> JsonObject:
    """Return the waiting entry of an open call of an imported log."""
    return {
        "tool": call.tool,
        "arguments": call.parsed_arguments,
        "risk": None,
        "reason": "it was called before the import",
    }


def list_calls(event: ModelResponded) -> list[ToolCall]:
    """Return the calls that a response makes, in its order."""
    return [
        ToolCall(id=part["tool_call_id"], tool=part["tool_name"], arguments=part.get("args") or "")
        for part in event.response.get("parts", [])
        if part.get("part_kind") == "tool-call"
    ]


def add_usage(a: Usage, b: Usage) -> Usage:
    """Return the sum. Its cost is None only if both costs are None."""
    costs = [usage.cost_usd for usage in (a, b) if usage.cost_usd is not None]
    return Usage(
        requests=a.requests + b.requests,
        input_tokens=a.input_tokens + b.input_tokens,
        output_tokens=a.output_tokens + b.output_tokens,
        cache_read_tokens=a.cache_read_tokens + b.cache_read_tokens,
        cache_write_tokens=a.cache_write_tokens + b.cache_write_tokens,
        cost_usd=sum(costs) if costs else None,
    )


def subtract_usage(a: Usage, b: Usage) -> Usage:
    """Return `a` minus `b`, an earlier value of `a`. The cost is None if the cost of `a` is None."""
    return Usage(
        requests=a.requests - b.requests,
        input_tokens=a.input_tokens - b.input_tokens,
        output_tokens=a.output_tokens - b.output_tokens,
        cache_read_tokens=a.cache_read_tokens - b.cache_read_tokens,
        cache_write_tokens=a.cache_write_tokens - b.cache_write_tokens,
        cost_usd=None if a.cost_usd is None else a.cost_usd - (b.cost_usd or 0.0),
    )


STEP = 128
"""A fold saves its state as a checkpoint every `STEP` events."""

_MAX_CHECKPOINTS = 1024

BLOCKING_SECONDS = 0.005
"""How long decoding may block the event loop, in seconds."""

CLOCK_EVENTS = 16
CLOCK_BYTES = 256 << 10
"""The clock is read after this many events or bytes. An event larger than `CLOCK_BYTES` is decoded in a thread."""


@dataclass(frozen=True)
class Mark:
    """The state and view of a fold at one position, to which `Fold.reset_to` returns.

    Attributes:
        view: None if no view was rendered at that position.
    """

    state: State
    view: ViewMark | None = None

    @property
    def head(self) -> int:
        """How many events had been folded."""
        return self.state.head


class Fold:
    """The state that a log results in, and the view. `state` is always the same object, also after a reset.

    Attributes:
        view: What the model is shown; None until it is rendered. From then on every folded event is applied to it.
        checkpoints: Copies of the state, oldest first: for each multiple of `STEP`, the first state at or after it
            that `is_savable`. The last ones may include events that are not durable yet.
    """

    def __init__(self, state: State | None = None, view: View | None = None) -> None:
        self.state = state or State()
        self.view = view
        self.checkpoints: list[State] = []
        self._start = self.state.head

    @classmethod
    def from_mark(cls, mark: Mark) -> Fold:
        """Return an independent fold that starts at a mark. O(messages shown)."""
        return cls(mark.state.copy(), None if mark.view is None else mark.view.restore())

    def apply(self, event: Event) -> None:
        """Fold the next event.

        Raises:
            CorruptLog: The event does not match its kind.
            InvalidInput: The log belongs to another program, which stores its messages here.
        """
        seq = self.state.head
        try:
            if isinstance(event, MessageStored):
                raise faults.foreign_messages()
            self.state.apply(seq, event)
            if self.view is not None:
                self.view.apply(seq, event)
        except BoughError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLog(
                f"event {event.id} (seq {seq}, {event.kind}) does not match its kind: {error!r}",
                hint=f"`bough doctor` checks the whole store; a fork at {seq} continues without it",
            ) from error
        if self.state.head >= self._next_checkpoint and is_savable(self.state):
            self._add_checkpoint(self.state.copy())

    def mark(self) -> Mark:
        """Return a mark of the present position. O(calls, prompts and active skills), not O(messages)."""
        return Mark(self.state.copy(), None if self.view is None else self.view.mark())

    def reset_to(self, mark: Mark) -> None:
        """Undo all events that were folded since `mark`."""
        vars(self.state).update(vars(mark.state.copy()))
        del self.checkpoints[self._count_checkpoints(mark.head) :]
        if self.view is not None and mark.view is not None:
            self.view.reset_to(mark.view)
        else:
            self.view = None

    def take_over(self, other: Fold) -> None:
        """Replace state, view and later checkpoints by those of `other`, a fold of this log that is not used again."""
        vars(self.state).update(vars(other.state))
        del self.checkpoints[self._count_checkpoints(other.state.head) :]
        for state in other.checkpoints:
            if state.head >= self._next_checkpoint:
                self._add_checkpoint(state)
        self.view = other.view

    def jump(self, state: State) -> None:
        """Continue from a saved state of this log. The view is discarded, and rendered again when it is needed."""
        vars(self.state).update(vars(state.copy()))
        self.view = None
        if state.head >= self._next_checkpoint:
            self._add_checkpoint(state)
        self._start = max(self._start, state.head)

    def find_checkpoint(self, head: int) -> State | None:
        """Return the latest checkpoint of at most `head` events; None if there is none."""
        count = self._count_checkpoints(head)
        return self.checkpoints[count - 1] if count else None

    def find_checkpoint_before_turn(self, turns: int) -> State | None:
        """Return the latest checkpoint at which at most `turns` turns had begun; None if there is none."""
        count = bisect_right(self.checkpoints, turns, key=lambda state: state.turns)
        return self.checkpoints[count - 1] if count else None

    def copy(self) -> Fold:
        """Return an independent copy."""
        new = Fold(self.state.copy(), None if self.view is None else self.view.copy())
        new.checkpoints, new._start = list(self.checkpoints), self._start
        return new

    @property
    def _next_checkpoint(self) -> int:
        """How many events must be folded before the next checkpoint."""
        latest = self.checkpoints[-1].head if self.checkpoints else self._start
        return (latest // STEP + 1) * STEP

    def _count_checkpoints(self, head: int) -> int:
        """Return how many checkpoints have at most `head` events."""
        return bisect_right(self.checkpoints, head, key=lambda state: state.head)

    def _add_checkpoint(self, state: State) -> None:
        """Add a checkpoint. When there are too many, every second one of the older ones is dropped."""
        self.checkpoints.append(state)
        if len(self.checkpoints) > _MAX_CHECKPOINTS:
            del self.checkpoints[: _MAX_CHECKPOINTS - 1 : 2]


def is_savable(state: State) -> bool:
    """Whether a state may be saved. A state with results of calls may not, because results may be large."""
    return all(call.outcome is None for call in state.calls.values())


class YieldingDecoder:
    """Decodes events one at a time and yields to the event loop every few milliseconds."""

    def __init__(self) -> None:
        self._since = monotonic()
        self._events = 0
        self._bytes = 0

    async def decode(self, stored: StoredEvent) -> Event:
        """Return the typed event.

        Raises:
            CorruptLog: The payload does not match its kind.
        """
        size = len(stored.raw)
        self._events, self._bytes = self._events + 1, self._bytes + size
        if self._events > CLOCK_EVENTS or self._bytes > CLOCK_BYTES:
            self._events, self._bytes = 1, size
            if monotonic() - self._since >= BLOCKING_SECONDS:
                await asyncio.sleep(0)
                self._since = monotonic()
        if size > CLOCK_BYTES:
            return await asyncio.to_thread(lambda: stored.event)
        return stored.event


def inherit_changed_rules(digests: Collection[str]) -> list[Event]:
    """Return the event that marks rule files written by another conversation's tools as changed in a new one.

    Args:
        digests: sha256 of each file, hexadecimal, from the other conversation's latest state, because the new one reads
            the files as they are now. If empty, no event is returned.
    """
    return [RulesChanged(paths=(), hashes=tuple(sorted(digests)))] if digests else []


_Check: TypeAlias = Callable[[Any], bool]
_STATUSES: Final = frozenset(get_args(Status))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_texts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _is_objects(value: Any) -> bool:
    return _is_list(value) and all(map(_is_object, value))


def _is_text_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, cast("JsonObject", value).values()))


def _is_agent(value: Any) -> bool:
    agent = _read_object(value)
    return agent is not None and _is_text(agent.get("name")) and _is_text_or_null(agent.get("model"))


def _are_limits(value: Any) -> bool:
    return _parses_as_limits(json.dumps(value, sort_keys=True))


@lru_cache(maxsize=64)  # each fold of a log meets the same few limits
def _parses_as_limits(text: str) -> bool:
    try:
        limits_from_json(json.loads(text))
    except InvalidInput:
        return False
    return True


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _are_waiting(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_waiting, cast("JsonObject", value).values()))


def _is_waiting(value: Any) -> bool:
    call = _read_object(value)
    if call is None:
        return False
    request = {} if call.get("request") is None else _read_object(call["request"])
    return (
        request is not None
        and _is_text_or_null(call.get("risk"))
        and _is_text_or_null(request.get("question"))
        and (request.get("choices") is None or _is_list(request["choices"]))
    )


def _are_edits(value: Any) -> bool:
    edits = _read_object(value)
    return edits is not None and all(map(_is_edit, edits.values()))


def _is_edit(value: Any) -> bool:
    edit = _read_object(value)
    return edit is not None and _is_object(edit.get("after")) and "by" in edit


def _read_object(value: Any) -> JsonObject | None:
    return cast("JsonObject", value) if isinstance(value, dict) else None


_FORMS: Final[Mapping[str, _Check]] = {
    "status": lambda value: isinstance(value, str) and value in _STATUSES,
    "waiting": _are_waiting,
    "approved": _is_texts,
    "edited": _are_edits,
    "policies": _is_object,
    "recorded": _is_object,
    "spent": _or_null(_is_object),
    "title": _is_text_or_null,
    "tags": _is_text_by_name,
    "workspace": _is_text,
    "workspace_policy": _is_text,
    "agent": _is_agent,
    "instructions": _is_text,
}
_RULES: Final[Mapping[str, _Check]] = {
    "policy": _is_object,
    "limits": _or_null(_are_limits),
    "total": _or_null(_are_limits),
    "budgets": _or_null(lambda value: isinstance(value, list | tuple | dict)),
    "hooks": _or_null(_is_objects),
    "secrets": _or_null(_is_texts),
    "sealed": _or_null(_is_text_by_name),
}
"""The form of a rule. A wrong one must not replace the one in force: the rules would be wider without it."""


def read_changes(changes: JsonObject) -> JsonObject:
    """Return the parts of a `StateChanged` that have their form, with those of unknown names. O(changes).

    An imported log may contain anything. A part of another form changes nothing: what was in force before stays in
    force, and the event stays in the log for readers. If it were an error, one event would make the whole conversation
    unreadable.
    """
    formed = _keep_formed(changes, _FORMS)
    if rules := formed.get("policies"):
        formed["policies"] = _keep_formed(rules, _RULES)
    return formed


def _keep_formed(values: JsonObject, forms: Mapping[str, _Check]) -> JsonObject:
    return {name: value for name, value in values.items() if name not in forms or forms[name](value)}
