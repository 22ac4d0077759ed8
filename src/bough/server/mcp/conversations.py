"""The operations behind the MCP tools, and their implementation for a store whose conversations run in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import anyio

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Comparison, ForkOverrides, State, Turn, Update
from bough.conversation.log.turns import read_turn_page
from bough.conversation.rules import GivenRules
from bough.errors import BoughError, InvalidInput, hide_places
from bough.events.model import ErrorRaised
from bough.events.record import ConversationFilter, Page
from bough.events.store import EventStore
from bough.guard import Budget
from bough.guard.budget import join_budgets, parse_budgets
from bough.server.bodies.rules import make_budget
from bough.server.live.steps import CallStep, RespondedStep, StepReader
from bough.server.mcp.arguments import (
    CompareArguments,
    DecideArguments,
    DelegateArguments,
    ForkArguments,
    ListArguments,
    RunArguments,
    SendArguments,
    StartArguments,
    TaskArguments,
    TurnsArguments,
)
from bough.server.mcp.files import McpFiles
from bough.settings import Settings
from bough.tasks import Task, TaskBroker
from bough.types import JsonObject

Progress = Callable[[float, str], Awaitable[None]]
"""Reports a step of a run: its number, which MCP requires to increase, and a description."""

C = TypeVar("C")

FAILURE = "error"
"""The field of a result that describes why a run failed: an object with `code`, `reason` and `hint`."""


class McpConversations(McpFiles, ABC, Generic[C]):
    """The methods that the tools call. Each raises what the methods of a conversation raise.

    `C` is the type of an open conversation. `_proceed` is the last call for an open conversation, and closes it.
    """

    async def start(self, arguments: StartArguments, progress: Progress) -> JsonObject:
        """Start a conversation; with a message, send it and run the agent."""
        conversation = await self._create(arguments)
        return await self._proceed(
            conversation, arguments.message, run=arguments.run and arguments.message is not None, progress=progress
        )

    async def send(self, arguments: SendArguments, progress: Progress) -> JsonObject:
        """Send a message, and run the agent."""
        opened = await self._open(arguments.conversation)
        return await self._proceed(opened, arguments.message, run=arguments.run, progress=progress)

    async def run(self, arguments: RunArguments, progress: Progress) -> JsonObject:
        """Continue a run."""
        return await self._proceed(await self._open(arguments.conversation), None, run=True, progress=progress)

    async def fork(self, arguments: ForkArguments, progress: Progress) -> JsonObject:
        """Fork a conversation; with a message, send it to the fork. The result has the number of shared events."""
        source = await self._open(arguments.conversation)
        fork, shared_events = await self._fork(source, arguments)
        result = await self._proceed(fork, arguments.message, run=arguments.run, progress=progress)
        return {**result, "at": shared_events}

    @abstractmethod
    async def decide(self, arguments: DecideArguments, progress: Progress) -> JsonObject:
        """Decide on a waiting call, and continue the run."""

    @abstractmethod
    async def compare(self, arguments: CompareArguments, progress: Progress) -> JsonObject:
        """Return what two conversations share, and where they diverge."""

    @abstractmethod
    async def list(self, arguments: ListArguments, progress: Progress) -> JsonObject:
        """Return a page of conversations, most recently updated first."""

    @abstractmethod
    async def turns(self, arguments: TurnsArguments, progress: Progress) -> JsonObject:
        """Return a page of a conversation's turns, in order."""

    @abstractmethod
    async def delegate(self, arguments: DelegateArguments, progress: Progress) -> JsonObject:
        """Delegate work to an agent, in a new conversation."""

    @abstractmethod
    async def get_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Return the state of a task."""

    @abstractmethod
    async def cancel_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Cancel a task."""

    @abstractmethod
    async def _create(self, arguments: StartArguments) -> C:
        """Start a conversation without a message, and return it open."""

    @abstractmethod
    async def _open(self, id: UUID) -> C:
        """Open a conversation."""

    @abstractmethod
    async def _fork(self, source: C, arguments: ForkArguments) -> tuple[C, int]:
        """Fork an open conversation, and close it. Return the open fork, and the number of events that it shares."""

    @abstractmethod
    async def _proceed(self, conversation: C, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send the message if there is one, run if asked to, close the conversation, and return its state."""


class LocalConversations(McpConversations[AsyncConversation]):
    """The conversations of one store, run in this process.

    Args:
        agents: Returns the agent with a name; the default agent for None.
        rules: Returns the rules of a conversation in a folder.
        broker: Runs the tasks of named agents.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: EventStore,
        broker: TaskBroker,
        agents: Callable[[str | None], AgentSpec],
        rules: Callable[[Path], GivenRules],
    ) -> None:
        self._settings = settings
        self._store = store
        self._broker = broker
        self._agents = agents
        self._rules = rules

    async def decide(self, arguments: DecideArguments, progress: Progress) -> JsonObject:
        """Decide on a waiting call, and continue the run."""
        conversation = await self._open(arguments.conversation)
        try:
            match arguments.decision:
                case "approve":
                    options: Any = {"reason": arguments.reason, "arguments": arguments.arguments}
                    await conversation.approve(arguments.call, by="mcp", **options)
                case "reject":
                    await conversation.reject(arguments.call, reason=arguments.reason, by="mcp")
                case "answer":
                    await conversation.answer(arguments.call, arguments.value, by="mcp")
        except BaseException:
            await conversation.aclose()
            raise
        return await self._proceed(conversation, None, run=True, progress=progress)

    async def compare(self, arguments: CompareArguments, progress: Progress) -> JsonObject:
        """Return what two conversations share, and where they diverge."""
        one, other = await self._open(arguments.a), await self._open(arguments.b)
        async with one, other:
            return describe_comparison(await one.compare(other, until=parse_until(arguments)))

    async def list(self, arguments: ListArguments, progress: Progress) -> JsonObject:
        """Return a page of conversations, most recently updated first."""
        return describe_page(await self._store.list(parse_filter(arguments), arguments.cursor, arguments.limit))

    async def turns(self, arguments: TurnsArguments, progress: Progress) -> JsonObject:
        """Return a page of a conversation's turns, in order."""
        return await read_turns(self._store, arguments)

    async def delegate(self, arguments: DelegateArguments, progress: Progress) -> JsonObject:
        """Delegate work to an agent, in a new conversation."""
        self._agents(arguments.agent)
        task = await self._broker.submit(arguments.prompt, agent_name=arguments.agent)
        return describe_task(await (self._broker.wait(task) if arguments.wait else self._broker.poll(task)))

    async def get_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Return the state of a task."""
        return describe_task(await self._broker.poll(str(arguments.task)))

    async def cancel_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Cancel a task."""
        return describe_task(await self._broker.cancel(str(arguments.task)))

    async def _create(self, arguments: StartArguments) -> AsyncConversation:
        folder = Path(arguments.workspace)
        rules: GivenRules = {**self._rules(folder)}
        if arguments.budget is not None:
            rules["budget"] = join_budgets(parse_budgets(rules.get("budget")), [Budget(id=arguments.budget)])
        return await AsyncConversation.create(
            self._agents(arguments.agent),
            workspace=folder,
            store=self._store,
            title=arguments.title,
            tags=arguments.tags,
            settings=self._settings,
            **rules,
        )

    @asynccontextmanager
    async def open_files(self, id: UUID, *, writes: bool) -> AsyncGenerator[AsyncConversation]:
        """Open a conversation; the client of this process may read and change everything."""
        async with await self._open(id) as conversation:
            yield conversation

    async def _open(self, id: UUID) -> AsyncConversation:
        record = await self._store.get(id)
        folder = Path(str(record.config.get("workspace") or "."))
        return await AsyncConversation.open(id, store=self._store, settings=self._settings, **self._rules(folder))

    async def _fork(self, source: AsyncConversation, arguments: ForkArguments) -> tuple[AsyncConversation, int]:
        options: Any = {"title": arguments.title, "overrides": parse_overrides(arguments), "reason": arguments.reason}
        options |= {"workspace": arguments.workspace, "moment": arguments.moment}
        async with source:
            fork = await source.fork(at=parse_cut(arguments), actor="mcp", **options)
        return fork, fork.state.base

    async def _proceed(
        self, conversation: AsyncConversation, message: str | None, *, run: bool, progress: Progress
    ) -> JsonObject:
        """Send, run, close, and return the state of the conversation."""
        try:
            if message is not None:
                await conversation.send_message(message)
            if not run:
                return describe_state(conversation.id, conversation.state, answered=False)
            start = conversation.state.head
            raised: BoughError | None = None
            try:
                await conversation.run(on_event=StepReporter(progress))
            except BoughError as error:
                raised = error
            failure = await find_failure(self._store, conversation.id, conversation.state, start)
            if raised is not None and failure is None:
                raise raised
            return describe_state(conversation.id, conversation.state, answered=True, failure=failure)
        finally:
            # A cancelled request interrupts its run. Closing must not be cancelled too, else steps are not recorded.
            with anyio.CancelScope(shield=True):
                await conversation.aclose()


