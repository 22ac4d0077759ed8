"""What the tools do: each opens a conversation of the store, changes or runs it, and closes it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import anyio

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation, Comparison, Delta, ForkOverrides, State, Update
from bough.conversation.rules import GivenRules
from bough.errors import InvalidInput
from bough.events.model import ModelResponded, ToolCalled
from bough.events.record import ConversationFilter, Page, Status
from bough.events.store import EventStore
from bough.tasks import Task, TaskBroker
from bough.types import JsonObject

Progress = Callable[[float, str], Awaitable[None]]
"""Takes how many steps a run has made, and what it does now."""


class McpConversations(Protocol):
    """What the tools call; each method raises what a conversation raises."""

    async def start(
        self,
        message: str | None,
        *,
        agent: str | None,
        title: str | None,
        tags: dict[str, str],
        workspace: str,
        run: bool,
        progress: Progress,
    ) -> JsonObject:
        """Start a conversation, and run it where it has a message."""
        ...

    async def send(self, id: UUID, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send a message where there is one, and run."""
        ...

    async def fork(
        self,
        id: UUID,
        *,
        at: int | UUID | None,
        message: str | None,
        title: str | None,
        overrides: ForkOverrides,
        reason: str | None,
        run: bool,
        progress: Progress,
    ) -> JsonObject:
        """Fork a conversation, and send the fork a message where there is one."""
        ...

    async def decide(
        self, id: UUID, call: str, *, approve: bool, reason: str, run: bool, progress: Progress
    ) -> JsonObject:
        """Approve or reject a waiting call, and continue with the run."""
        ...

    async def compare(self, a: UUID, b: UUID) -> JsonObject:
        """Return what two conversations share and where they part."""
        ...

    async def list(self, *, text: str | None, status: Status | None, limit: int, cursor: str | None) -> JsonObject:
        """Return a page of conversations, most recently updated first."""
        ...

    async def delegate(self, agent: str, prompt: str, *, wait: bool, progress: Progress) -> JsonObject:
        """Have an agent do something in a conversation of its own."""
        ...

    async def get_task(self, task: UUID) -> JsonObject:
        """Return where a task stands."""
        ...

    async def cancel_task(self, task: UUID) -> JsonObject:
        """Cancel a task."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalConversations:
    """The conversations of one store, run in this process.

    Attributes:
        agents: Makes the agent of a name, and the default one of None.
        rules: Makes the rules of a conversation in a folder.
        broker: Runs the tasks of named agents.
    """

    settings: Settings
    store: EventStore
    broker: TaskBroker
    agents: Callable[[str | None], AgentSpec]
    rules: Callable[[Path], GivenRules]

    async def start(
        self,
        message: str | None,
        *,
        agent: str | None,
        title: str | None,
        tags: dict[str, str],
        workspace: str,
        run: bool,
        progress: Progress,
    ) -> JsonObject:
        """Start a conversation, and run it where it has a message."""
        folder = Path(workspace)
        conversation = await AsyncConversation.create(
            self.agents(agent),
            workspace=folder,
            store=self.store,
            title=title,
            tags=tags,
            settings=self.settings,
            **self.rules(folder),
        )
        return await self._proceed(conversation, message, run=run and message is not None, progress=progress)

    async def send(self, id: UUID, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send a message where there is one, and run."""
        return await self._proceed(await self._open(id), message, run=run, progress=progress)

    async def fork(
        self,
        id: UUID,
        *,
        at: int | UUID | None,
        message: str | None,
        title: str | None,
        overrides: ForkOverrides,
        reason: str | None,
        run: bool,
        progress: Progress,
    ) -> JsonObject:
        """Fork a conversation, and send the fork a message where there is one."""
        source = await self._open(id)
        try:
            fork = await source.fork(at=at, title=title, overrides=overrides, reason=reason, actor="mcp")
        finally:
            await source.aclose()
        base = fork.state.base
        return {**await self._proceed(fork, message, run=run, progress=progress), "at": base}

    async def decide(
        self, id: UUID, call: str, *, approve: bool, reason: str, run: bool, progress: Progress
    ) -> JsonObject:
        """Approve or reject a waiting call, and continue with the run."""
        conversation = await self._open(id)
        try:
            await (
                conversation.approve(call, by="mcp") if approve else conversation.reject(call, reason=reason, by="mcp")
            )
        except BaseException:
            await conversation.aclose()
            raise
        return await self._proceed(conversation, None, run=run, progress=progress)

    async def compare(self, a: UUID, b: UUID) -> JsonObject:
        """Return what two conversations share and where they part."""
        one, other = await self._open(a), await self._open(b)
        async with one, other:
            return describe_comparison(await one.compare(other))

    async def list(self, *, text: str | None, status: Status | None, limit: int, cursor: str | None) -> JsonObject:
        """Return a page of conversations, most recently updated first."""
        return describe_page(await self.store.list(ConversationFilter(text=text, status=status), cursor, limit))

    async def delegate(self, agent: str, prompt: str, *, wait: bool, progress: Progress) -> JsonObject:
        """Have an agent do something in a conversation of its own."""
        self.agents(agent)
        task = await self.broker.submit(prompt, agent_name=agent)
        return describe_task(await (self.broker.wait(task) if wait else self.broker.poll(task)))

    async def get_task(self, task: UUID) -> JsonObject:
        """Return where a task stands."""
        return describe_task(await self.broker.poll(str(task)))

    async def cancel_task(self, task: UUID) -> JsonObject:
        """Cancel a task."""
        return describe_task(await self.broker.cancel(str(task)))

    async def _open(self, id: UUID) -> AsyncConversation:
        record = await self.store.get(id)
        folder = Path(str(record.config.get("workspace") or "."))
        return await AsyncConversation.open(id, store=self.store, settings=self.settings, **self.rules(folder))

    async def _proceed(
        self, conversation: AsyncConversation, message: str | None, *, run: bool, progress: Progress
    ) -> JsonObject:
        """Send, run, close, and return where the conversation stands."""
        try:
            if message is not None:
                await conversation.send_message(message)
            if run:
                await conversation.run(on_event=_Reporter(progress))
            return describe_state(conversation.id, conversation.state, answered=run)
        finally:
            # A client that cancels interrupts its run; what was done until then is recorded in spite of that.
            with anyio.CancelScope(shield=True):
                await conversation.aclose()


