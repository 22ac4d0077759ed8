"""One run: step after step until the model has answered everything, or something says stop.

Every request is what the view shows of the log, never what PydanticAI remembers: a resumed run is therefore nothing
special. What others append in the middle (messages, a wish to pause) is found by the run's own next append, of which
each step has at least one, and so is seen at the next step.
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
from bough.agents.models.failure import model_error
from bough.agents.output_type import describe_output_type
from bough.conversation.log.journal import Journal
from bough.conversation.log.tool_result import encode_result
from bough.conversation.log.view import fill_inputs
from bough.conversation.run.reconcile import close_lost_call, find_reconcilers
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.retry import Retries
from bough.conversation.run.tracing import instrumentation
from bough.effects import make_effect_key
from bough.errors import BoughError, ModelError
from bough.events.model import OutputGiven, UserMessage
from bough.events.record import Status

MAX_EMPTY_RESPONSES = 3
"""How often in a row a model may answer with nothing usable before the run ends in an error."""

REMINDER = "bough"
"""Sender of messages by which the runtime itself speaks to the model."""

NodeListener: TypeAlias = Callable[[AgentRun[ToolContext, Any], Any], Awaitable[None]]
"""Called with PydanticAI's run and its node: the prompt, a model request, tool calls, the end."""

Stop = Status | None
"""The status a run stops with; None to continue."""


class Checks(Protocol):
    """What is asked between the parts of a step; each may append events."""

    async def before_request(self) -> Stop:
        """Say whether the model may be asked now."""
        ...

    async def before_tools(self) -> Stop:
        """Say whether the open calls may run now; those that may not have an outcome afterwards."""
        ...

    async def at_end(self) -> None:
        """Look at the run now that nothing is left to do; what is appended continues with it."""
        ...


class Loop:
    """Drives one run of an agent over a journal.

    Attributes:
        steps: Model requests so far.
        data: The latest value of the output type that this run gave; None before one.
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
        """Drive a run.

        Args:
            finish: Writes down that the run is finished, unless there is work again; says whether it did.
            on_node: Awaited for every node of PydanticAI's graph, before that node runs.
            retries: Says what becomes of requests that failed, and which model is asked.
        """
        self._retries = retries
        self._output_type: Any = str
        self._rendered = -1
        self._on_node = on_node
        self._is_current: Callable[[], Awaitable[bool]] | None = None
        self._journal = journal
        self._recorder = recorder
        self._checks = checks
        self._finish = finish
        self._empty = 0
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
        """Run until nothing is left to do or a check says stop, and return the status to leave with.

        Args:
            output_type: What the agent answers with.
            is_current: Says at each step whether `agent` is still the conversation's; where it is not, None is
                returned, and another one continues.

        Raises:
            ModelError: The model failed, or answered nothing usable several times in a row.
            StoreError: An event could not be written.
        """
        self._is_current, self._output_type, self._rendered = is_current, output_type, -1
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
        """Whether the answer is cut off, and gives no value all the same."""
        return self._journal.state.partial and self.data is None

    async def _close_lost_calls(self, agent: AbstractAgent[ToolContext, Any]) -> None:
        """Record what became of the calls that had started when their run died, as far as their tools can tell."""
        state = self._journal.state
        lost_calls = [call for call in state.open_calls if call.started and not call.idempotent]
        if not lost_calls:
            return
        reconcilers = find_reconcilers(agent)
        for call in lost_calls:
            key = make_effect_key(self._journal.cid, state.responded, call.id)
            outcome = await close_lost_call(call, key, reconcilers.get(call.tool))
            if outcome is not None:
                self._journal.stage(outcome)

    async def _run_agent_or_recover(self, agent: AbstractAgent[ToolContext, Any], deps: ToolContext) -> Stop:
        try:
            return await self._run_agent(agent, deps)
        except ModelError as error:
            state = self._journal.state
            if state.partial and not state.has_work:
                return None  # it is cut off before it says anything: a result, no failure
            return None if await self._retries.recover(error) else "paused"

    async def _run_agent(self, agent: AbstractAgent[ToolContext, Any], deps: ToolContext) -> Stop:
        """Run PydanticAI from the log's end until it has its answer, a check says stop, or the view was rewritten."""
        await self._show()
        view = await self._journal.render()
        self._rendered = view.version
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
        except (AgentRunError, UserError) as error:
            raise model_error(error) from error

    async def _drive(self, run: AgentRun[ToolContext, Any]) -> Stop:
        node: Any = run.next_node
        acted = False
        while not isinstance(node, End):
            if Agent.is_call_tools_node(node):
                if node.model_response.tool_calls and (stop := await self._checks.before_tools()):
                    return stop
                acted = True
                self._recorder.begin_metering(run.usage)
            elif Agent.is_model_request_node(node):
                if acted:
                    self._settle(node.request)
                    if self._is_current is not None and not await self._is_current():
                        return None  # with another model: begin anew from the log
                    if stop := await self._checks.before_request():
                        return stop
                    await self._show()
                    if self._journal.view.version != self._rendered:
                        return None  # what the model sees has been condensed: begin anew from the log
                    node.request = self._next_request()
                    await fill_inputs(self._journal.store, [node.request])
                self.steps += 1
            await self._tell(run, node)
            node = await _next(run, node)
        await self._tell(run, node)
        if self._output_type is not str:
            self._give_output(run)
        return None

    async def _tell(self, run: AgentRun[ToolContext, Any], node: Any) -> None:
        if self._on_node is not None:
            await self._on_node(run, node)

    def _give_output(self, run: AgentRun[ToolContext, Any]) -> None:
        """Write down the run's value, and how the calls ended that gave it."""
        if run.result is None:
            return
        last = run.all_messages()[-1]
        if isinstance(last, ModelRequest):
            self._recorder.record_unseen([part for part in last.parts if isinstance(part, ToolReturnPart)])
        self.data = run.result.output
        name = describe_output_type(self._output_type)["name"]
        self._journal.stage(OutputGiven(data=encode_result(self.data), output_type=name))

    async def _show(self) -> None:
        """Settle what the next request shows; results may still be on their way, since they are shown in any place."""
        await self._journal.prompts_settled()
        self._recorder.seen = self._journal.durable

    def _settle(self, request: ModelRequest) -> None:
        """Write down what the next request says that the log does not: refused calls, and that an answer is missing."""
        self._recorder.record_unseen([part for part in request.parts if isinstance(part, ToolReturnPart)])
        feedback = "\n".join(str(part.content) for part in request.parts if isinstance(part, RetryFeedbackPart))
        self._empty = self._empty + 1 if feedback else 0
        if self._empty >= MAX_EMPTY_RESPONSES and self._output_type is str:  # else `output_retries` is the bound
            raise ModelError(
                f"the model gave no usable answer {self._empty} times in a row: {feedback}", hint="try another model"
            )
        if feedback:
            self._journal.stage(UserMessage.text(feedback, sender=REMINDER))

    def _next_request(self) -> ModelRequest:
        if (request := self._journal.view.tail()) is None:
            raise ModelError("a tool call has no outcome", hint="`bough doctor` checks the store")
        return request


async def _next(run: AgentRun[ToolContext, Any], node: Any) -> Any:
    """Take a step. Whatever else goes wrong while a model is asked (a lost connection, say) is the model's failure."""
    try:
        return await run.next(node)
    except (BoughError, AgentRunError, UserError):
        raise
    except Exception as error:
        if Agent.is_model_request_node(node):
            reason = f"{type(error).__name__}: {error}"[:500]
            raise ModelError(f"the model failed: {reason}", hint="run it again: nothing is lost") from error
        raise
