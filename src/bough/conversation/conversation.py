"""A conversation: send messages, run the agent, fork. `AsyncConversation` is the core, `Conversation` its twin."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload
from uuid import UUID

from bough.agents.delegation_protocol import Delegation
from bough.conversation.agent import AgentLike, AgentOf, settle_default, spec_of
from bough.conversation.fork.compare import Comparison, compare, make_graft
from bough.conversation.fork.cut import Pending, Snap, Turn
from bough.conversation.fork.opened import fork_opened
from bough.conversation.fork.orphans import remove_made
from bough.conversation.fork.request import ForkOverrides, ForkRequest
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.open import Beginning, create_or_open, page_of, reopen
from bough.conversation.parts import Parts, require_delegation
from bough.conversation.result import T
from bough.conversation.rules import GivenRules, Rules
from bough.conversation.runs import ConversationRuns
from bough.events.record import ConversationFilter, ConversationRecord, Page
from bough.events.store import Cut, EventStore
from bough.execution.base import CodeExecutor
from bough.settings import Settings
from bough.types import require_type

if TYPE_CHECKING:
    from bough.conversation.remote.remote import RemoteConversation


class AsyncConversation(ConversationRuns[T]):
    """An open conversation whose agent answers with `T`.

    Create one with `create`, `open` or `fork`. Close it with `aclose` or `async with`.

    Every step is appended to the log first, so closing the conversation or losing the process loses nothing.
    """

    @overload
    @classmethod
    async def create(
        cls,
        agent: AgentOf[T] | None = None,
        *,
        server: str,
        api_key: str | None = None,
        workspace: str | Path = ".",
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        **given: Unpack[GivenRules],
    ) -> RemoteConversation[T]: ...

    @overload
    @classmethod
    async def create(
        cls,
        agent: AgentOf[T] | None = None,
        *,
        workspace: str | Path = ".",
        store: EventStore | str | None = None,
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        exist_ok: bool = False,
        broker: Delegation | None = None,
        server: None = None,
        api_key: str | None = None,
        **given: Unpack[GivenRules],
    ) -> AsyncConversation[T]: ...

    @classmethod
    async def create(
        cls,
        agent: AgentOf[T] | None = None,
        *,
        workspace: str | Path = ".",
        store: EventStore | str | None = None,
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        exist_ok: bool = False,
        broker: Delegation | None = None,
        server: str | None = None,
        api_key: str | None = None,
        **given: Unpack[GivenRules],
    ) -> AsyncConversation[T] | RemoteConversation[T]:
        """Start a conversation; its first event is durable on return.

        Args:
            agent: A spec, a PydanticAI agent, or a model string for the default agent with that model; None for the
                default agent, which works in the workspace and runs commands in the sandbox.
            workspace: The working folder of its tools and scripts.
            store: A store or its URL; None for the store of the settings.
            executor: Runs scripts; None for the agent's executor, or else that of the settings.
            exist_ok: Whether to open the conversation if `id` exists, with these arguments as in `open`. An agent
                that differs from the recorded one replaces it.
            broker: Runs the tasks of the agent's sub-agents; its log is the store.
            server: The address of an agent server that keeps and runs it. The result is then a `RemoteConversation`,
                whose methods take the same arguments.
            api_key: A key of that server; None for the environment variable `BOUGH_API_KEY`.
            given: What it may do and use; see `GivenRules`.

        Raises:
            NotSupported: An argument cannot be used together with `server`. Nothing was sent.
            InvalidInput: The workspace is not a folder, the agent's model, prompt or skills are invalid, it has
                sub-agents but there is no broker, or `exist_ok` is used without `id`.
            Conflict: `id` exists, and `exist_ok` is False.
            StoreError: The store cannot be opened or written.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, executor=executor, settings=settings, broker=broker)
            about: Any = {"workspace": workspace, "id": id, "title": title, "tags": tags, "exist_ok": exist_ok}
            return await RemoteConversation.create(agent, server=server, api_key=api_key, **about, **given)
        require_type(tags, (Mapping, NoneType), "tags", 'for example {"team": "sales"}')
        settings = settings or Settings.load()
        spec, given = settle_default(agent, executor, settings, given)
        new = Beginning(agent=spec, workspace=workspace, id=id, title=title, tags=dict(tags or {}))
        if exist_ok:
            return cls(await create_or_open(new, store, executor, settings, broker, **given))
        rules = Rules.build(settings, **given)
        return cls(await new.start(store, executor, settings, rules, broker))

    @overload
    @classmethod
    async def open(
        cls, id: UUID | str, *, server: str, api_key: str | None = None, **given: Unpack[GivenRules]
    ) -> RemoteConversation[T]: ...

    @overload
    @classmethod
    async def open(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        agent: AgentOf[T] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        broker: Delegation | None = None,
        server: None = None,
        api_key: str | None = None,
        workspace: str | Path | None = None,
        **given: Unpack[GivenRules],
    ) -> AsyncConversation[T]: ...

    @classmethod
    async def open(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        agent: AgentOf[T] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        broker: Delegation | None = None,
        server: str | None = None,
        api_key: str | None = None,
        workspace: str | Path | None = None,
        **given: Unpack[GivenRules],
    ) -> AsyncConversation[T] | RemoteConversation[T]:
        """Open an existing conversation. Reads the end of its log, from a kept state on.

        Args:
            id: Its id, a unique start or end of it, or `-` for the most recent one.
            agent: The agent to continue with; None for the recorded one. Required if that agent has Python tools or
                skills of its own: a log has their names, not their code.
            executor: As in `create`. A conversation that was started in the sandbox stays in it.
            broker: As in `create`, like `server` and `api_key`. A server needs the complete id.
            workspace: The folder of an imported conversation that is opened for the first time; None creates an empty
                one in bough's home.
            given: Applied in addition to the recorded rules. Pass your own hooks, secrets and analyzers again: a log
                only has their names.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The recorded agent cannot be rebuilt from its record, or has sub-agents and no broker.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, agent=agent, executor=executor, settings=settings, broker=broker)
            require_absent(workspace=workspace)
            return await RemoteConversation.open(id, server=server, api_key=api_key, **given)
        settings = settings or Settings.load()
        rules = Rules.build(settings, **given)
        parts = await reopen(id, store, agent, executor, settings, rules, broker, workspace)
        async with parts.environment.close_on_failure():
            require_delegation(parts.agent.spec, broker)
        return cls(parts)

    @classmethod
    async def list(
        cls,
        store: EventStore | str | None = None,
        *,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> Page:
        """Return a page of the store's or of a server's conversations, most recently updated first."""
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, settings=settings)
            where: Any = {"server": server, "api_key": api_key}
            return await RemoteConversation.list(filter=filter, cursor=cursor, limit=limit, **where)
        return await page_of(store, filter, cursor, limit, settings or Settings.load())

    async def fork(
        self,
        *,
        id: UUID | None = None,
        agent: AgentLike | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        reset_metrics: bool = True,
        at: Cut | Turn | None = None,
        snap: Snap = "exact",
        pending: Pending = "close",
        overrides: ForkOverrides | None = None,
        inherit_tags: bool = True,
        workspace: WorkspacePolicy = "shared",
        secrets: Literal["reference", "none"] = "reference",
        reason: str | None = None,
        actor: str | None = None,
        ephemeral: bool = False,
    ) -> AsyncConversation[T]:
        """Fork the conversation and return the fork. This one is not changed, blocked or stopped.

        Source and fork share the rows of their common events, so the cost does not depend on the length of the log. No
        call made before the cut ever runs in the fork. The rules at the cut and the present ones both hold in the fork:
        a fork never widens them.

        Args:
            id: The same id with the same arguments returns the same fork.
            agent: Replaces the agent.
            reset_metrics: Whether the fork's usage starts at 0. Usage before the cut is kept as inherited.
            at: The number of events to keep, the id of the last one to keep, or `Turn(n)`; None keeps all.
            snap: `turn` moves the cut back to the end of a turn.
            pending: What happens to calls that are open at the cut: `close` closes them in the fork, `drop` moves the
                cut before the response that made them, `carry` lets those that have not started wait for an approval.
            overrides: What is different in the fork: model, prompt, stricter rules.
            workspace: `shared`, `readonly`, `copy` or `worktree`. Files are the present ones, not those at the cut.
            secrets: `none` withholds all secrets from the fork's scripts.
            actor: Who forks, for the record.
            ephemeral: Whether closing the fork deletes it and the files made for it.

        Raises:
            InvalidInput: The cut is negative or beyond the head, the new agent lacks a tool that a carried call
                needs, or an override would widen a rule.
            NotFound: `at` names an event that is not in this log.
            Conflict: `id` belongs to another conversation.

        Source: OpenHands `Conversation.fork()`.
        """
        request = ForkRequest(
            id=id,
            agent=spec_of(agent),
            title=title,
            tags=tags,
            reset_metrics=reset_metrics,
            at=at,
            snap=snap,
            pending=pending,
            overrides=overrides or {},
            inherit_tags=inherit_tags,
            workspace=workspace,
            secrets=secrets,
            reason=reason,
            actor=actor,
            ephemeral=ephemeral,
        )
        await self._settle_abandoned()
        await self._journal.catch_up()  # a stricter rule of another process must hold in the fork
        if request.agent is None and "model" not in request.overrides:
            self._agent.adopt_recorded()  # the fork must use the model that its log will record
        parts = Parts(
            journal=self._journal,
            record=self._record,
            agent=self._agent.builder,
            rules=self._in_force,
            environment=self._environment,
        )
        fork_parts, written = await fork_opened(parts, request)
        new = type(self)(fork_parts)
        new._temporary = written.workspace if ephemeral else None
        return new

    async def compare(self, other: AsyncConversation[Any]) -> Comparison:
        """Compare this conversation (`a`) with another one of the same store (`b`)."""
        return await compare(self.store, self.id, other.id, workspaces=(self.workspace, other.workspace))

    async def graft(
        self, source: AsyncConversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Append a message that describes what happened in another conversation. The histories are not merged.

        Args:
            start: The first event to describe; None for the first one that the two conversations do not share.
            stop: The event after the last one to describe; None for the end.
            summary: Used instead of a description of the events.

        Raises:
            InvalidInput: There are no events to describe.
        """
        await self._journal.append(*await make_graft(self.id, source.store, source.id, start, stop, summary))

    async def lineage(self) -> list[ConversationRecord]:
        """Return the conversations this one descends from, itself last."""
        return [*await self.store.ancestry(self.id), await self.store.get(self.id)]

    async def aclose(self) -> None:
        """Interrupt a run in progress and release all resources, even if releasing one of them fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as releases:  # last in, first out
            releases.push_async_callback(self._environment.release)
            releases.push_async_callback(self._log.aclose)
            releases.push_async_callback(self._remove_temporary)
            releases.push_async_callback(self._agent.builder.aclose)
            releases.push_async_callback(self._run_end_hooks)
            if self._run is not None:
                await self.interrupt()
            await self._settle_abandoned()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run_end_hooks(self) -> None:
        ended = await self._rules.guard(self.id, self.workspace).on_end()
        if ended.events:
            await self._log.append(*ended.events)

    async def _remove_temporary(self) -> None:
        """Delete an ephemeral fork and the files made for it, unless another conversation works in them."""
        if self._temporary is not None:
            await self.store.delete(self.id)
            if self._temporary.made is not None:
                await remove_made(self.store, self._environment.settings.home, [self._record])
