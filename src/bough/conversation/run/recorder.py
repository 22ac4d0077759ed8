"""The PydanticAI capability that records a run: each step before it starts, and its outcome afterwards.

Order: a response and its calls are durable before any of its tools runs. The outcome of the last call may still be in
the write buffer during the next model request, and is durable before or with the response. PydanticAI gets results in
the form that the log has, so that a resumed run sees what the live run saw.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast
from uuid import UUID

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailedError, ToolRetryError
from pydantic_ai.exceptions import ToolFailed as ToolFailureForModel
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage

from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import CallWaits, RunStopped
from bough.agents.delegation_tools import ChildFailed
from bough.agents.skills.tools import READS_SKILLS
from bough.agents.usage import UsageMeter, read_usage
from bough.agents.writes import Writes, collect_writes, read_writes
from bough.cancellation import is_cancelled
from bough.conversation.log.journal import Journal
from bough.conversation.log.listeners import Delta, DeltaKind
from bough.conversation.log.tool_result import (
    MAX_RESULT_BYTES,
    clean,
    encode_result,
    encode_with_files,
    is_small,
    limit_shown,
    shorten,
    show_result,
)
from bough.conversation.log.view import encode_response, load_result, make_outcome_part
from bough.conversation.run.keeper import INTERRUPTED_SECONDS, Keeper
from bough.conversation.run.spending import RunBudgets
from bough.conversation.run.stop import BLOCKING_SECONDS, BlockingCall, StopNote
from bough.conversation.run.waiting.deferred import ApprovedCalls, describe_wait, find_wait, pass_to_recorder, read_wait
from bough.effects import make_effect_key, use_effect_key
from bough.errors import BoughError
from bough.events.model import (
    Event,
    FinishReason,
    ModelResponded,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolOutcome,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.guard import Guard, HookKind, ToolRequest
from bough.types import JsonObject, new_id


class ResponsePieces:
    """Turns the events of a streamed response into numbered deltas, each with the tool call that it belongs to."""

    def __init__(self) -> None:
        self._response = new_id()
        self._order = 0
        self._calls: dict[int, tuple[str, str]] = {}

    def begin(self, response: UUID) -> None:
        """Start a new response. `response` is the id that its event will have."""
        self._response, self._order, self._calls = response, 0, {}

    def read(self, event: AgentStreamEvent) -> Delta | None:
        """Return the delta for an event of the stream; None if the event adds no text."""
        match event:
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                self._calls[index] = (call.tool_call_id, call.tool_name)
                return self._make_delta("tool_arguments", _format_arguments(call.args), index)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta() as delta):
                id, name = self._calls.get(index, ("", ""))
                self._calls[index] = (delta.tool_call_id or id, name + (delta.tool_name_delta or ""))
                return self._make_delta("tool_arguments", _format_arguments(delta.args_delta), index)
            case PartStartEvent(part=TextPart(content=text)):
                return self._make_delta("text", text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                return self._make_delta("text", text)
            case PartStartEvent(part=ThinkingPart(content=text)):
                return self._make_delta("thinking", text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                return self._make_delta("thinking", text or "")
            case _:
                return None

    def _make_delta(self, kind: DeltaKind, text: str, index: int | None = None) -> Delta | None:
        if not text:
            return None
        call, tool = (None, None) if index is None else self._calls[index]
        piece = Delta(
            text=text,
            kind=kind,
            response=self._response,
            order=self._order,
            tool_call_id=call or None,
            tool=tool or None,
        )
        self._order += 1
        return piece


def _format_arguments(args: Any) -> str:
    if isinstance(args, str):
        return args
    return json.dumps(args, ensure_ascii=False) if args else ""


LONG_SECONDS = 0.05
"""After a longer call, results are written before the model is asked, so that it sees messages sent in the meantime."""

RiskName = Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"]

_WAIT_EXCEPTIONS = (CallWaits, CallDeferred, ApprovalRequired)

ReviewAgain = Callable[[str], Awaitable[bool]]
"""Reviews the call with this id under the current rules. Returns whether it may start."""


class Recorder(AbstractCapability[ToolContext]):
    """Records a run in its journal, and answers calls that already have an outcome from it.

    Attributes:
        risks: The risk that the review assigned to each call, by id.
        reviewed: `Journal.controls` at the review of each call, by id. If it has changed, the review is outdated.
        deferred: Calls that did not start and have no outcome: the run stops before its next request.
        waits: Records of the calls that wait for an approval or a result, by id, until they are in the log.
        request_stop: The next request shows the prompts before this seq, and every result.
        tools: Names of the agent's tools at this step, forbidden ones included; None before the first step.
        output_tools: Names of the tools that only return the model's answer, without side effects.
        skill_readers: Names of the tools that only read the agent's skills; empty before the first step.
        budgets: Holds what each request may cost.
        received_chars: Characters of the latest response that arrived.
        idle_seconds: How long the model may send nothing in the latest request; None if unlimited.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], Guard],
        *,
        budgets: RunBudgets,
        cache_key: str = "",
        note: StopNote | None = None,
        idle_seconds: float | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """Record into `journal`.

        Args:
            guard: Returns the guard of the current rules.
            budgets: Holds what each request may cost.
            cache_key: Tells a provider which requests share a prefix; the agent's own setting takes precedence.
            note: Holds the reason if the run is being stopped.
            idle_seconds: How long the model may send nothing; the agent's own `timeout` takes precedence.
            keeper: Keeps the files of the workspace; None if they are not kept.
        """
        self._journal = journal
        self._guard = guard
        self.budgets = budgets
        self._result_chars = 0
        # Each request repeats the previous one, so caching pays. The agent's own settings take precedence.
        self._settings: dict[str, Any] = {"cache": True}
        if cache_key:
            self._settings["openai_prompt_cache_key"] = cache_key
        if idle_seconds is not None:
            self._settings["timeout"] = idle_seconds  # HTTP clients apply it to each read, so a long answer may go on
        self.idle_seconds = idle_seconds
        self.received_chars = 0
        self._streams = True
        self._stop_note = note or StopNote()
        self.keeper = keeper
        self.risks: dict[str, RiskName] = {}
        self.reviewed: dict[str, int] = {}
        self.deferred: set[str] = set()
        self.review_again: ReviewAgain | None = None
        self.waits: dict[str, JsonObject] = {}
        self.request_stop = 0
        self.tools: frozenset[str] | None = None
        self.output_tools: frozenset[str] = frozenset()
        self.skill_readers: frozenset[str] = frozenset()
        self._meter = UsageMeter()
        self._pieces = ResponsePieces()

    def configure(self, result_chars: int, *, streams: bool) -> None:
        """Set the properties of the model whose steps are recorded from now on.

        Args:
            result_chars: Maximum number of characters of a result that the model is shown.
            streams: Whether the model can stream its response.
        """
        self._result_chars, self._streams = result_chars, streams

    def begin_metering(self, usage: RunUsage) -> None:
        """Treat the usage so far as recorded. Later increases come from tools."""
        self._meter.begin(usage)

    async def prepare_output_tools(
        self, ctx: RunContext[ToolContext], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Remember which tools only return the answer."""
        self.output_tools = frozenset(definition.name for definition in tool_defs)
        return tool_defs

    async def wrap_model_request(
        self,
        ctx: RunContext[ToolContext],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Ask the model and record its response before any of its calls runs."""
        request_stop = self.request_stop
        self._journal.prefix.compare(request_context, self._journal.view.version)
        started, id = time.monotonic(), new_id()
        self._pieces.begin(id)
        settings = cast(ModelSettings, {**self._settings, **(request_context.model_settings or {})})
        request = replace(request_context, model_settings=settings or None)
        timeout = settings.get("timeout")
        self.received_chars, self.idle_seconds = 0, timeout if isinstance(timeout, int | float) else None
        if self.keeper is not None:
            self.keeper.begin(tool.metadata for tool in request_context.model_request_parameters.function_tools)
        try:
            async with self.budgets.hold_request(request, streams=self._streams):
                response = with_distinct_calls(await handler(request))
        finally:
            self._journal.end_stream()
        finish_reason, partial = read_finish(response, streamed=self._streams)
        event = ModelResponded(
            id=id,
            response=encode_response(response),
            model=response.model_name,
            usage=read_usage(response, self.budgets.prices),
            latency_seconds=round(time.monotonic() - started, 6),
            seen=request_stop,
            finish_reason=finish_reason,
            partial=partial,
        )
        self._journal.stage(event)
        return self._journal.view.latest_response() or response

    def get_wrapper_toolset(self, toolset: AbstractToolset[ToolContext]) -> AbstractToolset[ToolContext]:
        """Wrap the tools so that their calls get the approvals that the log has."""
        return ApprovedCalls(toolset, self._journal.state)

    async def prepare_tools(
        self, ctx: RunContext[ToolContext], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Leave out tools that the allow-list forbids for all arguments.

        Tools that only the active skills forbid stay in the list and are refused when called, since a changed list of
        tools would invalidate the provider's prefix cache.
        """
        self.tools = frozenset(definition.name for definition in tool_defs)
        self.skill_readers = frozenset(tool.name for tool in tool_defs if (tool.metadata or {}).get(READS_SKILLS))
        allow_list = self._guard().rules.allow_list
        return [pass_to_recorder(tool) for tool in tool_defs if allow_list.may_permit(tool.name)]

    async def wrap_tool_execute(
        self,
        ctx: RunContext[ToolContext],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Record the call, run the tool, and record the outcome. A call with a recorded outcome is not run again."""
        recorded = self._journal.state.calls.get(call.tool_call_id)
        wait = find_wait(tool_def, recorded)
        if wait is not None:
            return self._defer_call(call, args, wait)
        writes = read_writes(tool_def.metadata)
        if self.keeper is not None:
            await self.keeper.before(writes)
        if not await self._record_start(call, tool_def, args):
            recorded = self._journal.state.calls.get(call.tool_call_id)
            if recorded is not None and recorded.outcome is not None:
                return await self._show_recorded(recorded.outcome)
            self.deferred.add(call.tool_call_id)
            return None  # not shown to the model: the run stops before the next request
        started = time.monotonic()
        try:
            with collect_writes() as reported:
                outcome = await self._run_tool(call, args, handler, writes)
        except _WAIT_EXCEPTIONS as raised:
            return self._defer_call(call, args, read_wait(raised))
        tool_usage = self._meter.take(ctx.usage)
        if tool_usage is not None:
            outcome = outcome.model_copy(update={"usage": tool_usage})
        outcome = self.limit_outcome(outcome)
        # In one append, the files first: a log that has the outcome of a call also has the files after the call.
        file_events = [] if self.keeper is None else await self.keeper.after(call.tool_call_id, writes, reported)
        self._journal.stage(*file_events, outcome)
        if self._journal.state.open_calls or _is_task_tool(tool_def) or time.monotonic() - started > LONG_SECONDS:
            # Also reads the events that tasks appended, so that the next request's limits count their usage.
            await self._journal.settle()
        self._journal.stage(*await self._run_post_tool_hooks(call, args, outcome))
        return _show_outcome(outcome)

    async def _show_recorded(self, outcome: ToolOutcome) -> Any:
        """Return a result of the log, with the bytes of its files. See `_show_outcome`."""
        if isinstance(outcome, ToolReturned):
            return await load_result(self._journal.store, self._journal.cid, outcome)
        return _show_outcome(outcome)

    def _defer_call(self, call: ToolCallPart, args: dict[str, Any], wait: CallWaits) -> None:
        """Remember that a call waits. `Supervisor.before_request` records it once the parallel calls have ended."""
        id = call.tool_call_id
        recorded = self._journal.state.calls.get(id)
        arguments = _encode_arguments(args) if recorded is None else recorded.parsed_arguments
        self.waits[id] = describe_wait(call, arguments, wait, self.risks.get(id))
        self.deferred.add(id)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[ToolContext], *, requests: DeferredToolRequests
    ) -> DeferredToolResults:
        """Resolve calls that PydanticAI deferred: approve those that the log approves, and let the others wait."""
        results = DeferredToolResults()
        for call in requests.approvals:
            recorded = self._journal.state.calls.get(call.tool_call_id)
            if recorded is not None and recorded.approved:
                results.approvals[call.tool_call_id] = ToolApproved()
                continue
            self._defer_call(call, call.args_as_dict(), CallWaits("approval", {}, reason="the tool asks for it"))
            results.approvals[call.tool_call_id] = ToolDenied()  # not shown: the run stops before the next request
        for call in requests.calls:
            self._defer_call(call, call.args_as_dict(), CallWaits("external", {}))
            results.calls[call.tool_call_id] = None
        return results

    async def before_tool_validate(
        self,
        ctx: RunContext[ToolContext],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: str | dict[str, Any],
    ) -> str | dict[str, Any]:
        """Return the edited arguments of a call if a person edited them, else the model's."""
        recorded = self._journal.state.calls.get(call.tool_call_id)
        return args if recorded is None or recorded.edited is None else recorded.edited

    async def _record_start(self, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any]) -> bool:
        """Record durably that a call starts. Returns False if it may not start.

        The event is valid only under the rules of its review. If any process changed the rules, decided the call or
        requested a pause in the meantime, the call is reviewed again before it starts.
        """
        edited_call = self._journal.state.calls.get(call.tool_call_id)
        event = ToolCalled(
            tool_call_id=call.tool_call_id,
            tool=call.tool_name,
            arguments=_encode_arguments(args),
            risk=self.risks.get(call.tool_call_id),
            idempotent=bool((tool_def.metadata or {}).get("idempotent")),
            may_write=read_writes(tool_def.metadata) != "none",
            edited_by=None if edited_call is None else edited_call.edited_by,
        )

        def review_is_current() -> bool:
            recorded = self._journal.state.calls.get(call.tool_call_id)
            is_open = recorded is None or recorded.outcome is None
            return is_open and self.reviewed.get(call.tool_call_id) == self._journal.controls

        while not await self._journal.append_while(review_is_current, event):
            if self.review_again is None or not await self.review_again(call.tool_call_id):
                return False
            event = event.model_copy(update={"risk": self.risks.get(call.tool_call_id)})
        return True

    async def _run_tool(
        self,
        call: ToolCallPart,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
        writes: Writes,
    ) -> ToolReturned | ToolFailed:
        """Run the tool and return its outcome. Records the interruption if the run is cancelled."""
        started, blocking = time.monotonic(), BlockingCall()
        try:
            with use_effect_key(self._make_effect_key(call)), Agent.using_thread_executor(blocking):
                value = await handler(args)
            encode = encode_with_files
            result, files = encode(value) if is_small(value) else await asyncio.to_thread(encode, value)
        except asyncio.CancelledError as error:
            if not is_cancelled():  # the run was not cancelled: the tool awaited an asyncio task that was
                return _make_failure(call, error, started)
            # Also if the call stays open: another process repeats it, so this attempt must not go on.
            blocking.cancel()
            if self._stop_note.leaves_calls_open:
                raise
            await self._interrupt(call, blocking, writes)
            raise
        except _WAIT_EXCEPTIONS:
            raise
        except RunStopped as stopped:  # the call stays open, and the process that continues the run repeats it
            raise stopped.error from stopped
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the tool boundary: recorded and shown to the model
            return _make_failure(call, error, started)
        return ToolReturned(
            tool_call_id=call.tool_call_id,
            tool=call.tool_name,
            result=result,
            files=files,
            tasks=_list_shown_tasks(value.metadata if isinstance(value, ToolReturn) else None),
            duration_seconds=round(time.monotonic() - started, 6),
        )

    def _make_effect_key(self, call: ToolCallPart) -> str:
        # `ToolCalled` is durable by now, and so is the response: its seq, which is part of the key, is final.
        return make_effect_key(self._journal.cid, self._journal.state.response_seq, call.tool_call_id)

    async def _interrupt(self, call: ToolCallPart, blocking: BlockingCall, writes: Writes) -> None:
        """Record that a call was interrupted. A blocking function gets `BLOCKING_SECONDS` to return before that."""
        file_events: list[Event] = []
        with suppress(asyncio.CancelledError):  # a second cancellation only ends the wait: the event is still recorded
            await blocking.wait(BLOCKING_SECONDS)
            if self.keeper is not None and writes != "none":
                file_events = await self.keeper.after_lost(call.tool_call_id, seconds=INTERRUPTED_SECONDS)
        event = ToolInterrupted(
            tool_call_id=call.tool_call_id,
            tool=call.tool_name,
            reason="still running in a thread" if blocking.is_running else "interrupted",
        )
        with suppress(BoughError):  # the cancellation must reach the caller; a resumed run closes the call
            await self._journal.append(*file_events, event)

    async def _run_post_tool_hooks(self, call: ToolCallPart, args: dict[str, Any], outcome: ToolOutcome) -> list[Event]:
        """Run the hooks that follow a call, and return the events of their verdict and their feedback to the model."""
        if not self._guard().rules.hooks.has_kind(HookKind.POST_TOOL_USE):
            return []
        request = ToolRequest(
            id=call.tool_call_id,
            tool=call.tool_name,
            arguments=_encode_arguments(args),
            workspace=self._journal.state.workspace,
        )
        verdict = await self._guard().after_call(request, _read_full_content(outcome))
        objection = verdict.reason if verdict.decision == "deny" else ""
        feedback = "\n".join(filter(None, (objection, verdict.context)))
        events: list[Event] = list(verdict.events)
        if feedback:
            events.append(UserMessage.text(feedback, sender="hook"))
        return events

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether to request streamed responses."""
        return self._streams

    async def wrap_run_event_stream(
        self, ctx: RunContext[ToolContext], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Pass the stream through and publish its text."""
        async for event in stream:
            delta = self._pieces.read(event)
            if delta is not None:
                self.received_chars += len(delta.text)
                self.budgets.count_piece(delta.text)
                self._journal.stream(delta)
            yield event

    def limit_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """Return an outcome; if it is too long, with the number of its characters that the model is shown."""
        return limit_shown(outcome, self._result_chars) if isinstance(outcome, ToolReturned | ToolFailed) else outcome

    def record_toolless(self, parts: list[ToolReturnPart]) -> None:
        """Record the outcomes of calls that ran no tool: unknown names, invalid arguments, output tools."""
        for part in parts:
            call = self._journal.state.calls.get(part.tool_call_id)
            if call is None or call.outcome is not None or call.id in self.deferred:
                continue
            text, id, tool = part.model_response_str(wrap_if_error=False), part.tool_call_id, part.tool_name
            if part.outcome == "success" and tool in self.output_tools:
                self._journal.stage(ToolReturned(tool_call_id=id, tool=tool, result=text))
            elif part.outcome == "success":
                self._journal.stage(ToolRejected(tool_call_id=id, tool=tool, by="run", reason=text))
            else:
                retry = part.outcome == "retried"
                error = shorten(clean(text), MAX_RESULT_BYTES)
                failed = ToolFailed(tool_call_id=id, tool=tool, error=error, retry=retry)
                self._journal.stage(self.limit_outcome(failed))


