"""The trace of an attempt: messages, tool calls, answers and usage, read from the events of its log.

Source: ADK pull request 4575 ("appear in the trace": a call counts with any result).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, cast
from uuid import UUID

from bough.conversation.log.state import NOTHING_USED, add_usage, list_calls
from bough.events.model import (
    Condensed,
    ConversationStarted,
    ErrorRaised,
    Event,
    LimitReached,
    ModelResponded,
    ScriptRan,
    SkillActivated,
    StateChanged,
    TaskEnded,
    TaskLinked,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    Usage,
    UsageAdded,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.types import Json, JsonObject

TOOL_ALIASES: Mapping[str, str] = {
    "activate_skill": "load_skill",
    "execute_skill_script": "run_skill_script",
}
"""bough's tool names by the names of other projects."""

ARGUMENT_ALIASES: Mapping[str, Mapping[str, str]] = {
    "load_skill": {"name": "skill_name"},
    "load_skill_resource": {"name": "skill_name", "file_path": "path", "resource_path": "path"},
    "run_skill_script": {"name": "skill_name", "script_name": "script_path", "file_path": "script_path"},
}
"""For each of bough's tools: its argument names by the names of other projects."""


def canonical_tool(name: str) -> str:
    """Return bough's name for a tool; a name that is not an alias is returned unchanged."""
    return TOOL_ALIASES.get(name, name)


def canonical_arguments(tool: str, arguments: Mapping[str, Json]) -> JsonObject:
    """Return arguments with aliases replaced by bough's names. If both are given, bough's name wins.

    Args:
        tool: The canonical name of the tool.
    """
    renames = ARGUMENT_ALIASES.get(tool)
    if not renames:
        return dict(arguments)
    renamed = {renames[key]: value for key, value in arguments.items() if key in renames}
    return renamed | {key: value for key, value in arguments.items() if key not in renames}


_MAX_DEPTH = 16
"""Maximum depth of sub-agents whose calls are traced."""

_INTERNAL_SENDERS = frozenset({"hook", "bough"})
"""Senders of messages that a run writes; such messages are not requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A tool call that started, or was rejected before it started.

    Attributes:
        arguments: The executed arguments; for a rejected call, those of the model.
        ended: Kind of the event that ended the call, for example `ToolReturned`; empty while the call is open.
        result: The returned value, or the reason why there is none.
        error: Description of the failure; None without a failure. A rejection is not an error.
        seq: Position of the call's first event in its log.
    """

    id: str
    tool: str
    arguments: JsonObject = field(default_factory=dict[str, Any])
    ended: str = ""
    result: Json = None
    error: str | None = None
    seconds: float | None = None
    seq: int = 0

    @property
    def has_succeeded(self) -> bool:
        """Whether the call returned a result that is not an error."""
        return self.ended == "ToolReturned" and self.error is None


@dataclass(frozen=True, kw_only=True)
class TracedScript:
    """A run of a skill's script.

    Attributes:
        call: Id of the tool call that ran the script; None if there was none.
    """

    skill: str
    script: str
    status: str
    call: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened in a conversation, or in one turn of it.

    Attributes:
        turns: One trace for each turn: a user message and the events until the next; empty for the trace of a turn.
        requests: Texts of the user messages, in order.
        calls: The calls in order of their start; calls of a sub-agent follow the call that started the sub-agent.
        answer: Text of the last response; empty if that response calls tools or is missing.
        skills: Activated skills, without those that are always active.
        scripts: Scripts that ran.
        instructions: The system instructions.
        steps: Number of model responses.
        cost_usd: Cost in dollars; None if a response that used tokens has no price.
        duration_seconds: Sum over the runs, without the time between runs.
        status: Final status of the conversation.
        errors: Failures that are not in `calls`: calls that failed validation, errors of runs, reached limits.
    """

    turns: tuple[Trace, ...] = ()
    requests: tuple[str, ...] = ()
    calls: tuple[TracedCall, ...] = ()
    answer: str = ""
    skills: tuple[str, ...] = ()
    scripts: tuple[TracedScript, ...] = ()
    instructions: str = ""
    steps: int = 0
    usage: Usage = NOTHING_USED
    cost_usd: float | None = None
    duration_seconds: float = 0.0
    status: str = "idle"
    errors: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        events: Iterable[Event | StoredEvent],
        *,
        children: Mapping[UUID, Iterable[Event | StoredEvent]] | None = None,
    ) -> Trace:
        """Return the trace of a log. Pure; one pass, O(events).

        Args:
            events: All events of the log in order.
            children: Logs of sub-agents by conversation; without them, calls of sub-agents are missing.
        """
        fold = _TraceFold(children or {}, 0)
        for position, event in enumerate(events):
            if isinstance(event, StoredEvent):
                fold.apply(event.seq, event.event)
            else:
                fold.apply(position, event)
        return fold.trace()

    @cached_property
    def calls_by_tool(self) -> Mapping[str, Sequence[TracedCall]]:
        """The calls by canonical tool name; cached."""
        calls_by_tool: dict[str, list[TracedCall]] = {}
        for call in self.calls:
            calls_by_tool.setdefault(canonical_tool(call.tool), []).append(call)
        return calls_by_tool

    @property
    def is_priced(self) -> bool:
        """Whether the cost of every response is known."""
        return self.cost_usd is not None


class _TurnBuilder:
    """Accumulates the trace of one turn."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.calls: dict[str, TracedCall] = {}
        self.child_calls: dict[str, tuple[TracedCall, ...]] = {}
        self.answer = ""
        self.skills: list[str] = []
        self.scripts: list[TracedScript] = []
        self.steps = 0
        self.usage = NOTHING_USED
        self.has_unpriced_usage = False
        self.seconds = 0.0
        self.errors: list[str] = []
        self.requested_arguments: dict[str, JsonObject] = {}

    def count_usage(self, usage: Usage) -> None:
        self.usage = add_usage(self.usage, usage)
        if usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0:
            self.has_unpriced_usage = True

    def build(self, status: str, instructions: str) -> Trace:
        """Return the trace of the turn."""
        calls: list[TracedCall] = []
        for id, call in self.calls.items():
            calls += (call, *self.child_calls.get(id, ()))
        # Sub-agents that no traced call started.
        for id, child_calls in self.child_calls.items():
            if id not in self.calls:
                calls += child_calls
        return Trace(
            requests=tuple(self.requests),
            calls=tuple(calls),
            answer=self.answer,
            skills=tuple(dict.fromkeys(self.skills)),
            scripts=tuple(self.scripts),
            instructions=instructions,
            steps=self.steps,
            usage=self.usage,
            cost_usd=None if self.has_unpriced_usage else (self.usage.cost_usd or 0.0),
            duration_seconds=self.seconds,
            status=status,
            errors=tuple(self.errors),
        )