class StepReporter:
    """Reports a run's steps and tool calls as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps = StepReader()
        self._reports = 0

    async def __call__(self, update: Update) -> None:
        """Report an update that is a response of the model or a tool call that runs; ignore all others."""
        for step in self._steps.read(update):
            match step:
                case RespondedStep():
                    description = "the model answered"
                case CallStep(tool=tool, is_running=True):
                    description = tool
                case _:
                    continue
            self._reports += 1
            await self._progress(self._reports, description)


async def find_failure(store: EventStore, id: UUID, state: State, start: int) -> JsonObject | None:
    """Return why a run failed, as a code, a reason and a hint; None if it did not fail.

    Args:
        start: Seq of the first event that the run may have written.
    """
    if state.status == "stuck":
        return {"code": "stuck", "reason": "the agent repeats itself", "hint": "send a message with what to do next"}
    if state.status != "error":
        return None
    async for stored in store.read(id, start, kinds=("ErrorRaised",), reverse=True):
        if isinstance(error := stored.event, ErrorRaised):
            return {"code": error.code, "reason": hide_places(error.code, error.message), "hint": error.hint}
    return {"code": "error", "reason": "the run ended in an error", "hint": "run_conversation continues it"}


def describe_state(id: UUID, state: State, *, answered: bool, failure: JsonObject | None = None) -> JsonObject:
    """Return the state of a conversation, as a tool's result.

    Args:
        answered: Whether the agent ran, so that its output is the answer.
        failure: Why the run failed. With it, the result is an error.
    """
    described: dict[str, Any] = {
        "id": str(id),
        "status": state.status,
        "answer": state.output if answered else None,
        "head": state.head,
    }
    if failure is not None:
        described[FAILURE] = failure
    if state.waiting:
        described["waiting"] = [
            {
                "call": call,
                "tool": state.calls[call].tool if call in state.calls else question.get("tool"),
                "arguments": state.calls[call].parsed_arguments if call in state.calls else {},
                "reason": question.get("reason", ""),
            }
            for call, question in state.waiting.items()
        ]
    return described


def describe_comparison(comparison: Comparison) -> JsonObject:
    """Return what two conversations share, and where they diverge, as a tool's result."""
    sides = {
        name: {
            "id": str(side.id),
            "head": side.head,
            "own": len(side.events),
            "calls": len(side.calls),
        }
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    files = [{"path": file.path, "change": file.change} for file in comparison.files]
    return {"common": comparison.common, **sides, "cost_usd": comparison.cost_usd, "files": files}


def describe_page(page: Page) -> JsonObject:
    """Return a page of conversations as a tool's result."""
    items = [
        {
            "id": str(record.id),
            "title": record.title,
            "status": record.status,
            "tags": record.tags,
            "updated": record.updated.isoformat(),
        }
        for record in page.items
    ]
    return {"items": items, "next": page.next_cursor}


async def read_turns(store: EventStore, arguments: TurnsArguments) -> JsonObject:
    """Return a page of turns as a tool's result; `next` is the number of the first turn of the next page."""
    id = arguments.conversation
    head = (await store.get(id)).head
    turns, next_turn = await read_turn_page(store, id, arguments.first, arguments.limit, head=head)
    return {"items": [turn.as_json() for turn in turns], "next": next_turn}


def describe_task(task: Task) -> JsonObject:
    """Return a task as a tool's result."""
    described: JsonObject = {"task": task.id, "state": task.state.value, "result": task.result}
    return described | ({} if task.error is None else {"error": task.error})


def parse_cut(arguments: ForkArguments) -> int | UUID | None:
    """Return where to fork: after a number of events, or after an event; None after all events.

    Raises:
        InvalidInput: Both `at` and `event` are given.
    """
    if arguments.at is not None and arguments.event is not None:
        raise InvalidInput(
            "give `at` or `event`, not both", hint="`at` is a number of events, `event` the id of the last one"
        )
    return arguments.event if arguments.event is not None else arguments.at


def parse_until(arguments: CompareArguments) -> Turn | None:
    """Return the last turn to compare; None for the last one that both conversations have."""
    return None if arguments.until is None else Turn(arguments.until)


def parse_overrides(arguments: ForkArguments, owner: str | None = None) -> ForkOverrides:
    """Return the settings in which the fork differs from its source.

    Args:
        owner: The tenant whose budget `budget` names.
    """
    overrides = arguments.model_dump(include={"model", "system_prompt", "tools"}, exclude_none=True)
    budget = {} if arguments.budget is None else {"budget": make_budget(owner, arguments.budget)}
    return cast("ForkOverrides", overrides | budget)


def parse_filter(arguments: ListArguments) -> ConversationFilter:
    """Return the filter of `list_conversations`."""
    return ConversationFilter(text=arguments.text, status=arguments.status, project=arguments.project)