def _make_failure(call: ToolCallPart, error: BaseException, started: float) -> ToolFailed:
    """Return the outcome of a call whose tool raised `error`."""
    match error:
        case ToolRetryError():
            part, retry = error.tool_retry, True
            text = (
                part.model_response_str(wrap_if_error=False) if isinstance(part, ToolReturnPart) else str(part.content)
            )
        case ModelRetry():
            text, retry = error.message, True
        case ToolFailedError() | ToolFailureForModel():
            text, retry = str(error), False
        case BoughError():
            text, retry = f"{error.message}; {error.hint}" if error.hint else error.message, False
        case _:
            text, retry = f"{type(error).__name__}: {error}", False
    return ToolFailed(
        tool_call_id=call.tool_call_id,
        tool=call.tool_name,
        error=shorten(clean(text), MAX_RESULT_BYTES),
        retry=retry,
        tasks=next((cause.tasks for cause in (error, error.__cause__) if isinstance(cause, ChildFailed)), ()),
        duration_seconds=round(time.monotonic() - started, 6),
    )


def _is_task_tool(tool_def: ToolDefinition) -> bool:
    """Whether a tool starts, awaits or reports tasks, whose events other processes append to this log."""
    return bool((tool_def.metadata or {}).get("tasks"))


def _list_shown_tasks(metadata: Any) -> tuple[str, ...]:
    """Return the ids of ended tasks that a result reports to the model, as its metadata lists them."""
    tasks: Any = cast("dict[str, Any]", metadata).get("tasks") if isinstance(metadata, dict) else None
    return tuple(str(id) for id in cast("list[Any]", tasks)) if isinstance(tasks, list | tuple) else ()