class _Reporter:
    """Reports a run's steps and tool calls as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps = 0

    async def __call__(self, update: Update) -> None:
        if isinstance(update, Delta):
            return
        match update.event:
            case ModelResponded():
                self._steps += 1
                await self._progress(self._steps, "the model answered")
            case ToolCalled() as called:
                await self._progress(self._steps, called.tool)
            case _:
                pass


def describe_state(id: UUID, state: State, *, answered: bool) -> JsonObject:
    """Return where a conversation stands, as a tool's result."""
    described: dict[str, Any] = {
        "id": str(id),
        "status": state.status,
        "answer": state.output if answered else None,
        "head": state.head,
    }
    if state.waiting:
        described["waiting"] = [
            {
                "call": call,
                "tool": state.calls[call].tool if call in state.calls else said.get("tool"),
                "arguments": state.calls[call].given if call in state.calls else {},
                "reason": said.get("reason", ""),
            }
            for call, said in state.waiting.items()
        ]
    return described


def describe_comparison(found: Comparison) -> JsonObject:
    """Return what two conversations share and where they part, as a tool's result."""
    sides = {
        name: {
            "id": str(side.id),
            "head": found.common + len(side.events),
            "own": len(side.events),
            "calls": len(side.calls),
        }
        for name, side in (("a", found.a), ("b", found.b))
    }
    files = [{"path": each.path, "change": each.change} for each in found.files]
    return {"common": found.common, **sides, "cost_usd": found.cost_usd, "files": files}


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


def cut_of(at: int | None, event: UUID | None) -> int | UUID | None:
    """Return where to fork.

    Raises:
        InvalidInput: Both are given.
    """
    if at is not None and event is not None:
        raise InvalidInput("give at or event, not both", hint="at is a number of events, event the id of the last one")
    return event if event is not None else at
