"""An agent with everything its spec names, entered once and run turn after turn.

Source: agentic_patterns (`OrchestratorAgent`, `NodeHook`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Unpack
from uuid import UUID

from pydantic_ai import Agent
from pydantic_ai._agent_graph import GraphAgentState
from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.run import AgentRun, AgentRunResult
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import UsageLimits

from bough.agents.context import ToolContext
from bough.agents.spec import AgentSpec
from bough.agents.usage import CallableUsage
from bough.conversation import AsyncConversation
from bough.conversation.adapters.pydantic_messages import import_messages
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, add_usage, subtract_usage
from bough.conversation.result import RunResult
from bough.conversation.rules import GivenRules
from bough.errors import Conflict, Interrupted, LimitExceeded, NotSupported
from bough.events.model import StateChanged, Usage
from bough.events.store import EventStore
from bough.guard import Limits
from bough.orchestrator.report import report_tasks
from bough.settings import Settings
from bough.tasks.broker import TaskBroker
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.named import open_task_store, tasks_in
from bough.types import Json


class NodeHook(Protocol):
    """A function, or a coroutine function, that is called with every node of a turn before that node runs."""

    def __call__(self, node: Any, /) -> Awaitable[None] | None:
        """Take a node in."""
        ...


_LOG = logging.getLogger("bough.run")


class OrchestratorAgent:
    """Composes an agent of tools, servers, skills and sub-agents, and runs it. Its turns are one conversation.

    ```python
    async with OrchestratorAgent(spec) as orchestrator:
        result = await orchestrator.run("Analyze Q4 revenue data")
        result = await orchestrator.run("Now compare with Q3")
    ```

    Entering it again continues with the same conversation, its tasks and their results.
    """

    def __init__(
        self,
        spec: AgentSpec[Any],
        verbose: bool = False,
        on_node: NodeHook | None = None,
        *,
        store: EventStore | str | None = None,
        workspace: str | Path = ".",
        conversation: UUID | str | None = None,
        broker: TaskBroker | None = None,
        settings: Settings | None = None,
        **rules: Unpack[GivenRules],
    ) -> None:
        """Make an orchestrator; entering it opens what it needs.

        Args:
            spec: What the agent is, its sub-agents included.
            verbose: Log reasoning, calls and results to `bough.run`.
            on_node: Told of every node, in order. One that raises is logged, and the run continues.
            store: Where the conversation and its tasks are; None takes the broker's log, then the settings' store.
            conversation: Continues with that one.
            broker: Runs the tasks of the sub-agents, and stays the caller's to enter and to leave; None makes one.
            rules: What the agent may do and use: see `GivenRules`.
        """
        self._spec = spec
        self._hooks = [*([log_node] if verbose else []), *([on_node] if on_node is not None else [])]
        self._store = store
        self._workspace = workspace
        self._id = conversation
        self._given_broker = broker
        self._settings = settings
        self._rules = rules
        self._stack: AsyncExitStack | None = None
        self._broker: TaskBroker | None = None
        self._conversation: AsyncConversation | None = None
        self._runs: list[tuple[AgentRun[Any, Any], list[Any]]] = []

    # Life.

    async def __aenter__(self) -> OrchestratorAgent:
        """Open the store, enter a broker where there are sub-agents, create or open the conversation."""
        if self._stack is not None:
            raise Conflict("the orchestrator is already entered", hint="leave it first, or make another one")
        self._spec.check_sub_agents()
        settings = self._settings or Settings.load()
        async with AsyncExitStack() as opening:  # what was opened is closed again where a later step fails
            broker = await self._open_broker(opening, settings)
            store = self._store if broker is None else broker.store.log
            self._conversation = await self._open_conversation(store, broker, settings)
            opening.push_async_callback(self._conversation.aclose)
            self._id, self._broker = self._conversation.id, broker
            # The broker is left before the conversation is closed: what it cancels is told in that log.
            if broker is not None and broker is not self._given_broker:
                opening.push_async_exit(await broker.__aenter__())
            opening.push_async_callback(self._conversation.interrupt)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Interrupt a run in progress, leave the broker, close the conversation. The log stays."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    async def _open_broker(self, opening: AsyncExitStack, settings: Settings) -> TaskBroker | None:
        """Return the broker that runs the sub-agents, its store open; None where there are none."""
        broker = self._given_broker
        if broker is None:
            if not self._spec.sub_agents:
                return None
            given = self._store or settings.store
            tasks = open_task_store(given) if isinstance(given, str) else tasks_in(given)
            opening.push_async_callback(tasks.aclose)
            broker = TaskBroker(tasks, settings=settings, queues=())
        await broker.store.open()
        broker.register_agents([self._spec])
        return broker

    async def _open_conversation(
        self, store: EventStore | str | None, broker: TaskBroker | None, settings: Settings
    ) -> AsyncConversation:
        delegation = None if broker is None else broker.delegation
        if self._id is not None:
            return await AsyncConversation.open(
                self._id, store=store, agent=self._spec, settings=settings, broker=delegation, **self._rules
            )
        return await AsyncConversation.create(
            self._spec, workspace=self._workspace, store=store, settings=settings, broker=delegation, **self._rules
        )

    # What it is.

    @property
    def runs(self) -> list[tuple[AgentRun[Any, Any], list[Any]]]:
        """PydanticAI's runs with their nodes, a turn each, the oldest first; turns that raised are among them."""
        return list(self._runs)

    @property
    def conversation(self) -> AsyncConversation:
        """The conversation that its turns are. Raises `Conflict` before it was entered."""
        if self._conversation is None:
            raise Conflict("the orchestrator was not entered", hint="use it in `async with`")
        return self._conversation

    @property
    def system_prompt(self) -> str:
        """The prompt with its catalogues, as it is recorded. Raises `Conflict` before it was entered."""
        return self.conversation.state.instructions

    @property
    def broker(self) -> TaskBroker | None:
        """What runs the tasks of its sub-agents; None where there are none."""
        return self._broker or self._given_broker

    # What it does.

    async def run(
        self,
        prompt: str | None,
        *,
        message_history: Sequence[ModelMessage] | None = None,
        usage_limits: UsageLimits | None = None,
    ) -> AgentRunResult[Any]:
        """Run a turn and return its result; results of background tasks are told before the prompt.

        Args:
            prompt: What is said; None continues where the conversation stands.
            message_history: Starts a conversation from these messages, which later turns continue with.
            usage_limits: Bounds of this turn, its sub-agents included.

        Returns:
            With the value of the agent's `output_type`, or its text. With `DeferredToolRequests` where calls wait for
            somebody: answer or decide them, then run on with None.

        Raises:
            Conflict: It was not entered.
            LimitExceeded: A bound was reached; the turn is in the log and in `runs`.
            ModelError: The model failed; likewise.
            Interrupted: Somebody stopped the turn.
        """
        if self._stack is None:
            raise Conflict("the orchestrator is not entered", hint="use it in `async with`")
        if message_history is not None:
            await self._begin_from(message_history)
        conversation = self.conversation
        book = Journal(conversation.store, conversation.id)
        await book.catch_up()
        await self._release_ended_waits(book)
        before = _total(book.state)
        if (report := await report_tasks(conversation.store, conversation.id, book.state)) is not None:
            await conversation.send_message(report)
        if prompt is not None:
            await conversation.send_message(prompt)
        turn = _Turn(self._hooks)
        try:
            result = await conversation.run(on_node=turn.hear, limits=read_usage_limits(usage_limits))
        finally:
            if turn.run is not None:
                self._runs.append((turn.run, turn.nodes))
        return _read_result(result, conversation.state, turn.run, subtract_usage(_total(conversation.state), before))

    async def answer(self, task_id: str, value: Json) -> Task:
        """Answer what a task of a sub-agent asks; running on with None then takes its result.

        Raises:
            Conflict: It asks nothing, or there are no sub-agents.
            NotFound: There is no such task.
        """
        if self._broker is None:
            raise Conflict("the agent has no sub-agents, so no task asks", hint="use its conversation's decisions")
        return await self._broker.provide_input(task_id, value)

    # Inside.

    async def _begin_from(self, messages: Sequence[ModelMessage]) -> None:
        """Continue with a conversation of its own that begins with these messages."""
        before, self._id = self.conversation, None
        settings = self._settings or before.settings
        self._conversation = await self._open_conversation(before.store, self._broker, settings)
        self._id = self._conversation.id
        await import_messages(self._conversation, list(messages))
        assert self._stack is not None  # noqa: S101 - `run` has looked
        self._stack.push_async_callback(self._conversation.aclose)
        self._stack.push_async_callback(self._conversation.interrupt)

    async def _release_ended_waits(self, book: Journal) -> None:
        """Let calls continue whose task does not ask any more: they run again, and find the task they had started."""
        state = book.state
        while True:
            waiting = {id: call for id, call in state.waiting.items() if await self._still_asks(call)}
            if len(waiting) == len(state.waiting):
                return
            status = "waiting_for_confirmation" if waiting else "idle"
            released = StateChanged(changes={"status": status, "waiting": waiting}, reason="its task continues")
            try:
                await book.append(released, expected_head=state.head)
            except Conflict:
                head = state.head
                await book.catch_up()
                if state.head == head:
                    raise

    async def _still_asks(self, call: dict[str, Any]) -> bool:
        if call.get("kind") != "task" or self._broker is None:
            return True
        task = await self._broker.poll(str(call.get("task")))
        return task.state is TaskState.INPUT_REQUIRED


