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
    """A conversation in use, whose agent answers with `T`.

    Make one with `create`, `open` or `fork`; close it with `aclose` or `async with`.

    Everything it does is appended to its log first; closing it, or losing the process, loses nothing.
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
            agent: A spec; a PydanticAI agent, which is run as it is; a model string for the default agent with that
                model; None for the default agent. That one works in the workspace, and runs commands in the sandbox.
            workspace: The working folder of its tools and scripts.
            store: A store, or the URL of one; None takes the settings' store.
            executor: Runs scripts; None takes the agent's, then the settings' one.
            exist_ok: Where `id` is taken, open that conversation with what is given, as `open` does; an agent that
                differs from the recorded one replaces it.
            broker: Runs the tasks of the agent's sub-agents; its log is the store.
            server: The address of an agent server that keeps and runs it. The result is then a `RemoteConversation`,
                whose methods take the same arguments.
            api_key: A key of that server; None takes `BOUGH_API_KEY`.
            given: What it may do and use: see `GivenRules`.

        Raises:
            NotSupported: Something is given together with `server` that cannot be said over HTTP; nothing was sent.
            InvalidInput: The workspace is not a folder, the agent's model, prompt or skills are not right, it has
                sub-agents and no broker runs them, or `exist_ok` comes without `id`.
            Conflict: `id` is taken, and `exist_ok` is not given.
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
        """Open a conversation that exists, to continue with it. Reads the end of its log, from a kept state on.

        Args:
            id: Its id, a unique start or end of it, or `-` for the most recent one.
            agent: The agent to continue with; None takes the recorded one. Needed where that one has Python tools or
                skills of its own, since a log holds their names and not their code.
            executor: As in `create`; a conversation that was started in the sandbox stays in it.
            broker: As in `create`; `server` and `api_key` too, and a server's conversations have whole ids only.
            workspace: Of what was imported and is opened for the first time; None makes an empty folder in the home.
            given: Together with the recorded rules, never instead of them. Hooks, secrets and analyzers of your own
                must be given again, since a log only names them.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The recorded agent cannot be rebuilt from its record alone, or has sub-agents and nobody runs
                them.
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
        """Branch off and return the new conversation; this one is not changed, blocked or stopped.

        The shared events are the same rows, so the cost does not depend on how many they are. No call issued before
        the cut ever runs in the fork. The rules of the cut and the present ones both continue to hold in the fork: they
        are never widened by it.

        Args:
            id: The same id with the same arguments returns the same fork.
            agent: Replaces the agent.
            reset_metrics: The fork's own usage starts at 0; what was used before the cut stays as inherited.
            at: How many events to keep, or the id of the last one to keep, or `Turn(n)`; None keeps all.
            snap: `turn` moves the cut back to where a turn ended.
            pending: Calls that are open at the cut are closed in the fork (`close`), the cut moves before the
                response that made them (`drop`), or those that have not started wait for an approval (`carry`).
            overrides: What the fork does otherwise: model, prompt, stricter rules.
            workspace: `shared`, `readonly`, `copy` or `worktree`; files are those of now, not those of the cut.
            secrets: `none` gives the fork's scripts none.
            actor: Who forks, for the record.
            ephemeral: Closing the fork deletes it, with the files that were made for it.

        Raises:
            InvalidInput: The cut is negative or beyond the head, the new agent lacks a tool that a carried call
                needs, or an override would widen a rule.
            NotFound: `at` names an event that this log does not have.
            Conflict: `id` is taken by something else.

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
        await self._journal.catch_up()  # a stricter rule that somebody set meanwhile holds in the fork
        if request.agent is None and "model" not in request.overrides:
            self._agent.adopt_recorded()  # so that the fork asks the model that its log will name
        parts = Parts(
            journal=self._journal,
            record=self._record,
            agent=self._agent.builder,
            rules=self._in_force,
            environment=self._environment,
        )
        fork, files = await fork_opened(parts, request)
        new = type(self)(fork)
        new._temporary = files if ephemeral else None
        return new

    async def compare(self, other: AsyncConversation[Any]) -> Comparison:
        """Return what this conversation (`a`) and another one of the same store (`b`) share, and where they differ."""
        return await compare(self.store, self.id, other.id, workspaces=(self.workspace, other.workspace))

    async def graft(
        self, source: AsyncConversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Tell this conversation what happened in another one, with its origin on record; histories are not merged.

        Args:
            start: Of the events to tell, as text; None starts where the two conversations part.
            summary: Told instead of the events.

        Raises:
            InvalidInput: There is nothing to tell.
        """
        await self._journal.append(*await make_graft(self.id, source.store, source.id, start, stop, summary))

    async def lineage(self) -> list[ConversationRecord]:
        """Return the conversations this one descends from, itself last."""
        return [*await self.store.ancestry(self.id), await self.store.get(self.id)]

    async def aclose(self) -> None:
        """Interrupt a run in progress and let go of what this object holds, all of it even where a part of that fails.

        Closing twice is fine.
        """
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

    # How it does it.

    async def _run_end_hooks(self) -> None:
        ended = await self._rules.guard(self.id, self.workspace).on_end()
        if ended.events:
            await self._log.append(*ended.events)

    async def _remove_temporary(self) -> None:
        """Delete an ephemeral fork, with the files that were made for it unless another conversation works in them."""
        if self._temporary is not None:
            await self.store.delete(self.id)
            if self._temporary.made is not None:
                await remove_made(self.store, self._environment.settings.home, [self._record])