class _TraceFold:
    """Folds the events of a log to its trace.

    Args:
        depth: Number of conversations above this one.
    """

    def __init__(self, children: Mapping[UUID, Iterable[Event | StoredEvent]], depth: int) -> None:
        self._children = children
        self._depth = depth
        self._ended_turns: list[_TurnBuilder] = []
        self._turn = _TurnBuilder()
        self._statuses: list[str] = []
        self._status = "idle"
        self._instructions = ""
        self._run_started: datetime | None = None
        self._latest_event: datetime | None = None
        self._script_errors: dict[str, str] = {}

    def apply(self, seq: int, event: Event) -> None:  # noqa: C901 - one case for each kind of event
        """Add an event to the current turn, or start the next turn.

        Args:
            seq: Position of the event in its log.
        """
        if self._run_started is not None:
            self._latest_event = event.ts
        match event:
            case ConversationStarted():
                self._instructions = event.instructions
            case UserMessage() if event.sender not in _INTERNAL_SENDERS:
                self._add_message(event)
            case ModelResponded():
                self._add_response(event)
            case Condensed() | TaskEnded() | UsageAdded() if event.usage is not None:
                self._turn.count_usage(event.usage)
            case SkillActivated() if event.trigger != "always":
                self._turn.skills.append(event.name)
            case ScriptRan():
                self._add_script(event)
            case TaskLinked() if event.conversation is not None:
                self._add_child(event.conversation, event.tool_call_id or event.task_id)
            case StateChanged():
                self._change_state(event)
            case ErrorRaised():
                self._turn.errors.append(f"{event.code}: {event.message}")
            case LimitReached():
                self._turn.errors.append(f"limit {event.limit} reached: {event.value:g} of {event.bound:g}")
            case ToolCalled():
                self._turn.calls[event.tool_call_id] = TracedCall(
                    id=event.tool_call_id, tool=event.tool, arguments=event.arguments, seq=seq
                )
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted():
                self._end_call(seq, event)
            case _:
                pass

    def trace(self) -> Trace:
        """Return the trace of the added events; no event may be added afterwards."""
        self._stop_clock()
        self._end_turn()
        turns = tuple(
            turn.build(status, self._instructions)
            for turn, status in zip(self._ended_turns, self._statuses, strict=True)
        )
        if len(turns) == 1:
            return replace(turns[0], turns=turns)
        return _merge_turns(turns, self._status, self._instructions)

    def _add_message(self, event: UserMessage) -> None:
        # A message that arrives while the agent works belongs to the current turn.
        if self._turn.steps and self._run_started is None:
            self._end_turn()
            self._turn = _TurnBuilder()
        self._turn.requests.append(event.plain)

    def _end_turn(self) -> None:
        self._ended_turns.append(self._turn)
        self._statuses.append(self._status)

    def _add_response(self, event: ModelResponded) -> None:
        turn = self._turn
        turn.steps += 1
        turn.count_usage(event.usage)
        calls = list_calls(event)
        turn.requested_arguments = {call.id: call.parsed_arguments for call in calls}
        texts = [part["content"] for part in event.response.get("parts", []) if part.get("part_kind") == "text"]
        # Text beside tool calls is a comment; only a response without calls ends the turn.
        turn.answer = "" if calls else "".join(texts)

    def _end_call(self, seq: int, event: ToolReturned | ToolFailed | ToolRejected | ToolInterrupted) -> None:
        """Set the end of a call; a call that failed validation becomes an error of the turn."""
        id = event.tool_call_id
        call = self._turn.calls.get(id)
        if call is None:
            if isinstance(event, ToolFailed):
                self._turn.errors.append(f"{event.tool}: {event.error}")
                return
            # A rejected call never started, so its arguments come from the model's response.
            call = TracedCall(id=id, tool=event.tool, arguments=self._turn.requested_arguments.get(id, {}), seq=seq)
        elif call.ended:
            return  # only the first end of a call counts
        result, error = _read_result(event)
        self._turn.calls[id] = TracedCall(
            id=id,
            tool=call.tool,
            arguments=call.arguments,
            ended=event.kind,
            result=result,
            error=error or self._script_errors.pop(id, None),
            seconds=getattr(event, "duration_seconds", None),
            seq=call.seq,
        )

    def _add_script(self, event: ScriptRan) -> None:
        self._turn.scripts.append(
            TracedScript(skill=event.skill, script=event.script, status=event.status, call=event.tool_call_id)
        )
        if event.tool_call_id and event.status == "error":
            reason = event.error or f"exit code {event.exit_code}"
            self._script_errors[event.tool_call_id] = f"{event.skill}/{event.script}: {reason}"

    def _add_child(self, conversation: UUID, call: str) -> None:
        """Add the calls of a sub-agent's conversation after the call that started the sub-agent."""
        events = self._children.get(conversation)
        if events is None or self._depth == _MAX_DEPTH:
            return
        fold = _TraceFold(
            # Without this conversation, so that a cycle of links ends.
            {key: value for key, value in self._children.items() if key != conversation},
            self._depth + 1,
        )
        for seq, event in enumerate(events):
            fold.apply(seq, event.event if isinstance(event, StoredEvent) else event)
        child = fold.trace()
        self._turn.child_calls[call] = self._turn.child_calls.get(call, ()) + child.calls

    def _change_state(self, event: StateChanged) -> None:
        self._instructions = event.changes.get("instructions", self._instructions)
        status = event.changes.get("status")
        if status is None:
            return
        self._status = status
        self._stop_clock()
        if status == "running":
            self._run_started = self._latest_event = event.ts

    def _stop_clock(self) -> None:
        """Add the time from the start of the run to its latest event to the turn."""
        if self._run_started is not None and self._latest_event is not None:
            self._turn.seconds += max(
                0.0, (self._latest_event - self._run_started).total_seconds()
            )  # the wall clock may be set back
        self._run_started = self._latest_event = None