class _Turn:
    """Collects the nodes of one turn, and tells hooks of them."""

    def __init__(self, hooks: Sequence[NodeHook]) -> None:
        self._hooks = hooks
        self.run: AgentRun[Any, Any] | None = None
        self.nodes: list[Any] = []

    async def hear(self, run: AgentRun[ToolContext, Any], node: Any) -> None:
        """Take a node in. A hook that raises is the program's mistake, and ends no run."""
        self.run = run
        self.nodes.append(node)
        for hook in self._hooks:
            try:
                said: Any = hook(node)
                if inspect.isawaitable(said):
                    await said
            except Exception:  # noqa: BLE001 - code of the program, reported
                _LOG.exception("a node hook failed")


def read_usage_limits(limits: UsageLimits | None) -> Limits | None:
    """Return PydanticAI's limits as bounds of a run.

    Raises:
        NotSupported: They bound the number of tool calls.
    """
    if limits is None:
        return None
    if limits.tool_calls_limit is not None:
        raise NotSupported("tool calls cannot be bounded", hint="bound the requests: each step is one")
    return Limits(
        requests=limits.request_limit,
        input_tokens=limits.input_tokens_limit,
        output_tokens=limits.output_tokens_limit,
        total_tokens=limits.total_tokens_limit,
    )


