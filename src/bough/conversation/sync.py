"""The synchronous `Conversation`, which runs an asynchronous one in the event loop of `bough.portal`."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, Unpack, cast, overload
from uuid import UUID

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, AgentOf
from bough.conversation.base import describe
from bough.conversation.bisect import Bisection
from bough.conversation.check import CHECK_SECONDS
from bough.conversation.conversation import AsyncConversation
from bough.conversation.explore import Exploration, OnBranch, Variant
from bough.conversation.fork.compare import Comparison
from bough.conversation.fork.file_changes import FileChanges, FileTree
from bough.conversation.fork.files import Conflicts
from bough.conversation.fork.request import ForkOptions
from bough.conversation.log.journal import Update
from bough.conversation.log.listeners import OnEvent
from bough.conversation.log.state import State
from bough.conversation.log.turns import Turn, TurnRecord
from bough.conversation.message import add_inputs
from bough.conversation.result import OutputT, RunResult, T, WaitingCall
from bough.conversation.rules import GivenRules
from bough.events.content import Source
from bough.events.erasure.receipt import ErasureReceipt
from bough.events.model import Event, FilePart, ImagePart, Usage, UserMessage
from bough.events.record import (
    Ancestry,
    ConversationFilter,
    ConversationRecord,
    Order,
    Page,
    SearchPage,
    Status,
    StoredEvent,
)
from bough.events.store import Cut, EventStore, StoreAdmin
from bough.execution.base import CodeExecutor
from bough.guard import Limits, Policy
from bough.portal import Portal, portal
from bough.settings import Settings
from bough.skills import SkillRegistry
from bough.types import JsonObject, require_type

if TYPE_CHECKING:
    from bough.conversation.remote.remote import RemoteConversation

_U = TypeVar("_U")
_Core: TypeAlias = "AsyncConversation[T] | RemoteConversation[T]"


class Conversation(Generic[T]):
    """An open conversation for code without `await`, with the methods of `AsyncConversation`.

    The constructor starts a conversation; `Conversation.open` opens an existing one. Close it with `close` or `with`.
    The end of the program closes it too: a run in progress is interrupted and can be resumed.

    In a thread with a running event loop, such as a notebook, its methods block that loop. In asynchronous tools they
    raise `Unavailable`; use an `AsyncConversation` there.
    """

    _is_detached = False
    """Whether the conversation closes itself after its run, so that dropping this object does not interrupt the run."""

    def __init__(
        self,
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
        **rules: Unpack[GivenRules],
    ) -> None:
        self._start(
            cast("Callable[..., Awaitable[_Core[T]]]", AsyncConversation.create),
            agent,
            workspace=workspace,
            store=store,
            id=id,
            title=title,
            tags=tags,
            executor=executor,
            settings=settings,
            exist_ok=exist_ok,
            broker=broker,
            server=server,
            api_key=api_key,
            **rules,
        )

    @classmethod
    def open(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        agent: AgentOf[OutputT] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        broker: Delegation | None = None,
        server: str | None = None,
        api_key: str | None = None,
        workspace: str | Path | None = None,
        read_only: bool = False,
        **rules: Unpack[GivenRules],
    ) -> Conversation[OutputT]:
        """Open an existing conversation; see `AsyncConversation.open`."""
        new = cast("Conversation[Any]", cls.__new__(cls))
        options: Any = {"store": store, "server": server, "api_key": api_key, "broker": broker, "workspace": workspace}
        options["read_only"] = read_only
        new._start(AsyncConversation.open, id, agent=agent, executor=executor, settings=settings, **options, **rules)
        return new

    @classmethod
    def list(
        cls,
        store: EventStore | str | None = None,
        *,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> Page:
        """Return a page of a store's or a server's conversations; see `AsyncConversation.list`."""
        options: Any = {"order": order, "settings": settings, "server": server, "api_key": api_key}
        return portal().call(AsyncConversation.list, store, filter=filter, cursor=cursor, limit=limit, **options)

    @classmethod
    def search(
        cls,
        text: str,
        *,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> SearchPage:
        """Return messages and answers that match, the newest first; see `AsyncConversation.search`."""
        options: Any = {"store": store, "settings": settings, "server": server, "api_key": api_key}
        criteria: Any = {"tags": tags, "since": since, "project": project}
        return portal().call(AsyncConversation.search, text, limit=limit, cursor=cursor, **criteria, **options)

    @classmethod
    def delete(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """Delete a conversation; see `AsyncConversation.delete`."""
        options: Any = {"store": store, "settings": settings, "server": server, "api_key": api_key}
        portal().call(AsyncConversation.delete, id, **options)

    @classmethod
    def erase(
        cls,
        id: UUID | str,
        *,
        forks: bool = False,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ErasureReceipt:
        """Delete a conversation so that no byte of its content remains; see `AsyncConversation.erase`."""
        options: Any = {"store": store, "settings": settings, "server": server, "api_key": api_key}
        return portal().call(AsyncConversation.erase, id, forks=forks, **options)

    @classmethod
    def export(
        cls,
        id: UUID | str,
        path: str | Path,
        *,
        exist_ok: bool = False,
        salvage: bool = False,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ConversationRecord:
        """Write a conversation to a bundle; see `AsyncConversation.export`."""
        options: Any = {"store": store, "settings": settings, "server": server, "api_key": api_key}
        return portal().call(AsyncConversation.export, id, path, exist_ok=exist_ok, salvage=salvage, **options)

    @classmethod
    def import_(
        cls,
        path: str | Path,
        *,
        signed_by: Collection[str] = (),
        accept_unknown: bool = False,
        store: StoreAdmin | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ConversationRecord:
        """Import a conversation from a bundle; see `AsyncConversation.import_`."""
        options: Any = {"store": store, "settings": settings, "server": server, "api_key": api_key}
        keys: Any = {"signed_by": signed_by, "accept_unknown": accept_unknown}
        return portal().call(AsyncConversation.import_, path, **keys, **options)

    def _start(self, factory: Callable[..., Awaitable[_Core[T]]], *args: Any, **kwargs: Any) -> None:
        self._create_core(portal(), factory, *args, **kwargs)

    def _create_core(
        self, loop: Portal, factory: Callable[..., Awaitable[_Core[T]]], *args: Any, **kwargs: Any
    ) -> None:
        async def make() -> _Core[T]:
            core = await factory(*args, **kwargs)
            core.on_closed = partial(loop.release, core)
            # Held by the loop now, because Ctrl-C may interrupt this thread before `self._core` is assigned.
            loop.hold(core, f"conversation {core.short_id}")
            if isinstance(core, AsyncConversation):
                # Closing a conversation does not close an executor that was passed in; the end of the program does.
                loop.hold_weakly(core.executor)
            return core

        self._core: _Core[T] = loop.call(make)
        self._loop = loop

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)
        return f"<{type(self).__name__}, not open>" if core is None else describe(core, type(self).__name__)

    @property
    def id(self) -> UUID:
        """Its id."""
        return self._core.id

    @property
    def short_id(self) -> str:
        """The last 8 hexadecimal digits of its id."""
        return self._core.short_id

    @property
    def state(self) -> State:
        """The state after the events that this object has read."""
        return self._core.state

    @property
    def status(self) -> Status:
        """Its status."""
        return self._core.status

    @property
    def result(self) -> RunResult[T] | None:
        """The result of this object's latest run, with `run` or `run_stream`; None before the first one."""
        return self._core.result

    @property
    def waiting(self) -> tuple[WaitingCall, ...]:
        """The calls that wait for a decision; see `approve`, `reject` and `answer`."""
        return self._core.waiting

    @property
    def title(self) -> str | None:
        """Its title."""
        return self._core.title

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return self._core.tags

    @property
    def usage(self) -> Usage:
        """Usage since the conversation was started or forked."""
        return self._core.usage

    @property
    def workspace(self) -> Path:
        """The working folder."""
        return self._core.workspace

    @property
    def agent(self) -> AgentSpec:
        """The agent in use."""
        return self._core.agent

    @property
    def skills(self) -> SkillRegistry:
        """The skills the agent may use."""
        return self._core.skills

    @property
    def settings(self) -> Settings:
        """The settings with which the conversation was opened."""
        return self._core.settings

    @property
    def events(self) -> Iterator[StoredEvent]:
        """Iterate its events, shared ones included, from the store."""
        return self._iterate(self._core.events)

    def turns(self) -> builtins.list[TurnRecord]:
        """Return the turns so far; see `AsyncConversation.turns`."""
        return self._loop.call(self._core.turns)

    def messages(self) -> list[ModelMessage]:
        """Return the messages that the model is shown; see `AsyncConversation.messages`."""
        return self._loop.call(self._core.messages)

    def read_file(self, digest: str) -> bytes:
        """Return the bytes of an image or file of a message; see `AsyncConversation.read_file`."""
        return self._loop.call(self._core.read_file, digest)

    def send_message(
        self,
        message: str | UserMessage = "",
        *,
        images: Sequence[Source | ImagePart] = (),
        files: Sequence[Source | FilePart] = (),
        id: UUID | None = None,
        sender: str = "user",
    ) -> UUID:
        """Append a message and the skills it activates; see `AsyncConversation.send_message`."""
        with_inputs = add_inputs(message, images, files, sender=sender)
        return self._loop.call(self._core.send_message, with_inputs, id=id, sender=sender)

    def repeat(self, turn: Turn, *, id: UUID | None = None) -> UUID:
        """Send the message of a recorded turn again; see `AsyncConversation.repeat`."""
        return self._loop.call(self._core.repeat, turn, id=id)

    def run(
        self,
        *,
        on_event: OnEvent | None = None,
        limits: Limits | None = None,
        until: str | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> RunResult[T]:
        """Run until the model has answered everything; see `AsyncConversation.run`.

        `on_event` is called in the thread of bough's event loop and must not block it for long.
        """
        options: Any = {"on_event": on_event, "limits": limits, "until": until, "check_timeout": check_timeout}
        return self._loop.call(self._core.run, **options)

    def start(self, *, limits: Limits | None = None, close: bool = False) -> None:
        """Start a run that continues without its caller; see `AsyncConversation.start`."""
        self._is_detached = self._is_detached or close
        self._loop.call(self._core.start, limits=limits, close=close)

    def follow(self, after: int = -1) -> Iterator[Update]:
        """Iterate events and pieces of text until the present run has ended; see `AsyncConversation.follow`."""
        return self._iterate(self._core.follow(after))

    def run_stream(self, *, until: str | None = None, check_timeout: float = CHECK_SECONDS) -> Iterator[Update]:
        """Run, and iterate events and pieces of text as they arrive; see `AsyncConversation.run_stream`."""
        return self._iterate(self._core.run_stream(until=until, check_timeout=check_timeout))

    def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step; see `AsyncConversation.pause`."""
        self._loop.call(self._core.pause, by=by, reason=reason)

    def approve(self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None) -> None:
        """Approve waiting calls; see `AsyncConversation.approve`."""
        self._loop.call(self._core.approve, *calls, by=by, reason=reason, arguments=arguments)

    def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Reject waiting calls; see `AsyncConversation.reject`."""
        self._loop.call(self._core.reject, *calls, reason=reason, by=by)

    def answer(self, call: str, value: object, *, by: str = "user") -> None:
        """Set the result of a waiting call; see `AsyncConversation.answer`."""
        self._loop.call(self._core.answer, call, value, by=by)

    def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation; see `AsyncConversation.ask`."""
        return self._loop.call(self._core.ask, question)

    def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop a run that another thread or process started; see `AsyncConversation.interrupt`."""
        self._loop.call(self._core.interrupt, by=by, reason=reason)

    @overload
    def fork(self, *, agent: None = None, **options: Unpack[ForkOptions]) -> Conversation[T]: ...

    @overload
    def fork(self, *, agent: AgentOf[OutputT], **options: Unpack[ForkOptions]) -> Conversation[OutputT]: ...

    def fork(self, *, agent: AgentLike | None = None, **options: Unpack[ForkOptions]) -> Conversation[Any]:
        """Fork the conversation and return the fork; see `AsyncConversation.fork`."""
        new: Conversation[Any] = type(self).__new__(type(self))
        new._create_core(self._loop, self._core.fork, agent=agent, **options)
        return new

    def explore(
        self,
        variants: Sequence[Variant],
        *,
        message: str | None = None,
        check: str | None = None,
        repeats: int = 1,
        at: Cut | Turn | None = None,
        jobs: int = 4,
        check_timeout: float = CHECK_SECONDS,
        session: UUID | None = None,
        queue: str | None = None,
        on_update: OnBranch | None = None,
    ) -> Exploration:
        """Try variants of the work in forks, and test each by a check; see `AsyncConversation.explore`."""
        options: Any = {"message": message, "check": check, "repeats": repeats, "at": at, "jobs": jobs}
        options |= {"check_timeout": check_timeout, "session": session, "queue": queue, "on_update": on_update}
        return self._loop.call(self._core.explore, variants, **options)

    def bisect(
        self,
        check: str,
        *,
        good: Cut | Turn | None = None,
        bad: Cut | Turn | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> Bisection:
        """Search for the step that broke the files; see `AsyncConversation.bisect`."""
        return self._loop.call(self._core.bisect, check, good=good, bad=bad, check_timeout=check_timeout)

    def compare(self, other: Conversation[Any], *, until: Turn | None = None) -> Comparison:
        """Compare this conversation with another one; see `AsyncConversation.compare`."""
        require_type(other, Conversation, "what it is compared with", "give another Conversation")
        return self._loop.call(self._core.compare, other._core, until=until)

    def files(self, at: Cut | Turn | None = None) -> FileTree:
        """Return the files of the workspace at an event; see `AsyncConversation.files`."""
        return self._loop.call(self._core.files, at)

    def diff(
        self,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        *,
        other: Conversation[Any] | None = None,
        own: bool = False,
        paths: Sequence[str] = (),
    ) -> FileChanges:
        """Return which files differ between two events; see `AsyncConversation.diff`."""
        require_type(other, (Conversation, NoneType), "other", "give another Conversation")
        core: Any = None if other is None else other._core
        return self._loop.call(self._core.diff, start, stop, other=core, own=own, paths=paths)

    def restore(
        self,
        at: Cut | Turn,
        *,
        paths: Sequence[str] = (),
        exact: bool = False,
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
    ) -> FileChanges:
        """Take back what this conversation did to its files; see `AsyncConversation.restore`."""
        options: Any = {"exact": exact, "conflicts": conflicts, "dry_run": dry_run}
        return self._loop.call(self._core.restore, at, paths=paths, **options)

    def redo(self) -> FileChanges:
        """Bring back the files that the last restore changed; see `AsyncConversation.redo`."""
        return self._loop.call(self._core.redo)

    def apply(
        self,
        source: Conversation[Any],
        *,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        paths: Sequence[str] = (),
        conflicts: Conflicts = "refuse",
        check: str | None = None,
        check_timeout: float = CHECK_SECONDS,
        dry_run: bool = False,
    ) -> FileChanges:
        """Merge the file changes of another conversation into this workspace; see `AsyncConversation.apply`."""
        require_type(source, Conversation, "the source", "give another Conversation")
        core: Any = source._core
        options: Any = {"start": start, "stop": stop, "paths": paths, "conflicts": conflicts, "dry_run": dry_run}
        checks: Any = {"check": check, "check_timeout": check_timeout}
        return self._loop.call(self._core.apply, core, **options, **checks)

    def graft(
        self, source: Conversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Append a message that describes events of another conversation; see `AsyncConversation.graft`."""
        require_type(source, Conversation, "the source", "give another Conversation")
        self._loop.call(self._core.graft, source._core, start=start, stop=stop, summary=summary)

    def lineage(self) -> Ancestry:
        """Return the conversations from which this one was forked, oldest first, and this one last."""
        return self._loop.call(self._core.lineage)

    def condense(self, *, keep: str = "") -> bool:
        """Replace older messages that the model is shown by a summary; see `AsyncConversation.condense`."""
        return self._loop.call(self._core.condense, keep=keep)

    def append(self, *events: Event) -> None:
        """Append events unchanged; see `AsyncConversation.append`."""
        self._loop.call(self._core.append, *events)

    def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of an imported conversation; see `AsyncConversation.adopt`."""
        self._loop.call(self._core.adopt, by=by, policy=policy)

    def set_title(self, title: str) -> None:
        """Set the title."""
        self._loop.call(self._core.set_title, title)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace all tags."""
        self._loop.call(self._core.set_tags, tags)

    def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next step on."""
        self._loop.call(self._core.set_confirmation_policy, policy)

    def set_limits(self, *limits: Limits) -> None:
        """Change the limits of each run, of the conversation, or both; see `AsyncConversation.set_limits`."""
        self._loop.call(self._core.set_limits, *limits)

    def set_model(self, model: str | Model, *, base_url: str | None = None) -> None:
        """Continue with another model; see `AsyncConversation.set_model`."""
        self._loop.call(self._core.set_model, model, base_url=base_url)

    def close(self) -> None:
        """Interrupt a run in progress and release all resources. Idempotent."""
        if self._loop.release(self._core):
            self._loop.close(self._core)

    def __del__(self) -> None:
        # `_core` is missing if the constructor failed. `abandon` is false if the conversation was closed.
        if hasattr(self, "_core") and not self._is_detached and self._loop.abandon(self._core):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _iterate(self, iterator: AsyncIterator[_U]) -> Iterator[_U]:
        yield from self._loop.iterate(iterator)  # a generator method, so that the iterator keeps this object alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
