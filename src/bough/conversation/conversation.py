"""A conversation: send messages, run the agent, fork. `AsyncConversation` is the core, `Conversation` its twin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Self, Unpack
from uuid import UUID

from bough.agents.delegation import Delegation
from bough.cancellation import is_cancelled
from bough.config import Settings
from bough.conversation.agent import AgentLike, AgentOf, spec_of
from bough.conversation.control import ConversationControl
from bough.conversation.fork.compare import Comparison, compare, grafted
from bough.conversation.fork.cut import Pending, Snap, Turn
from bough.conversation.fork.fork import ForkOverrides, ForkRequest, Source
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.listeners import OnEvent
from bough.conversation.message import checked as message_event
from bough.conversation.message import events_of, refuse_untrusted, said
from bough.conversation.open import Beginning, create_or_open, page_of, reopened
from bough.conversation.parts import Parts, require_delegation
from bough.conversation.result import RunResult, T
from bough.conversation.rules import GivenRules, Rules, RulesOfRun
from bough.conversation.run import ask
from bough.conversation.run.approval import Decisions
from bough.conversation.run.run import Runner
from bough.conversation.run.step import NodeListener
from bough.errors import Conflict, PermissionDenied
from bough.events.model import Event, PauseRequested, UsageAdded, UserMessage
from bough.events.record import ConversationFilter, ConversationRecord, Page
from bough.events.store import Cut, EventStore
from bough.execution.base import CodeExecutor
from bough.guard import Limits


class AsyncConversation(ConversationControl[T]):
    """A conversation in use, whose agent answers with `T`.

    Make one with `create`, `open` or `fork`; close it with `aclose` or `async with`.

    Everything it does is appended to its log first; closing it, or losing the process, loses nothing.
    """

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
    ) -> AsyncConversation[T]:
        """Start a conversation; its first event is durable on return.

        Args:
            agent: A spec; a PydanticAI agent, which is run as it is; a model string for the default agent with that
                model; None for the default agent.
            workspace: The working folder of its tools and scripts.
            store: A store, or the URL of one; None takes the settings' store.
            executor: Runs scripts; None takes the agent's, then the settings' one.
            exist_ok: Where `id` is taken, open that conversation with what is given, as `open` does; an agent that
                differs from the recorded one replaces it.
            broker: Runs the tasks of the agent's sub-agents; its log is the store.
            server: The address of an agent server that keeps and runs it: what is returned has the same names then, and
                is a `RemoteConversation`.
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
            remote, require_absent = _remote()
            require_absent(store=store, executor=executor, settings=settings, broker=broker)
            about: Any = {"workspace": workspace, "id": id, "title": title, "tags": tags, "exist_ok": exist_ok}
            return await remote.create(agent, server=server, api_key=api_key, **about, **given)
        settings = settings or Settings.load()
        new = Beginning(agent=agent, workspace=workspace, id=id, title=title, tags=dict(tags or {}))
        if exist_ok:
            return cls(await create_or_open(new, store, executor, settings, broker, **given))
        rules = Rules.given(settings, **given)
        return cls(await new.started(store, executor, settings, rules, broker))

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
    ) -> AsyncConversation[T]:
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
            remote, require_absent = _remote()
            here = {"store": store, "agent": agent, "executor": executor, "settings": settings, "workspace": workspace}
            require_absent(broker=broker, **here)
            return await remote.open(id, server=server, api_key=api_key, **given)
        settings = settings or Settings.load()
        rules = Rules.given(settings, **given)
        parts = await reopened(id, store, agent, executor, settings, rules, broker, workspace)
        async with parts.environment.kept_on_success():
            require_delegation(parts.blueprint.spec, broker)
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
            remote, require_absent = _remote()
            require_absent(store=store, settings=settings)
            return await remote.list(server=server, api_key=api_key, filter=filter, cursor=cursor, limit=limit)
        return await page_of(store, filter, cursor, limit, settings or Settings.load())

    async def send_message(self, message: str | UserMessage, *, sender: str = "user") -> None:
        """Append a message and the skills it activates, durable on return. A run in progress sees it at its next step.

        What a person says while calls wait answers them: they are rejected, and the model is told the text as the
        reason.

        Raises:
            InvalidInput: The message is not text and no `UserMessage`, is empty, or too long.
            PermissionDenied: A hook refuses it, or it calls a skill by `/name` that is not trusted; it is not sent.
        """
        events = await self.prepare_message(message, sender=sender)
        first = events[0]
        if self.state.waiting and isinstance(first, UserMessage) and first.sender == "user":
            await Decisions(self._journal).reply(events, first.plain, by=first.sender)
        else:
            await self._journal.append(*events)

    async def prepare_message(self, message: str | UserMessage, *, sender: str = "user") -> list[Event]:
        """Return what sending a message appends, the message first, secrets masked; nothing is appended.

        Raises:
            InvalidInput: The message is not text and no `UserMessage`, is empty, or too long.
            PermissionDenied: A hook refuses it, which is recorded.
        """
        checked = message_event(message, sender=sender)
        if (refused := refuse_untrusted(checked, self.skills)) is not None:
            error, record = refused
            await self._journal.append(*record)
            raise error
        verdict = await self._rules.guard(self.id, self.workspace).on_prompt(checked.plain)
        if verdict.decision == "deny":
            await self._journal.append(*verdict.events)
            raise PermissionDenied(f"a hook refused the message: {verdict.reason}", hint="rephrase it")
        # Masked here: whoever appends these does not do so by this journal.
        return list(self._journal.mask([*self._events_of(checked), *self._in_force.recorded(), *said(verdict)]))

    async def run(
        self,
        *,
        on_event: OnEvent | None = None,
        on_node: NodeListener | None = None,
        limits: Limits | None = None,
    ) -> RunResult[T]:
        """Run until the model has answered everything, and return how it ended.

        Nothing to do: returns at once with 0 steps. After a crash it continues where the log ends: recorded responses
        are not asked for again, finished tools do not run again, a call that had started is closed as interrupted.

        Args:
            on_event: A function, or a coroutine function, called for durable events and pieces of text in order, all
                of them before this returns. One that raises is reported to the event loop and not called again.
            on_node: Awaited for every node of PydanticAI's graph before that node runs.
            limits: Bounds of this run alone, beside those of the conversation.

        Raises:
            Conflict: It is being run elsewhere.
            ModelError: The model failed; the conversation is in `error` and can be run again.
            StoreError: An event could not be written.
        """
        if self._run is not None:
            raise Conflict("the conversation is already running", hint="wait for that run, or interrupt it")
        if on_event is not None:
            async with self._journal.call_for_updates(on_event):
                return await self.run(on_node=on_node, limits=limits)
        self._running = runner = self._runner(limits, on_node)
        self._run = asyncio.create_task(runner.run(), name=f"run {self.id}")
        try:
            self._result = await self._run
        except asyncio.CancelledError:
            if not runner.was_interrupted or is_cancelled():
                raise
            self._result = runner.result()
        finally:
            self._run.cancel()
            self._run = self._running = None
        return self._result

    async def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation, which never sees it.

        The log has what it used, and neither question nor answer.

        Raises:
            ModelError: The model could not answer.
        """
        await self._journal.catch_up()
        model = self._resolved(self.agent)
        messages = (await self._journal.render()).messages()
        answer, usage = await ask.ask(model, messages, question, instructions=self.state.instructions)
        await self._journal.append(UsageAdded(purpose="ask", model=model.model_name, usage=usage))
        return answer

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now: tools and scripts are killed as a tree. The conversation is `paused` and can be resumed.

        Returns when a run of this object has ended. One of another object, in whatever process, is asked through the
        log and ends as soon as it has read that; nothing happens where none runs.
        """
        if self._run is not None and self._running is not None:
            self._running.stop("interrupt")
            self._run.cancel()  # one that has not begun yet knows no task of its own to stop
            await asyncio.wait({self._run})  # which, unlike gather, a tool of that very run may call
            return
        await self._journal.catch_up()
        if self.status == "running":
            await self._journal.append(PauseRequested(by=by, reason=reason, now=True))

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

        Source: seed 001, `Conversation.fork()`.
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
        await self._journal.catch_up()  # a stricter rule that somebody set meanwhile holds in the fork
        parts = Parts(
            journal=self._journal,
            record=self._record,
            blueprint=self._agent.blueprint,
            rules=self._rules,
            environment=self._environment,
        )
        made = await Source(parts=parts).branch(request)
        new = type(self)(made.parts)
        new._temporary = made.workspace if ephemeral else None
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
        await self._journal.append(*await grafted(self.id, source.store, source.id, start, stop, summary))

    async def lineage(self) -> list[ConversationRecord]:
        """Return the conversations this one descends from, itself last."""
        return [*await self.store.ancestry(self.id), await self.store.get(self.id)]

    async def condense(self) -> bool:
        """Condense what the model sees now, and say whether there was something to condense.

        Raises:
            Conflict: It is being run.
        """
        return await self._runner().condense()

    async def aclose(self) -> None:
        """Interrupt a run in progress and let go of what this object holds, all of it even where a part of that fails.

        Closing twice is fine.
        """
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as releases:  # last in, first out
            releases.push_async_callback(self._environment.release)
            releases.push_async_callback(self._journal.aclose)
            releases.push_async_callback(self._remove_temporary)
            releases.push_async_callback(self._agent.blueprint.aclose)
            releases.push_async_callback(self._run_end_hooks)
            if self._run is not None:
                await self.interrupt()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # How it does it.

    async def _leave(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Interrupt a run: how it ended is told then, unlike where it is cancelled."""
        await self.interrupt()

    def _follow(self, watch: Callable[[Event], None]) -> Callable[[UserMessage], None]:
        """Have `watch` told of every event as it happens, and return what brings a message in at that very place.

        For replays: hooks are not asked, and the message is durable with what happens next.
        """
        self._journal.watchers.append(watch)
        return lambda message: self._journal.stage(*self._events_of(message))

    def _events_of(self, message: UserMessage) -> list[Event]:
        return events_of(message, self.state, self._triggers, self.skills, self._agent.blueprint.toolset)

    async def _run_end_hooks(self) -> None:
        ended = await self._rules.guard(self.id, self.workspace).on_end()
        if ended.events:
            await self._journal.append(*ended.events)

    async def _remove_temporary(self) -> None:
        """Delete an ephemeral fork, with the files that were made for it."""
        if self._temporary is not None:
            await self.store.delete(self.id)
            await self._temporary.remove()

    def _runner(self, limits: Limits | None = None, on_node: NodeListener | None = None) -> Runner:
        return Runner(
            self._journal,
            self._agent,
            self._environment,
            self._in_force if limits is None else RulesOfRun(self._in_force, limits),
            root=self._record.root,
            delegation=self._environment.delegation,
            on_node=on_node,
        )


def _remote() -> tuple[Any, Callable[..., None]]:
    """Return what is a conversation of a server, and the check that nothing local is given beside one.

    Untyped on purpose: callers get the same names, whichever of the two it is.
    """
    from bough.conversation.remote.bodies import require_absent
    from bough.conversation.remote.remote import RemoteConversation

    return RemoteConversation, require_absent
