"""What the tools do, whoever runs the conversations; and the conversations of one store, run in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import anyio

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Comparison, Delta, ForkOverrides, State, Update
from bough.conversation.rules import GivenRules
from bough.errors import BoughError, InvalidInput, hide_places
from bough.events.model import ErrorRaised, ModelResponded, ToolCalled
from bough.events.record import ConversationFilter, Page
from bough.events.store import EventStore
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
)
from bough.settings import Settings
from bough.tasks import Task, TaskBroker
from bough.types import JsonObject

Progress = Callable[[float, str], Awaitable[None]]
"""Takes the number of this report, which grows as MCP demands, and what the run does now."""

C = TypeVar("C")


FAILURE = "error"
"""Where a result says why a run failed: an object with `code`, `reason` and `hint`."""


class McpConversations(ABC, Generic[C]):
    """What the tools call; each method raises what a conversation raises.

    `C` is a conversation in use: `_proceed` is the last thing that is done with one, and lets go of it.
    """

    async def start(self, arguments: StartArguments, progress: Progress) -> JsonObject:
        """Start a conversation, and run it where it has a message."""
        conversation = await self._create(arguments)
        return await self._proceed(
            conversation, arguments.message, run=arguments.run and arguments.message is not None, progress=progress
        )

    async def send(self, arguments: SendArguments, progress: Progress) -> JsonObject:
        """Send a message, and run."""
        opened = await self._open(arguments.conversation)
        return await self._proceed(opened, arguments.message, run=arguments.run, progress=progress)

    async def run(self, arguments: RunArguments, progress: Progress) -> JsonObject:
        """Continue a run."""
        return await self._proceed(await self._open(arguments.conversation), None, run=True, progress=progress)

    async def fork(self, arguments: ForkArguments, progress: Progress) -> JsonObject:
        """Fork a conversation, and send the fork a message where there is one."""
        fork, base = await self._fork(await self._open(arguments.conversation), arguments)
        return {**await self._proceed(fork, arguments.message, run=arguments.run, progress=progress), "at": base}

    @abstractmethod
    async def decide(self, arguments: DecideArguments, progress: Progress) -> JsonObject:
        """Decide on a waiting call, and continue the run."""

    @abstractmethod
    async def compare(self, arguments: CompareArguments, progress: Progress) -> JsonObject:
        """Return what two conversations share and where they part."""

    @abstractmethod
    async def list(self, arguments: ListArguments, progress: Progress) -> JsonObject:
        """Return a page of conversations, most recently updated first."""

    @abstractmethod
    async def delegate(self, arguments: DelegateArguments, progress: Progress) -> JsonObject:
        """Have an agent do something in a conversation of its own."""

    @abstractmethod
    async def get_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Return where a task stands."""

    @abstractmethod
    async def cancel_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Cancel a task."""

    @abstractmethod
    async def _create(self, arguments: StartArguments) -> C:
        """Start a conversation; nothing is said in it yet."""

    @abstractmethod
    async def _open(self, id: UUID) -> C:
        """Return a conversation that is there."""

    @abstractmethod
    async def _fork(self, source: C, arguments: ForkArguments) -> tuple[C, int]:
        """Return a fork, and how many events it shares; the source is let go of."""

    @abstractmethod
    async def _proceed(self, conversation: C, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send a message where there is one, run, and return where the conversation stands."""


