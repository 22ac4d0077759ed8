"""The same conversation without `await`: the event loop of `bough.portal` does the work."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack
from uuid import UUID

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, AgentOf
from bough.conversation.conversation import AsyncConversation
from bough.conversation.fork.compare import Comparison
from bough.conversation.fork.request import ForkOverrides, Pending, Snap, Turn
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.journal import Update
from bough.conversation.log.listeners import OnEvent
from bough.conversation.log.state import State
from bough.conversation.message import add_inputs
from bough.conversation.result import RunResult, T, WaitingCall
from bough.conversation.rules import GivenRules
from bough.events.content import Source
from bough.events.model import Event, FilePart, ImagePart, Usage, UserMessage
from bough.events.record import ConversationFilter, ConversationRecord, Page, Status, StoredEvent
from bough.events.store import Cut, EventStore
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
    """A conversation in use, for code without `await`. Names and meaning are those of `AsyncConversation`.

    Making one starts a conversation; `Conversation.open` continues one that exists. Close it with `close` or `with`;
    what is open when the program ends is closed then: a run in progress is interrupted and can be resumed.
    It may be used beside a running event loop, which it blocks, as in a notebook; inside of asynchronous tools it is
    `Unavailable`: `await` an `AsyncConversation` there.
    """

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
        **given: Unpack[GivenRules],
    ) -> None:
        self._start(
            AsyncConversation.create,
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
            **given,
        )

    @classmethod
    def open(
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
    ) -> Conversation[T]:
        """Open a conversation that exists; see `AsyncConversation.open`."""
        new = cls.__new__(cls)
        at: Any = {"store": store, "server": server, "api_key": api_key, "broker": broker, "workspace": workspace}
        new._start(AsyncConversation.open, id, agent=agent, executor=executor, settings=settings, **at, **given)
        return new

    @classmethod
    def list(
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
        """Return a page of a store's or a server's conversations; see `AsyncConversation.list`."""
        at: Any = {"settings": settings, "server": server, "api_key": api_key}
        return portal().call(AsyncConversation.list, store, filter=filter, cursor=cursor, limit=limit, **at)

    def _start(self, factory: Callable[..., Awaitable[_Core[T]]], *args: Any, **kwargs: Any) -> None:
        self._adopt(portal(), factory, *args, **kwargs)

    def _adopt(self, loop: Portal, factory: Callable[..., Awaitable[_Core[T]]], *args: Any, **kwargs: Any) -> None:
        async def make() -> _Core[T]:
            core = await factory(*args, **kwargs)
            core.on_closed = partial(loop.release, core)
            # Held on the loop's thread: Ctrl-C may interrupt this one before `self._core` is assigned.
            loop.hold(core, f"conversation {core.short_id}")
            if isinstance(core, AsyncConversation):
                # Closing the conversation does not close an executor that its caller passed in; the program's end does.
                loop.hold_weakly(core.executor)
            return core

        self._is_detached = False  # whether it closes itself at the end of a run
        self._core: _Core[T] = loop.call(make)
        self._loop = loop

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
        """The fold of what this object has seen of the log."""
        return self._core.state

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self._core.status

    @property
    def result(self) -> RunResult[T] | None:
        """How the latest run of this object ended, also one that was iterated; None before one."""
        return self._core.result

    @property
    def waiting(self) -> tuple[WaitingCall, ...]:
        """The calls that wait for somebody: see `approve`, `reject` and `answer`."""
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
        """What it used since it was started or forked."""
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
        """The settings it was opened with."""
        return self._core.settings

    @property
    def events(self) -> Iterator[StoredEvent]:
        """Iterate its events, shared ones included, from the store."""
        return self._iterate(self._core.events)

    def messages(self) -> list[ModelMessage]:
        """Return what the model is shown of it, as PydanticAI's messages; see `AsyncConversation.messages`."""
        return self._loop.call(self._core.messages)

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
        whole = add_inputs(message, images, files, sender=sender)
        return self._loop.call(self._core.send_message, whole, id=id, sender=sender)

    def run(self, *, on_event: OnEvent | None = None, limits: Limits | None = None) -> RunResult[T]:
        """Run until the model has answered everything; see `AsyncConversation.run`.

        `on_event` is called in the thread of bough's event loop, which it may not block for long.
        """
        return self._loop.call(self._core.run, on_event=on_event, limits=limits)

    def start(self, *, limits: Limits | None = None, close: bool = False) -> None:
        """Start a run that continues without its caller; see `AsyncConversation.start`."""
        self._is_detached = self._is_detached or close
        self._loop.call(self._core.start, limits=limits, close=close)

    def follow(self, after: int = -1) -> Iterator[Update]:
        """Iterate events and pieces of text until the present run has ended; see `AsyncConversation.follow`."""
        return self._iterate(self._core.follow(after))

    def run_stream(self) -> Iterator[Update]:
        """Run, and iterate events and pieces of text as they come; see `AsyncConversation.run_stream`."""
        return self._iterate(self._core.run_stream())

    def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step; see `AsyncConversation.pause`."""
        self._loop.call(self._core.pause, by=by, reason=reason)

    def approve(self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None) -> None:
        """Let calls run that wait for an approval; see `AsyncConversation.approve`."""
        self._loop.call(self._core.approve, *calls, by=by, reason=reason, arguments=arguments)

    def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Refuse waiting calls; see `AsyncConversation.reject`."""
        self._loop.call(self._core.reject, *calls, reason=reason, by=by)

    def answer(self, call: str, value: Any, *, by: str = "user") -> None:
        """Give a waiting call its result; see `AsyncConversation.answer`."""
        self._loop.call(self._core.answer, call, value, by=by)

    def ask(self, question: str) -> str:
        """Return the model's answer to a question beside the conversation; see `AsyncConversation.ask`."""
        return self._loop.call(self._core.ask, question)

    def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop a run that another thread or process started; see `AsyncConversation.interrupt`."""
        self._loop.call(self._core.interrupt, by=by, reason=reason)

    def fork(
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
    ) -> Conversation[T]:
        """Branch off and return the new conversation; see `AsyncConversation.fork`."""
        new = type(self).__new__(type(self))
        new._adopt(
            self._loop,
            self._core.fork,
            id=id,
            agent=agent,
            title=title,
            tags=tags,
            reset_metrics=reset_metrics,
            at=at,
            snap=snap,
            pending=pending,
            overrides=overrides,
            inherit_tags=inherit_tags,
            workspace=workspace,
            secrets=secrets,
            reason=reason,
            actor=actor,
            ephemeral=ephemeral,
        )
        return new

    def compare(self, other: Conversation[Any]) -> Comparison:
        """Return what two conversations share and where they differ; see `AsyncConversation.compare`."""
        require_type(other, Conversation, "what it is compared with", "give another Conversation")
        return self._loop.call(self._core.compare, other._core)

    def graft(
        self, source: Conversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Tell this conversation what happened in another one; see `AsyncConversation.graft`."""
        require_type(source, Conversation, "the source", "give another Conversation")
        self._loop.call(self._core.graft, source._core, start=start, stop=stop, summary=summary)

    def lineage(self) -> builtins.list[ConversationRecord]:
        """Return the conversations this one descends from, itself last."""
        return self._loop.call(self._core.lineage)

    def condense(self) -> bool:
        """Condense what the model sees now; see `AsyncConversation.condense`."""
        return self._loop.call(self._core.condense)

    def append(self, *events: Event) -> None:
        """Append events as they are; see `AsyncConversation.append`."""
        self._loop.call(self._core.append, *events)

    def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of what was imported; see `AsyncConversation.adopt`."""
        self._loop.call(self._core.adopt, by=by, policy=policy)

    def set_title(self, title: str) -> None:
        """Give it a title."""
        self._loop.call(self._core.set_title, title)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Give it these tags and no others."""
        self._loop.call(self._core.set_tags, tags)

    def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next step on."""
        self._loop.call(self._core.set_confirmation_policy, policy)

    def set_limits(self, *limits: Limits) -> None:
        """Change the bounds of each run, of the conversation, or both; see `AsyncConversation.set_limits`."""
        self._loop.call(self._core.set_limits, *limits)

    def set_model(self, model: str | Model) -> None:
        """Continue with another model; see `AsyncConversation.set_model`."""
        self._loop.call(self._core.set_model, model)

    def close(self) -> None:
        """Interrupt a run in progress and let go of what this object holds. Closing twice is fine."""
        if self._loop.release(self._core):
            self._loop.call(self._core.aclose)

    def __del__(self) -> None:
        # An object whose making failed has no core; one that was closed, or that the program's end closed, is not held.
        if hasattr(self, "_core") and not self._is_detached and self._loop.abandon(self._core):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _iterate(self, iterator: AsyncIterator[_U]) -> Iterator[_U]:
        yield from self._loop.iterate(iterator)  # from here, so that this object lives as long as what it iterates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
