"""The loop of one run: step after step until the model has answered everything, or a check stops the run.

Every request is built from the view of the log, never from PydanticAI's own history, so a resumed run needs no special
case. Each step appends at least once, and an append also reads what other processes have appended (messages, requests
to pause). The next step therefore sees it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelRequest, RetryFeedbackPart, ToolReturnPart
from pydantic_ai.run import AgentRun
from pydantic_ai.usage import UsageLimits
from pydantic_graph import End

from bough.agents.context import ToolContext
from bough.agents.models.failure import NotOpenAIFormat, find_address, is_malformed, model_error
from bough.agents.output_type import describe_output_type
from bough.conversation.log.journal import Journal
from bough.conversation.log.tool_result import encode_result
from bough.conversation.log.view import fill_files
from bough.conversation.run.reconcile import close_lost_call, find_reconcilers
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.retry import Retries
from bough.conversation.run.spending import BudgetUsedUp
from bough.conversation.run.tracing import instrumentation
from bough.effects import make_effect_key
from bough.errors import BoughError, ModelError
from bough.events.model import OutputGiven, UserMessage
from bough.events.record import Status

MAX_EMPTY_RESPONSES = 3
"""After this many unusable responses in a row, the run ends in an error."""

REMINDER = "bough"
"""Sender of the messages that the runtime itself writes to the model."""

NodeListener: TypeAlias = Callable[[AgentRun[ToolContext, Any], Any], Awaitable[None]]
"""Called with PydanticAI's run and its node: the prompt, a model request, tool calls, the end."""

Stop = Status | None
"""The status with which a run stops; None to continue."""


class Checks(Protocol):
    """Checks between the parts of a step. Each may append events."""

    async def before_request(self) -> Stop:
        """Return the status with which the run stops before its next model request; None to send the request."""
        ...

    async def before_tools(self) -> Stop:
        """Return the status with which the run stops before its open calls; None to run them.

        Calls that may not run have an outcome afterwards.
        """
        ...

    async def at_end(self) -> None:
        """Check a run that has no work left. If this appends a message, the run continues with that message."""
        ...