def _show_outcome(outcome: ToolOutcome) -> Any:
    """Return a recorded result as the model is shown it. Raises the exception that reports a failure to the model."""
    if isinstance(outcome, ToolReturned):
        return show_result(outcome)
    if isinstance(outcome, ToolFailed) and outcome.retry:
        raise ModelRetry(str(make_outcome_part(outcome).content))
    raise ToolFailureForModel(str(make_outcome_part(outcome).content))


def _read_full_content(outcome: ToolOutcome) -> Any:
    """Return the content of an outcome for hooks, without the shortening for the model."""
    if isinstance(outcome, ToolReturned | ToolFailed):
        outcome = outcome.model_copy(update={"shown": None})
    return make_outcome_part(outcome).content


def _encode_arguments(args: dict[str, Any]) -> JsonObject:
    value: Any = encode_result(args)
    return value if isinstance(value, dict) else {"_": value}  # pyright: ignore[reportUnknownVariableType]


def with_distinct_calls(response: ModelResponse) -> ModelResponse:
    """Return the response with a unique, non-empty id for every tool call; unchanged if it has them already.

    Some models leave ids empty or repeat them. The log identifies calls by id, so a second call with the same id would
    be answered with the result of the first.
    """
    ids = [call.tool_call_id for call in response.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return response
    used_ids = set(ids)
    previous_ids: set[str] = set()
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart) and (not part.tool_call_id or part.tool_call_id in previous_ids):
            part = replace(part, tool_call_id=_make_unused_id(part.tool_call_id or "call", used_ids))
            used_ids.add(part.tool_call_id)
        if isinstance(part, ToolCallPart):
            previous_ids.add(part.tool_call_id)
        parts.append(part)
    return replace(response, parts=parts)