def _read_result(event: ToolReturned | ToolFailed | ToolRejected | ToolInterrupted) -> tuple[Json, str | None]:
    """Return (result, error) from the event that ended a call."""
    match event:
        case ToolReturned():
            return event.result, error_in(event.result)
        case ToolFailed():
            return event.error, event.error or "failed"
        case ToolRejected():
            return event.reason, None
        case ToolInterrupted():
            return event.reason, event.reason or "interrupted"


def error_in(result: Json) -> str | None:
    """Return the error that a result reports by `error_code` or the status `error`; None without an error."""
    if not isinstance(result, dict):
        return None
    fields = cast("JsonObject", result)
    code = fields.get("error_code")
    if code or str(fields.get("status", "")).lower() == "error":
        message = fields.get("error_details") or fields.get("error") or fields.get("message") or ""
        return f"{code}: {message}" if code and message else str(code or message or "status error")
    return None


def _merge_turns(turns: tuple[Trace, ...], status: str, instructions: str) -> Trace:
    """Merge the traces of turns into the trace of the conversation."""
    usage = NOTHING_USED
    for turn in turns:
        usage = add_usage(usage, turn.usage)
    is_priced = all(turn.is_priced for turn in turns)
    return Trace(
        turns=turns,
        requests=tuple(text for turn in turns for text in turn.requests),
        calls=tuple(call for turn in turns for call in turn.calls),
        answer=turns[-1].answer if turns else "",
        skills=tuple(dict.fromkeys(name for turn in turns for name in turn.skills)),
        scripts=tuple(script for turn in turns for script in turn.scripts),
        instructions=instructions,
        steps=sum(turn.steps for turn in turns),
        usage=usage,
        cost_usd=(usage.cost_usd or 0.0) if is_priced else None,
        duration_seconds=sum(turn.duration_seconds for turn in turns),
        status=status,
        errors=tuple(error for turn in turns for error in turn.errors),
    )