def _total(state: State) -> Usage:
    return add_usage(state.own, state.delegated)


def _read_result(result: RunResult, state: State, run: AgentRun[Any, Any] | None, used: Usage) -> AgentRunResult[Any]:
    """Return what a turn came to as PydanticAI's result; see `OrchestratorAgent.run` for what is raised."""
    match result.status:
        case "paused" | "stuck" if result.limit is not None or result.status == "stuck":
            what = f"the bound of {result.limit} was reached" if result.limit else "the agent repeats itself"
            raise LimitExceeded(what, hint="run(None) continues", details={"limit": result.limit or "stuck"})
        case "paused":
            raise Interrupted("the turn was stopped", hint="run(None) continues")
        case "waiting_for_confirmation":
            output: Any = _describe_waiting(state)
        case _:
            output = result.output if result.data is None else result.data
    kept = run.result if run is not None else None
    graph = GraphAgentState() if kept is None else kept._state  # pyright: ignore[reportPrivateUsage]
    graph.usage = _usage(used)
    made = AgentRunResult(output=output, _state=graph)
    if kept is not None:
        # The prompt is in the log before the agent runs, so PydanticAI counts it as history. It belongs to this turn.
        messages, first = kept.all_messages(), kept._new_message_index  # pyright: ignore[reportPrivateUsage]
        while first > 0 and isinstance(messages[first - 1], ModelRequest):
            first -= 1
        made._new_message_index = first  # pyright: ignore[reportPrivateUsage]
    return made


def _usage(used: Usage) -> CallableUsage:
    return CallableUsage(
        requests=used.requests,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
    )


def _describe_waiting(state: State) -> DeferredToolRequests:
    """Return the calls that wait: approvals, and those that somebody answers; what is asked is in their metadata."""
    requests = DeferredToolRequests()
    for id, waiting in state.waiting.items():
        call = ToolCallPart(str(waiting.get("tool", "")), waiting.get("arguments"), tool_call_id=id)
        is_asked = waiting.get("kind") in ("question", "task", "external")
        (requests.calls if is_asked else requests.approvals).append(call)
        requests.metadata[id] = {key: value for key, value in waiting.items() if key not in ("tool", "arguments")}
    return requests


LOG = logging.getLogger("bough.run")
MAX_CHARS = 500


def log_node(node: Any) -> None:
    """Log what a node shows: the model's reasoning, its text, its calls and their results."""
    if Agent.is_call_tools_node(node):
        for part in node.model_response.parts:
            match part:
                case ThinkingPart() | TextPart():
                    LOG.info("model: %s", _shorten(part.content))
                case ToolCallPart():
                    LOG.info("call %s: %s", part.tool_name, _shorten(part.args_as_json_str()))
                case _:
                    pass
    elif Agent.is_model_request_node(node):
        for part in node.request.parts:
            if isinstance(part, ToolReturnPart):
                LOG.info("result of %s: %s", part.tool_name, _shorten(str(part.content)))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"