class Loop:
    """Drives one run of an agent over a journal.

    Attributes:
        steps: Model requests so far.
        data: The latest value of the output type that this run returned; None if it has not returned one.
    """

    def __init__(
        self,
        journal: Journal,
        recorder: Recorder,
        checks: Checks,
        finish: Callable[[], Awaitable[bool]],
        *,
        retries: Retries,
        on_node: NodeListener | None = None,
    ) -> None:
        """Create the loop of a run.

        Args:
            checks: Called between the parts of a step.
            finish: Records that the run is finished, unless there is new work. Returns whether it did.
            on_node: Awaited for every node of PydanticAI's graph, before that node runs.
            retries: Selects the model, and decides whether a failed request is repeated.
        """
        self._retries = retries
        self._output_type: Any = str
        self._view_version = -1
        self._on_node = on_node
        self._is_current: Callable[[], Awaitable[bool]] | None = None
        self._journal = journal
        self._recorder = recorder
        self._checks = checks
        self._finish = finish
        self._unusable_count = 0
        self.steps = 0
        self.data: Any = None

    async def run(
        self,
        agent: AbstractAgent[ToolContext, Any],
        deps: ToolContext,
        output_type: Any = str,
        *,
        is_current: Callable[[], Awaitable[bool]],
    ) -> Stop:
        """Run until no work is left or a check stops the run, and return the final status.

        Returns None if the agent of the conversation was replaced; the caller continues with the new one.

        Args:
            output_type: The type of the agent's answer.
            is_current: Called at each step. Returns whether `agent` is still the conversation's agent.

        Raises:
            ModelError: The model failed, or gave several unusable responses in a row.
            StoreError: An event could not be written.
        """
        self._is_current, self._output_type, self._view_version = is_current, output_type, -1
        await self._close_lost_calls(agent)
        while True:
            while self._journal.state.has_work:
                if not await is_current():
                    return None
                if not self._journal.state.open_calls and (stop := await self._checks.before_request()):
                    return stop
                if stop := await self._run_agent_or_recover(agent, deps):
                    return stop
            if self._is_cut_off:
                return "paused"
            await self._checks.at_end()
            if await self._finish():
                return "finished"

    @property
    def _is_cut_off(self) -> bool:
        """Whether the answer is cut off, and the run has no value of the output type either."""
        return self._journal.state.partial and self.data is None

    async def _close_lost_calls(self, agent: AbstractAgent[ToolContext, Any]) -> None:
        """Record the outcomes of calls that had started when an earlier run died. Their tools may know the results.

        Idempotent calls, and calls whose effect did not happen, stay open and run again.
        """
        state = self._journal.state
        lost_calls = [call for call in state.open_calls if call.started and not call.idempotent]
        if not lost_calls:
            return
        reconcilers = find_reconcilers(agent)
        for call in lost_calls:
            key = make_effect_key(self._journal.cid, state.response_seq, call.id)
            # Not for a call from before a fork or import: the arguments may come from whoever made the bundle.
            reconcile = None if call.carried else reconcilers.get(call.tool)
            outcome = await close_lost_call(call, key, reconcile)
            if outcome is not None:
                keeper = self._recorder.keeper
                file_events = [] if keeper is None else await keeper.after_lost(call.id)
                self._journal.stage(*file_events, outcome)

    async def _run_agent_or_recover(self, agent: AbstractAgent[ToolContext, Any], deps: ToolContext) -> Stop:
        """Run the agent; after a failed request, wait or change the model. Returns the status if the run stops."""
        try:
            return await self._run_agent(agent, deps)
        except BudgetUsedUp:
            self.steps -= 1  # the request of this step was not sent
            return "paused"
        except ModelError as error:
            state = self._journal.state
            if state.partial and not state.has_work:
                return None  # the response was cut off before any text: a result, not a failure
            return None if await self._retries.recover(error) else "paused"

    async def _run_agent(self, agent: AbstractAgent[ToolContext, Any], deps: ToolContext) -> Stop:
        """Run PydanticAI on the messages of the log until it has its answer.

        Returns earlier if a check stops the run, the view was condensed, or the conversation's agent was replaced.
        """
        await self._settle_prompts()
        view = await self._journal.render()
        self._view_version = view.version
        messages = await self._journal.messages()
        try:
            async with agent.iter(
                message_history=messages,
                deps=deps,
                model=self._retries.model,
                capabilities=[self._recorder, *instrumentation()],
                conversation_id=str(self._journal.cid),
                usage_limits=UsageLimits(request_limit=None),
                infer_name=False,
            ) as run:
                return await self._drive(run)
        except (AgentRunError, UserError, NotOpenAIFormat) as error:
            raise model_error(
                error,
                model=self._retries.model,
                received_chars=self._recorder.received_chars,
                idle_seconds=self._recorder.idle_seconds,
            ) from error

    async def _drive(self, run: AgentRun[ToolContext, Any]) -> Stop:
        """Run the nodes of PydanticAI's graph with the checks between them. See `_run_agent`."""
        node: Any = run.next_node
        has_run_tools = False
        while not isinstance(node, End):
            if Agent.is_call_tools_node(node):
                if node.model_response.tool_calls and (stop := await self._checks.before_tools()):
                    return stop
                has_run_tools = True
                self._recorder.begin_metering(run.usage)
            elif Agent.is_model_request_node(node):
                if has_run_tools:
                    self._record_feedback(node.request)
                    if self._is_current is not None and not await self._is_current():
                        return None  # the agent was changed: start again from the log
                    if stop := await self._checks.before_request():
                        return stop
                    await self._settle_prompts()
                    if self._journal.view.version != self._view_version:
                        return None  # the view was condensed: start again from the log
                    node.request = self._make_next_request()
                    await fill_files(self._journal.store, self._journal.cid, [node.request])
                self.steps += 1
            await self._call_listener(run, node)
            node = await self._run_node(run, node)
        await self._call_listener(run, node)
        if self._output_type is not str:
            self._record_output(run)
        return None

    async def _call_listener(self, run: AgentRun[ToolContext, Any], node: Any) -> None:
        if self._on_node is not None:
            await self._on_node(run, node)

    def _record_output(self, run: AgentRun[ToolContext, Any]) -> None:
        """Record the value that the run returned, and the outcomes of the output tools that returned it."""
        if run.result is None:
            return
        last_message = run.all_messages()[-1]
        if isinstance(last_message, ModelRequest):
            self._recorder.record_toolless([part for part in last_message.parts if isinstance(part, ToolReturnPart)])
        self.data = run.result.output
        name = describe_output_type(self._output_type)["name"]
        self._journal.stage(OutputGiven(data=encode_result(self.data), output_type=name))

    async def _settle_prompts(self) -> None:
        """Wait until the prompts of the next request are durable, and tell the recorder how many events it shows.

        Results need not be durable: a request shows all of them, whatever their seq.
        """
        await self._journal.settle_prompts()
        self._recorder.request_stop = self._journal.durable

    def _record_feedback(self, request: ModelRequest) -> None:
        """Record what PydanticAI put into its request: outcomes of refused calls, and feedback on a missing answer.

        Raises:
            ModelError: The model gave several unusable responses in a row.
        """
        self._recorder.record_toolless([part for part in request.parts if isinstance(part, ToolReturnPart)])
        feedback = "\n".join(str(part.content) for part in request.parts if isinstance(part, RetryFeedbackPart))
        self._unusable_count = self._unusable_count + 1 if feedback else 0
        # For other output types, `output_retries` is the limit.
        if self._unusable_count >= MAX_EMPTY_RESPONSES and self._output_type is str:
            raise ModelError(
                f"the model gave no usable answer {self._unusable_count} times in a row: {feedback}",
                hint="try another model",
            )
        if feedback:
            self._journal.stage(UserMessage.text(feedback, sender=REMINDER))

    def _make_next_request(self) -> ModelRequest:
        if (request := self._journal.view.pending_request()) is None:
            raise ModelError("a tool call has no outcome", hint="`bough doctor` checks the store")
        return request

    async def _run_node(self, run: AgentRun[ToolContext, Any], node: Any) -> Any:
        """Run a node and return the next one.

        Raises:
            NotOpenAIFormat: An event of the stream is malformed.
            ModelError: A model request failed with an error that PydanticAI does not translate.
        """
        try:
            return await run.next(node)
        except (BoughError, AgentRunError, UserError, NotOpenAIFormat):
            raise
        except Exception as error:
            if Agent.is_model_request_node(node):
                if is_malformed(error):
                    raise NotOpenAIFormat("a malformed event in the stream") from error
                reason = f"{type(error).__name__}: {error}"[:500]
                address = find_address(self._retries.model)
                at_address = f" at {address}" if address else ""
                raise ModelError(
                    f"the model{at_address} failed: {reason}", hint="run it again: nothing is lost"
                ) from error
            raise
