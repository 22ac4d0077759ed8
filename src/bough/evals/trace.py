"""The trace of an attempt: messages, tool calls, answers and usage, read from the events of its log.

Source: ADK pull request 4575 ("appear in the trace": a call counts whatever its result was).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, cast
from uuid import UUID

from bough.conversation.log.state import NOTHING_USED, add_usage, calls_of
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
"""Other projects' tool names to bough's."""

ARGUMENT_ALIASES: Mapping[str, Mapping[str, str]] = {
    "load_skill": {"name": "skill_name"},
    "load_skill_resource": {"name": "skill_name", "file_path": "path", "resource_path": "path"},
    "run_skill_script": {"name": "skill_name", "script_name": "script_path", "file_path": "script_path"},
}
"""bough's tool names to (other projects' argument names to bough's)."""


def canonical_tool(name: str) -> str:
    """Return bough's name for a tool."""
    return TOOL_ALIASES.get(name, name)


def canonical_arguments(tool: str, arguments: Mapping[str, Json]) -> JsonObject:
    """Return arguments under bough's names; an argument with bough's name wins over an alias.

    Args:
        tool: Its canonical name.
    """
    renames = ARGUMENT_ALIASES.get(tool)
    if not renames:
        return dict(arguments)
    renamed = {renames[key]: value for key, value in arguments.items() if key in renames}
    return renamed | {key: value for key, value in arguments.items() if key not in renames}


_MAX_DEPTH = 16

