"""The events of an AG-UI run, made from the steps of a conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Final

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from bough.conversation.log.state import NOTHING_USED, add_usage
from bough.errors import BoughError
from bough.events.model import Usage
from bough.server.access import Access
from bough.server.agui.input import APPROVAL_SCHEMA, as_object
from bough.server.agui.threads import STATE_KEY, ThreadRun
from bough.server.bodies.info import summarize
from bough.server.conversations.following import follow_run
from bough.server.live.steps import (
    AskedStep,
    CallStep,
    EndedStep,
    FailedStep,
    LimitStep,
    RespondedStep,
    ResultStep,
    Step,
    TextStep,
    ThinkingStep,
)
from bough.types import Json, JsonObject

PROTOCOL_VERSION: Final = "1.0"

_ENDS: Final = frozenset({"finished", "paused", "stuck", "waiting_for_confirmation", "error"})
_STUCK = FailedStep("stuck", "the agent repeats itself", "send a message with what to do next")


class ThreadEvents:
    """Turns the steps of one run into events. Each message that begins also ends, and before the run does.

    Attributes:
        text: The text of the latest response.
    """

    def __init__(self) -> None:
        self.text = ""
        self._message: str | None = None  # the response whose text has begun
        self._reasoning: str | None = None  # the response whose thinking has begun
        self._usage: dict[str, Usage] = {}
        self._waiting: Mapping[str, JsonObject] = {}
        self._failure: FailedStep | None = None
        self._limit: str | None = None

    @property
    def usage(self) -> list[TokenUsage] | None:
        """What the run used, by model; None before the first response."""
        return [_describe_usage(model, usage) for model, usage in self._usage.items()] or None

    def read(self, step: Step) -> Iterator[BaseEvent]:
        """Yield the events of a step."""
        match step:
            case TextStep(response=response, text=text):
                yield from self._begin_text(response)
                self.text += text
                yield TextMessageContentEvent(message_id=response, delta=text)
            case ThinkingStep(response=response, text=text):
                yield from self._begin_reasoning(response)
                yield ReasoningMessageContentEvent(message_id=_name_reasoning(response), delta=text)
            case CallStep(is_running=False):
                yield from self.close()
                parent = step.response or None
                yield ToolCallStartEvent(tool_call_id=step.id, tool_call_name=step.tool, parent_message_id=parent)
                yield ToolCallArgsEvent(tool_call_id=step.id, delta=json.dumps(step.arguments, ensure_ascii=False))
                yield ToolCallEndEvent(tool_call_id=step.id)
            case ResultStep(call=call, value=value):
                metadata = None if step.outcome == "returned" else {STATE_KEY: {"outcome": step.outcome}}
                # The id of a message: a call has one result.
                yield ToolCallResultEvent(
                    message_id=f"{call}-result", tool_call_id=call, content=_show(value), role="tool", metadata=metadata
                )
            case RespondedStep(model=model, usage=usage):
                yield from self.close()
                self._usage[model] = add_usage(self._usage.get(model, NOTHING_USED), usage)
            case _:
                self._note(step)

    def close(self) -> Iterator[BaseEvent]:
        """Yield the ends of the messages that have begun."""
        if self._reasoning is not None:
            id, self._reasoning = _name_reasoning(self._reasoning), None
            yield ReasoningMessageEndEvent(message_id=id)
            yield ReasoningEndEvent(message_id=id)
        if self._message is not None:
            id, self._message = self._message, None
            yield TextMessageEndEvent(message_id=id)

    def finish(self, run: RunAgentInput, status: str) -> BaseEvent:
        """Return the last event of a run that ended with a status."""
        failure = {"error": self._failure, "stuck": _STUCK}.get(status)
        if failure is not None:
            return make_error(BoughError(failure.message, code=failure.code, hint=failure.hint), self.usage)
        metadata = None if self._limit is None else {STATE_KEY: {"limit": self._limit}}
        return RunFinishedEvent(
            thread_id=run.thread_id,
            run_id=run.run_id,
            outcome=self._make_outcome(status),
            result=self.text if status == "finished" else None,
            usage=self.usage,
            metadata=metadata,
        )

    def _make_outcome(self, status: str) -> RunFinishedOutcome:
        if status == "waiting_for_confirmation" and self._waiting:
            interrupts = [_describe_interrupt(call, request) for call, request in self._waiting.items()]
            return RunFinishedInterruptOutcome(interrupts=interrupts)
        return RunFinishedSuccessOutcome() if status == "finished" else RunFinishedCancelledOutcome()

    def _note(self, step: Step) -> None:
        match step:
            case AskedStep(calls=calls):
                self._waiting = calls
            case LimitStep(limit=limit):
                self._limit = limit
            case FailedStep():
                self._failure = step
            case _:
                pass

    def _begin_text(self, response: str) -> Iterator[BaseEvent]:
        if self._message == response:
            return
        yield from self.close()
        self._message, self.text = response, ""
        yield TextMessageStartEvent(message_id=response, role="assistant")

    def _begin_reasoning(self, response: str) -> Iterator[BaseEvent]:
        if self._reasoning == response:
            return
        yield from self.close()
        self._reasoning, id = response, _name_reasoning(response)
        yield ReasoningStartEvent(message_id=id)
        yield ReasoningMessageStartEvent(message_id=id, role="reasoning")


async def stream_events(access: Access, run: ThreadRun) -> AsyncGenerator[BaseEvent]:
    """Yield the events of a run until it ends. An error is the last one."""
    events, input = ThreadEvents(), run.input
    yield RunStartedEvent(thread_id=input.thread_id, run_id=input.run_id, protocol_version=PROTOCOL_VERSION)
    try:
        yield await _describe_state(access, run)
        async with follow_run(access, run.conversation, run.after, kind="agui") as steps:
            async for step, _ in steps:
                for event in events.read(step):
                    yield event
                if isinstance(step, EndedStep) and step.status in _ENDS:
                    # All messages must have ended before the run does, also those of a response that was cut.
                    for event in events.close():
                        yield event
                    yield await _describe_state(access, run)
                    yield events.finish(input, step.status)
                    return
    except BoughError as error:
        for event in events.close():
            yield event
        yield make_error(error, events.usage)


def make_error(error: BoughError, usage: list[TokenUsage] | None = None) -> RunErrorEvent:
    """Return the event of a run that failed."""
    hint = f" ({error.hint})" if error.hint else ""
    return RunErrorEvent(message=f"{error.message}{hint}", code=error.code, usage=usage)


async def _describe_state(access: Access, run: ThreadRun) -> StateSnapshotEvent:
    """Return the state of a thread: what the front end sent, and our part."""
    record = await access.store.get(run.conversation)
    state = await access.services.states.state_of(record)
    summary = summarize(record, running=False)
    ours = {name: summary[name] for name in ("title", "lineage")} | {
        "conversation": str(record.id),
        "head": record.head,
        "usage": state.own.model_dump(mode="json"),
        "inherited": state.inherited.model_dump(mode="json"),
    }
    return StateSnapshotEvent(snapshot=as_object(run.input.state) | {STATE_KEY: ours})


def _describe_interrupt(call: str, waiting: JsonObject) -> Interrupt:
    kind = str(waiting.get("kind") or "approval")
    metadata = {
        name: waiting[name] for name in ("tool", "arguments", "risk", "reason") if waiting.get(name) is not None
    }
    if kind == "approval":
        arguments = json.dumps(waiting.get("arguments") or {}, ensure_ascii=False)
        message, schema = f"Allow {waiting.get('tool')} {arguments}?", APPROVAL_SCHEMA
    else:
        fields = as_object(waiting.get("request"))
        message = str(fields.get("question") or f"{waiting.get('tool')} waits for a result")
        choices = fields.get("choices")
        answer: JsonObject = {"type": "string", "enum": choices} if choices else {}
        schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    return Interrupt(
        id=call,
        reason="tool_call" if kind == "approval" else kind,
        message=message,
        tool_call_id=call,
        response_schema=schema,
        metadata={STATE_KEY: metadata | {"kind": kind}},
    )


def _describe_usage(model: str, usage: Usage) -> TokenUsage:
    return TokenUsage(
        model=model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
    )


def _name_reasoning(response: str) -> str:
    return f"{response}-reasoning"


def _show(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
