"""The operations behind the MCP tools on a server. They act as the caller; a run is a task for any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import anyio

from bough.conversation import AsyncConversation
from bough.conversation.fork.compare import compare
from bough.errors import InvalidInput, NotFound
from bough.events.model import UserMessage
from bough.server.access import Access
from bough.server.bodies.conversations import NewConversation, WorkspaceForm
from bough.server.conversations.conversation import Start, open_conversation, require_short, say, start
from bough.server.conversations.deciding import CallChoice, choose, decide
from bough.server.conversations.forking import ForkSpec, fork
from bough.server.conversations.starting import start_conversation
from bough.server.mcp.arguments import (
    CompareArguments,
    DecideArguments,
    DelegateArguments,
    ForkArguments,
    ListArguments,
    StartArguments,
    TaskArguments,
    TurnsArguments,
)
from bough.server.mcp.conversations import (
    McpConversations,
    Progress,
    StepReporter,
    describe_comparison,
    describe_page,
    describe_state,
    describe_task,
    find_failure,
    parse_cut,
    parse_filter,
    parse_overrides,
    parse_until,
    read_turns,
)
from bough.tasks import Task
from bough.tasks.state import STOPPED_STATES
from bough.types import JsonObject, new_id

_WAIT_SECONDS = 60.0


class ServedConversations(McpConversations[UUID]):
    """The conversations of one caller of a server. The type of an open conversation is its id."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def decide(self, arguments: DecideArguments, progress: Progress) -> JsonObject:
        """Decide on a waiting call, and continue the run."""
        access, id = self._access, arguments.conversation
        access.caller.require("write", "conversations", "approve")
        record = await access.store.get(id)
        state = await access.services.states.state_of(record)
        choice = CallChoice(**arguments.model_dump(exclude={"conversation"}))
        decision = await choose(access, record, state, choice)
        await decide(access, id, decision, run=True)
        return await self._describe(id, record.head, run=True, progress=progress)

    async def compare(self, arguments: CompareArguments, progress: Progress) -> JsonObject:
        """Return what two conversations share, and where they diverge."""
        self._access.caller.require("read", "conversations")
        return describe_comparison(
            await compare(self._access.store, arguments.a, arguments.b, until=parse_until(arguments))
        )

    async def list(self, arguments: ListArguments, progress: Progress) -> JsonObject:
        """Return a page of the tenant's conversations, most recently updated first."""
        self._access.caller.require("read", "conversations")
        return describe_page(await self._access.store.list(parse_filter(arguments), arguments.cursor, arguments.limit))

    async def turns(self, arguments: TurnsArguments, progress: Progress) -> JsonObject:
        """Return a page of a conversation's turns, in order."""
        self._access.caller.require("read", "conversations")
        return await read_turns(self._access.store, arguments)

    async def delegate(self, arguments: DelegateArguments, progress: Progress) -> JsonObject:
        """Delegate work to an agent of the server, in a new conversation."""
        access = self._access
        access.caller.require("write", "tasks")
        if arguments.agent not in access.services.agents.names():
            raise NotFound(f"no agent is named {arguments.agent!r:.80}", hint="the tool's schema lists the agents")
        spec, id = access.services.agents.agent_for(access.caller, arguments.agent), new_id()
        folder = access.services.workspaces.folder_for(access.caller, id, None)
        message = UserMessage.text(arguments.prompt)
        require_short(access, message)
        await start(
            access, Start(id=id, agent=spec, workspace=folder, message=message, run=True, about={"form": "ours"})
        )
        if arguments.wait:
            await self._describe(id, 0, run=True, progress=progress)
        run = await access.services.runs.latest(id)
        if run is None:
            raise InvalidInput("no run was started", hint="give a prompt")
        return describe_task(await access.services.runs.broker.poll(str(run.task)))

    async def get_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Return the state of a task."""
        self._access.caller.require("read", "tasks")
        return describe_task(await self._find(arguments.task))

    async def cancel_task(self, arguments: TaskArguments, progress: Progress) -> JsonObject:
        """Cancel a task."""
        self._access.caller.require("write", "tasks")
        task = await self._find(arguments.task)
        return describe_task(await self._access.services.runs.broker.cancel(task.id))

    @asynccontextmanager
    async def open_files(self, id: UUID, *, writes: bool) -> AsyncGenerator[AsyncConversation]:
        """Open a conversation of the caller, whose key needs the scope `files`."""
        if writes:
            self._access.caller.require("write", "conversations", "files")
        else:
            self._access.caller.require("read", "files")
        async with open_conversation(self._access, id) as conversation:
            yield conversation

    async def _create(self, arguments: StartArguments) -> UUID:
        self._access.caller.require("write", "conversations")
        if arguments.message is not None:  # checked before the conversation is created
            require_short(self._access, UserMessage.text(arguments.message))
        folder = None if arguments.workspace == "." else WorkspaceForm(working_dir=arguments.workspace)
        body = NewConversation(
            title=arguments.title,
            tags=arguments.tags,
            agent=arguments.agent,
            workspace=folder,
            budget=arguments.budget,
        )
        record, _ = await start_conversation(self._access, body, None)
        return record.id

    async def _open(self, id: UUID) -> UUID:
        self._access.caller.require("write", "conversations")
        return (await self._access.store.get(id)).id

    async def _fork(self, source: UUID, arguments: ForkArguments) -> tuple[UUID, int]:
        access = self._access
        options: JsonObject = {"at": parse_cut(arguments), "title": arguments.title, "reason": arguments.reason}
        options |= {"workspace": arguments.workspace, "moment": arguments.moment}
        spec = ForkSpec(overrides=parse_overrides(arguments, access.caller.owner), options=options)
        new_fork = await fork(access, await access.store.get(source), spec)
        return new_fork.record.id, new_fork.state.base

    async def _proceed(self, conversation: UUID, message: str | None, *, run: bool, progress: Progress) -> JsonObject:
        """Send a message and have it answered by a task that any process may run."""
        access, id = self._access, conversation
        record = await access.store.get(id)
        if message is not None:
            async with open_conversation(access, record) as opened:
                await say(access, opened, UserMessage.text(message), run=run)
        elif run:
            await access.services.runs.start(access.caller, id)
        return await self._describe(id, record.head, run=run, progress=progress)

    async def _describe(self, id: UUID, head: int, *, run: bool, progress: Progress) -> JsonObject:
        """Return the state of the conversation; with `run`, after its latest run has ended.

        Args:
            head: The head before the run, from which its steps are reported.
        """
        if run:
            await self._follow(id, head, progress)
        store = self._access.store
        state = await self._access.services.states.state_of(await store.get(id))
        failure = await find_failure(store, id, state, head) if run else None
        return describe_state(id, state, answered=run, failure=failure)

    async def _find(self, id: UUID) -> Task:
        """Return a task of the tenant.

        Raises:
            NotFound: The task does not exist, or belongs to another tenant; the error does not tell which.
        """
        try:
            task = await self._access.services.runs.broker.poll(str(id))
            await self._access.store.get(task.conversation or UUID(task.id))
        except NotFound:
            raise NotFound(f"there is no task {id}") from None
        return task

    async def _follow(self, id: UUID, head: int, progress: Progress) -> None:
        """Report the steps of the latest run until it stops or the server drains. A cancelled request interrupts it."""
        runs = self._access.services.runs
        latest = await runs.latest(id)
        if latest is None:
            return
        reporting = asyncio.create_task(self._report(id, head, progress))
        try:
            while True:
                task = await runs.wait(latest.task, _WAIT_SECONDS)
                if task.state in STOPPED_STATES or self._access.services.draining:
                    break
        except asyncio.CancelledError:
            # Shielded: the interrupt must be recorded although this request is cancelled.
            with anyio.CancelScope(shield=True):
                await runs.interrupt(id, by=self._access.caller.name, reason="the client cancelled", wait_seconds=5)
            raise
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _report(self, id: UUID, head: int, progress: Progress) -> None:
        report = StepReporter(progress)
        async for stored in self._access.store.subscribe(id, head - 1):
            await report(stored)