_INTERNAL_SENDERS = frozenset({"hook", "bough"})
"""Senders of messages that a run writes itself, which are not requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A tool call that started, or was rejected before.

    Attributes:
        arguments: The executed arguments.
        ended: Kind of the event that ended it, for example `ToolReturned`; empty while it is open.
        result: The returned value, or the reason why there is none.
        error: Description of the failure; None without one. A rejection is not an error.
        seq: Position of its first event in its log.
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
        """Whether it returned a result that is not an error."""
        return self.ended == "ToolReturned" and self.error is None


@dataclass(frozen=True, kw_only=True)
class TracedScript:
    """A script of a skill that ran."""

    skill: str
    script: str
    status: str
    call: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened in a conversation, or in one turn of it.

    Attributes:
        turns: One trace for each user message and what followed; empty for a trace that is a turn itself.
        requests: Texts of the user messages, in order.
        calls: Ordered by when they started; calls of sub-agents follow the call that started the sub-agent.
        answer: Text of the last response that ends its turn; empty if missing.
        skills: Skills whose text entered the conversation, without those that always do.
        scripts: Scripts that ran.
        instructions: The system instructions.
        steps: Number of model responses.
        cost_usd: None if a response that used tokens has no price.
        duration_seconds: Summed over runs; without waiting between runs.
        status: Final status of the conversation.
        errors: Other failures: calls that failed validation, runs that ended in an error, limits.
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
        """Return the trace of a log. One pass, O(events); pure.

        Args:
            events: Ordered by seq, from the first one on.
            children: Logs of sub-agents by conversation; without them only the conversation's own calls count.
        """
        folding = _TraceFold(children or {}, 0)
        for place, event in enumerate(events):
            if isinstance(event, StoredEvent):
                folding.apply(event.seq, event.event)
            else:
                folding.apply(place, event)
        return folding.trace()

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
        self.children: dict[str, tuple[TracedCall, ...]] = {}
        self.answer = ""
        self.skills: list[str] = []
        self.scripts: list[TracedScript] = []
        self.steps = 0
        self.usage = NOTHING_USED
        self.unpriced = False
        self.seconds = 0.0
        self.errors: list[str] = []
        self.requested_arguments: dict[str, JsonObject] = {}

    def use(self, usage: Usage) -> None:
        self.usage = add_usage(self.usage, usage)
        self.unpriced = self.unpriced or (usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0)

    def trace(self, status: str, instructions: str) -> Trace:
        calls = [traced for id, call in self.calls.items() for traced in (call, *self.children.get(id, ()))]
        calls += [traced for id, child_calls in self.children.items() if id not in self.calls for traced in child_calls]
        return Trace(
            requests=tuple(self.requests),
            calls=tuple(calls),
            answer=self.answer,
            skills=tuple(dict.fromkeys(self.skills)),
            scripts=tuple(self.scripts),
            instructions=instructions,
            steps=self.steps,
            usage=self.usage,
            cost_usd=None if self.unpriced else self.usage.cost_usd or 0.0,
            duration_seconds=self.seconds,
            status=status,
            errors=tuple(self.errors),
        )


class _TraceFold:
    def __init__(self, children: Mapping[UUID, Iterable[Event | StoredEvent]], depth: int) -> None:
        self._children = children
        self._depth = depth
        self._parts: list[_TurnBuilder] = []
        self._part = _TurnBuilder()
        self._statuses: list[str] = []
        self._status = "idle"
        self._instructions = ""
        self._began: datetime | None = None
        self._latest: datetime | None = None
        self._script_errors: dict[str, str] = {}

    def apply(self, seq: int, event: Event) -> None:  # noqa: C901 - one case a kind of event
        if self._began is not None:
            self._latest = event.ts
        match event:
            case ConversationStarted():
                self._instructions = event.instructions
            case UserMessage() if event.sender not in _INTERNAL_SENDERS:
                self._add_message(event)
            case ModelResponded():
                self._respond(event)
            case Condensed() | TaskEnded() | UsageAdded() if event.usage is not None:
                self._part.use(event.usage)
            case SkillActivated() if event.trigger != "always":
                self._part.skills.append(event.name)
            case ScriptRan():
                self._run_script(event)
            case TaskLinked() if event.conversation is not None:
                self._add_child(event.conversation, event.tool_call_id or event.task_id)
            case StateChanged():
                self._change(event)
            case ErrorRaised():
                self._part.errors.append(f"{event.code}: {event.message}")
            case LimitReached():
                self._part.errors.append(f"limit {event.limit} reached: {event.value:g} of {event.bound:g}")
            case ToolCalled():
                self._part.calls[event.tool_call_id] = TracedCall(
                    id=event.tool_call_id, tool=event.tool, arguments=event.arguments, seq=seq
                )
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted():
                self._end_call(seq, event)
            case _:
                pass

    def trace(self) -> Trace:
        self._stop_clock()
        self._close_part()
        turns = tuple(
            part.trace(status, self._instructions) for part, status in zip(self._parts, self._statuses, strict=True)
        )
        if len(turns) == 1:
            return _with_turns(turns[0], turns)
        return _add_turns(turns, self._status, self._instructions)

    def _add_message(self, event: UserMessage) -> None:
        # A message that arrives while the agent works belongs to the current turn.
        if self._part.steps and self._began is None:
            self._close_part()
            self._part = _TurnBuilder()
        self._part.requests.append(event.plain)

    def _close_part(self) -> None:
        self._parts.append(self._part)
        self._statuses.append(self._status)

    def _respond(self, event: ModelResponded) -> None:
        part = self._part
        part.steps += 1
        part.use(event.usage)
        calls = calls_of(event)
        part.requested_arguments = {call.id: call.given for call in calls}
        texts = [p["content"] for p in event.response.get("parts", []) if p.get("part_kind") == "text"]
        # Text next to tool calls comments on them; only a response without calls ends the turn.
        part.answer = "" if calls else "".join(texts)

    def _end_call(self, seq: int, event: ToolReturned | ToolFailed | ToolRejected | ToolInterrupted) -> None:
        id = event.tool_call_id
        call = self._part.calls.get(id)
        if call is None:
            if isinstance(event, ToolFailed):
                self._part.errors.append(f"{event.tool}: {event.error}")
                return
            # A rejected call never started, so its arguments come from the model's response.
            call = TracedCall(id=id, tool=event.tool, arguments=self._part.requested_arguments.get(id, {}), seq=seq)
        elif call.ended:
            return  # only the first end of a call counts
        result, error = _read_result(event)
        self._part.calls[id] = TracedCall(
            id=id,
            tool=call.tool,
            arguments=call.arguments,
            ended=event.kind,
            result=result,
            error=error or self._script_errors.pop(id, None),
            seconds=getattr(event, "duration_seconds", None),
            seq=call.seq,
        )

    def _run_script(self, event: ScriptRan) -> None:
        self._part.scripts.append(
            TracedScript(skill=event.skill, script=event.script, status=event.status, call=event.tool_call_id)
        )
        if event.tool_call_id and event.status == "error":
            why = event.error or f"exit code {event.exit_code}"
            self._script_errors[event.tool_call_id] = f"{event.skill}/{event.script}: {why}"

    def _add_child(self, conversation: UUID, call: str) -> None:
        events = self._children.get(conversation)
        if events is None or self._depth == _MAX_DEPTH:
            return
        folding = _TraceFold(
            # Without this conversation, so that links that form a cycle end.
            {key: value for key, value in self._children.items() if key != conversation},
            self._depth + 1,
        )
        for seq, event in enumerate(events):
            folding.apply(seq, event.event if isinstance(event, StoredEvent) else event)
        child = folding.trace()
        self._part.children[call] = self._part.children.get(call, ()) + child.calls

    def _change(self, event: StateChanged) -> None:
        self._instructions = event.changes.get("instructions", self._instructions)
        status = event.changes.get("status")
        if status is None:
            return
        self._status = status
        if status == "running":
            self._stop_clock()
            self._began = self._latest = event.ts
        else:
            self._stop_clock()

    def _stop_clock(self) -> None:
        if self._began is not None and self._latest is not None:
            self._part.seconds += max(0.0, (self._latest - self._began).total_seconds())  # the wall clock may go back
        self._began = self._latest = None


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
    """Return the error that a result reports by `error_code` or the status `error`; None if it reports none."""
    if not isinstance(result, dict):
        return None
    fields = cast("JsonObject", result)
    code = fields.get("error_code")
    if code or str(fields.get("status", "")).lower() == "error":
        message = fields.get("error_details") or fields.get("error") or fields.get("message") or ""
        return f"{code}: {message}" if code and message else str(code or message or "status error")
    return None


def _with_turns(trace: Trace, turns: tuple[Trace, ...]) -> Trace:
    return replace(trace, turns=turns)


def _add_turns(turns: tuple[Trace, ...], status: str, instructions: str) -> Trace:
    """Merge the traces of turns to that of the conversation."""
    usage = NOTHING_USED
    for turn in turns:
        usage = add_usage(usage, turn.usage)
    priced = all(turn.is_priced for turn in turns)
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
        cost_usd=usage.cost_usd or 0.0 if priced else None,
        duration_seconds=sum(turn.duration_seconds for turn in turns),
        status=status,
        errors=tuple(error for turn in turns for error in turn.errors),
    )