class LocalConversations(McpConversations[AsyncConversation]):
    """The conversations of one store, run in this process.

    Args:
        agents: Makes the agent of a name, and the default one of None.
        rules: Makes the rules of a conversation in a folder.
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
        """Return what two conversations share and where they part."""
        one, other = await self._open(arguments.a), await self._open(arguments.b)
        async with one, other:
            return describe_comparison(await one.compare(other))

    async def list(self, arguments: ListArguments, progress: Progress) -> JsonObject:
        """Return a page of conversations, most recently updated first."""
        return describe_page(await self._store.list(parse_filter(arguments), arguments.cursor, arguments.limit))

    async def delegate(self, arguments: DelegateArguments, progress: Progress) -> JsonObject:
        """Have an agent do something in a conversation of its own."""
        self._agents(arguments.agent)
        task = await self._broker.submit(arguments.prompt, agent_name=arguments.agent)
        return describe_task(await (self._broker.wait(task) if arguments.wait else self._broker.poll(task)))

    async def get_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Return where a task stands."""
        return describe_task(await self._broker.poll(str(arguments.task)))

    async def cancel_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Cancel a task."""
        return describe_task(await self._broker.cancel(str(arguments.task)))

    async def _create(self, arguments: StartArguments) -> AsyncConversation:
        folder = Path(arguments.workspace)
        return await AsyncConversation.create(
            self._agents(arguments.agent),
            workspace=folder,
            store=self._store,
            title=arguments.title,
            tags=arguments.tags,
            settings=self._settings,
            **self._rules(folder),
        )

    async def _open(self, id: UUID) -> AsyncConversation:
        record = await self._store.get(id)
        folder = Path(str(record.config.get("workspace") or "."))
        return await AsyncConversation.open(id, store=self._store, settings=self._settings, **self._rules(folder))

    async def _fork(self, source: AsyncConversation, arguments: ForkArguments) -> tuple[AsyncConversation, int]:
        options: Any = {"title": arguments.title, "overrides": parse_overrides(arguments), "reason": arguments.reason}
        async with source:
            fork = await source.fork(at=parse_cut(arguments), actor="mcp", **options)
        return fork, fork.state.base

    async def _proceed(
        self, conversation: AsyncConversation, message: str | None, *, run: bool, progress: Progress
    ) -> JsonObject:
        """Send, run, close, and return where the conversation stands."""
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
            # A client that cancels interrupts its run; what was done until then is recorded in spite of that.
            with anyio.CancelScope(shield=True):
                await conversation.aclose()


class StepReporter:
    """Reports a run's steps and tool calls as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._reports = 0

    async def __call__(self, update: Update) -> None:
        """Take in what happens."""
        if isinstance(update, Delta):
            return
        match update.event:
            case ModelResponded():
                doing = "the model answered"
            case ToolCalled() as called:
                doing = called.tool
            case _:
                return
        self._reports += 1
        await self._progress(self._reports, doing)


async def find_failure(store: EventStore, id: UUID, state: State, start: int) -> JsonObject | None:
    """Return why a run failed: a code, a reason and a hint; None where it did not fail.

    Args:
        start: Seq of the first event that the run may have written.
    """
    if state.status == "stuck":
        return {"code": "stuck", "reason": "the agent repeats itself", "hint": "send a message that says what to do"}
    if state.status != "error":
        return None
    async for stored in store.read(id, start, kinds=("ErrorRaised",), reverse=True):
        if isinstance(error := stored.event, ErrorRaised):
            return {"code": error.code, "reason": hide_places(error.code, error.message), "hint": error.hint}
    return {"code": "error", "reason": "the run ended in an error", "hint": "run_conversation continues it"}


def describe_state(id: UUID, state: State, *, answered: bool, failure: JsonObject | None = None) -> JsonObject:
    """Return where a conversation stands, as a tool's result.

    Args:
        failure: Why the run failed, which makes the result an error.
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
                "arguments": state.calls[call].given if call in state.calls else {},
                "reason": question.get("reason", ""),
            }
            for call, question in state.waiting.items()
        ]
    return described


def describe_comparison(comparison: Comparison) -> JsonObject:
    """Return what two conversations share and where they part, as a tool's result."""
    sides = {
        name: {
            "id": str(side.id),
            "head": comparison.common + len(side.events),
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


def describe_task(task: Task) -> JsonObject:
    """Return a task as a tool's result."""
    described: JsonObject = {"task": task.id, "state": task.state.value, "result": task.result}
    return described | ({} if task.error is None else {"error": task.error})


def parse_cut(arguments: ForkArguments) -> int | UUID | None:
    """Return where to fork.

    Raises:
        InvalidInput: Two places are given.
    """
    if arguments.at is not None and arguments.event is not None:
        raise InvalidInput(
            "give `at` or `event`, not both", hint="`at` is a number of events, `event` the id of the last"
        )
    return arguments.event if arguments.event is not None else arguments.at


def parse_overrides(arguments: ForkArguments) -> ForkOverrides:
    """Return what a fork does otherwise."""
    return cast("ForkOverrides", arguments.model_dump(include={"model", "system_prompt"}, exclude_none=True))


def parse_filter(arguments: ListArguments) -> ConversationFilter:
    """Return which conversations to list."""
    return ConversationFilter(text=arguments.text, status=arguments.status)