def _make_unused_id(prefix: str, used_ids: set[str]) -> str:
    """Return `prefix` with the lowest number from 2 on that makes an unused id."""
    number = 2
    while f"{prefix}-{number}" in used_ids:
        number += 1
    return f"{prefix}-{number}"


_ALWAYS_REPORT_REASON = frozenset(
    {
        *("openai", "azure", "anthropic", "google", "google-gla", "google-vertex", "google-cloud", "mistral"),
        *("mistral_ai", "groq", "cohere", "bedrock", "openrouter", "deepseek"),
    }
)
"""Values of `ModelResponse.provider_name` for providers that always report why a response ended."""

_REASON_MAY_BE_DEFAULT = frozenset({"openai", "azure"})
"""Providers for which PydanticAI sets `stop` if the server sent no reason; the server's reason is in the details."""


def read_finish(response: ModelResponse, *, streamed: bool) -> tuple[FinishReason, bool]:
    """Return why a response ended, and whether its text is cut off.

    A stream without a reason is cut off if its provider always reports one. Servers that only use OpenAI's format may
    report none; they send the usage after the complete answer, so a stream with usage is complete.
    """
    reason: FinishReason = response.finish_reason or "none"
    if streamed and reason == "stop" and response.provider_name in _REASON_MAY_BE_DEFAULT:
        reason = "stop" if "finish_reason" in (response.provider_details or {}) else "none"
    lacks_reason = streamed and reason == "none" and response.provider_name in _ALWAYS_REPORT_REASON
    if lacks_reason and response.provider_name in _REASON_MAY_BE_DEFAULT and response.usage.has_values():
        lacks_reason = False
    is_cut_off = reason in ("length", "content_filter", "error") or response.state != "complete"
    return reason, is_cut_off or lacks_reason
