"""What the tools do on a server: everything as its caller, and every run as a task that any process may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio

from bough.conversation import ForkOverrides
from bough.conversation.fork.compare import compare
from bough.conversation.run.decision import CallDecision
from bough.errors import InvalidInput, NotFound
from bough.events.model import ModelResponded, ToolCalled, UserMessage
from bough.events.record import ConversationFilter, Status
from bough.server.access import Access
from bough.server.conversations.conversation import Start, opened, say, start
from bough.server.conversations.deciding import decide
from bough.server.forms.conversations import NewConversation, WorkspaceForm
from bough.server.mcp.conversations import Progress, describe_comparison, describe_page, describe_state, describe_task
from bough.server.starting import start_conversation
from bough.tasks import Task, TaskState
from bough.tasks.state import TERMINAL_STATES
from bough.types import JsonObject, new_id

_WAIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class ServedConversations:
    """The conversations of one caller of a server."""

    access: Access

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
        self.access.caller.require("write", "conversations")
        folder = None if workspace == "." else WorkspaceForm(working_dir=workspace)
        runs = run and message is not None
        body = NewConversation(title=title, tags=tags, agent=agent, workspace=folder, initial_message=message, run=runs)
        record, _ = await start_conversation(self.access, body, None)
        return await self._proceed(record.id, 0, run=runs, progress=progress)

    async def send(self, id: UUID, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send a message where there is one, and run."""
        self.access.caller.require("write", "conversations")
        head = (await self.access.store.get(id)).head
        if message is not None:
            async with opened(self.access, id) as conversation:
                await say(self.access, conversation, UserMessage.text(message), run=run)
        elif run:
            await self.access.services.runs.start(self.access.caller, id)
        return await self._proceed(id, head, run=run, progress=progress)

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
        access = self.access
        access.caller.require("write", "conversations")
        if "model" in overrides:
            access.services.agents.require_model(overrides["model"], None)
        named: dict[str, Any] = {"title": title, "overrides": overrides, "reason": reason}
        async with opened(access, id) as source:
            fork = await source.fork(at=at, actor=access.caller.name, **named)
            base = fork.state.base
            await fork.aclose()
        if message is None and not run:
            return {**await self._proceed(fork.id, base, run=False, progress=progress), "at": base}
        return {**await self.send(fork.id, message, run=run, progress=progress), "at": base}

    async def decide(
        self, id: UUID, call: str, *, approve: bool, reason: str, run: bool, progress: Progress
    ) -> JsonObject:
        """Approve or reject a waiting call, and continue with the run."""
        self.access.caller.require("write", "conversations", "approve")
        head = (await self.access.store.get(id)).head
        by = self.access.caller.name
        decision = (
            CallDecision(approve=(call,), by=by) if approve else CallDecision(reject=(call,), reason=reason, by=by)
        )
        await decide(self.access, id, decision, run=run)
        return await self._proceed(id, head, run=run, progress=progress)

    async def compare(self, a: UUID, b: UUID) -> JsonObject:
        """Return what two conversations share and where they part."""
        return describe_comparison(await compare(self.access.store, a, b))

    async def list(self, *, text: str | None, status: Status | None, limit: int, cursor: str | None) -> JsonObject:
        """Return a page of the tenant's conversations, most recently updated first."""
        return describe_page(await self.access.store.list(ConversationFilter(text=text, status=status), cursor, limit))

    async def delegate(self, agent: str, prompt: str, *, wait: bool, progress: Progress) -> JsonObject:
        """Have an agent of the server do something in a conversation of its own."""
        access = self.access
        access.caller.require("write", "tasks")
        if agent not in access.services.agents.names():
            raise NotFound(f"no agent named {agent!r:.80}", hint="see the tool's schema")
        spec, id = access.services.agents.agent_for(access.caller, agent), new_id()
        folder = access.services.workspaces.folder_for(access.caller, id, None)
        message = UserMessage.text(prompt)
        await start(
            access, Start(id=id, agent=spec, workspace=folder, message=message, run=True, about={"form": "ours"})
        )
        if wait:
            await self._proceed(id, 0, run=True, progress=progress)
        run = await access.services.runs.latest(id)
        if run is None:
            raise InvalidInput("nothing was started", hint="give a prompt")
        return describe_task(await access.services.runs.broker.poll(str(run.task)))

    async def get_task(self, task: UUID) -> JsonObject:
        """Return where a task stands."""
        self.access.caller.require("read", "tasks")
        return describe_task(await self._find(task))

    async def cancel_task(self, task: UUID) -> JsonObject:
        """Cancel a task."""
        self.access.caller.require("write", "tasks")
        found = await self._find(task)
        return describe_task(await self.access.services.runs.broker.cancel(found.id))

    async def _find(self, id: UUID) -> Task:
        """Return a task of the tenant.

        Raises:
            NotFound: There is none, or it is another tenant's: both look the same.
        """
        try:
            task = await self.access.services.runs.broker.poll(str(id))
            await self.access.store.get(task.conversation or UUID(task.id))
        except NotFound:
            raise NotFound(f"there is no task {id}") from None
        return task

    async def _proceed(self, id: UUID, head: int, *, run: bool, progress: Progress) -> JsonObject:
        """Wait for the run, report its steps, and return where the conversation stands."""
        if run:
            await self._follow(id, head, progress)
        state = await self.access.services.states.state_of(await self.access.store.get(id))
        return describe_state(id, state, answered=run)

    async def _follow(self, id: UUID, head: int, progress: Progress) -> None:
        runs = self.access.services.runs
        latest = await runs.latest(id)
        if latest is None:
            return
        reporting = asyncio.create_task(self._report(id, head, progress))
        try:
            while not _is_over(await runs.wait(latest.task, _WAIT_SECONDS)) and not self.access.services.draining:
                pass
        except asyncio.CancelledError:
            # A client that cancels interrupts the run it started; what was done until then is recorded.
            with anyio.CancelScope(shield=True):
                await runs.interrupt(id, by=self.access.caller.name, reason="the client cancelled", wait_seconds=5)
            raise
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _report(self, id: UUID, head: int, progress: Progress) -> None:
        steps = 0
        async for stored in self.access.store.subscribe(id, head - 1):
            match stored.event:
                case ModelResponded():
                    steps += 1
                    await progress(steps, "the model answered")
                case ToolCalled() as called:
                    await progress(steps, called.tool)
                case _:
                    pass


def _is_over(task: Task) -> bool:
    return task.state in TERMINAL_STATES or task.state is TaskState.INPUT_REQUIRED
