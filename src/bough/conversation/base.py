"""The base class of local and remote conversations: properties of the folded log, and the iteration of a run."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Generic
from uuid import UUID

from bough.conversation.check import CHECK_SECONDS
from bough.conversation.follow import check_position
from bough.conversation.log.listeners import Listener, OnEvent, Update
from bough.conversation.log.state import State
from bough.conversation.log.turns import TurnRecord, read_turns
from bough.conversation.result import RunResult, T, WaitingCall, list_waiting
from bough.conversation.run_stream import RunStream
from bough.events.model import Usage
from bough.events.record import ConversationRecord, Status, StoredEvent
from bough.guard import Limits
from bough.markdown import plain


def describe(conversation: ConversationBase[Any], class_name: str) -> str:
    """Return an open conversation in one line: its id, title, status and number of events."""
    title = "" if conversation.title is None else f" {plain(conversation.title, 60)!r}"
    return f"<{class_name} {conversation.short_id}{title}, {conversation.status}, {conversation.state.head} events>"


class ConversationBase(ABC, Generic[T]):
    """An open conversation, in this process or on a server.

    Args:
        record: The row of the conversation when it was opened.
        listeners: The list of the conversation's listeners, which `run_stream` changes.

    Attributes:
        on_closed: Called when the object has been closed.
    """

    def __init__(self, record: ConversationRecord, listeners: list[Listener]) -> None:
        self._record = record
        self._listener_list = listeners
        self.on_closed: Callable[[], object] = _do_nothing
        self._abandoned_run: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return describe(self, type(self).__name__)

    @property
    def id(self) -> UUID:
        """Its id."""
        return self._record.id

    @property
    def short_id(self) -> str:
        """The last 8 hexadecimal digits of its id."""
        return self.id.hex[-8:]

    @property
    @abstractmethod
    def state(self) -> State:
        """The state after the events that this object has read."""

    @property
    def status(self) -> Status:
        """Its status."""
        return self.state.status

    @property
    @abstractmethod
    def result(self) -> RunResult[T] | None:
        """The result of this object's latest run, by whichever method it was started; None before one has ended."""

    @property
    @abstractmethod
    def events(self) -> AsyncIterator[StoredEvent]:
        """Iterate all events, including those that a fork shares with its source."""

    async def turns(self) -> list[TurnRecord]:
        """Return the turns so far, including those that a fork shares with its source. Needs no agent.

        A turn is a message that was sent while nothing was left to do, and everything up to the next such message. The
        sender of the message may also be a hook or bough itself: see `message.sender`. `Turn(n)` counts the same turns.
        The last turn is open while there is work left.

        Reads the log from the store: O(events). The records hold all results of tools.
        """
        return await read_turns(self.id, self.events)

    @property
    def waiting(self) -> tuple[WaitingCall, ...]:
        """The calls that wait for a decision; see `approve`, `reject` and `answer`."""
        return list_waiting(self.state.waiting)

    @property
    def title(self) -> str | None:
        """Its title, by default the first line of the first message."""
        return self.state.title

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self.state.tags)

    @property
    def usage(self) -> Usage:
        """Usage since the conversation was started or forked."""
        return self.state.own

    @property
    def workspace(self) -> Path:
        """The working folder, on the machine that runs the conversation."""
        return self.state.workspace

    @abstractmethod
    async def run(
        self,
        *,
        on_event: OnEvent | None = None,
        limits: Limits | None = None,
        until: str | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> RunResult[T]:
        """Run until the model has answered everything, and return the result."""

    @abstractmethod
    async def aclose(self) -> None:
        """Interrupt a run of this object, and release all resources. Idempotent."""

    @abstractmethod
    async def start(self, *, limits: Limits | None = None, close: bool = False) -> None:
        """Start a run that continues without its caller. On return, it has the lease or there is nothing to do.

        `follow` iterates it, from any object of this conversation; `result` has its result afterwards. An error that
        ends the run is recorded, and not raised. Closing this object interrupts the run.

        Args:
            close: Whether to close this object when the run has ended, or could not start.

        Raises:
            Conflict: The conversation is being run, here or elsewhere.
            InvalidInput: The model is unknown.
        """

    def follow(self, after: int = -1) -> AsyncGenerator[Update]:
        """Iterate the events after seq `after`, then the new events of the present run, in whichever process it is.

        Ends when the run ends, or at the head of the log if there is no run; `state` then includes every event. Leaving
        the iteration early does not stop the run. Pieces of text are only received from runs on this event loop and
        from servers.

        Args:
            after: The seq of the last event that you have; -1 for all events.

        Raises:
            InvalidInput: `after` is not a whole number from -1 on.
            NotFound: The conversation was deleted. This is raised by the first iteration, not by the call.
        """
        return self._iterate_updates(check_position(after))

    @abstractmethod
    def _iterate_updates(self, after: int) -> AsyncGenerator[Update]:
        """Iterate as `follow` does."""

    def run_stream(self, *, until: str | None = None, check_timeout: float = CHECK_SECONDS) -> RunStream:
        """Run, and iterate the durable events and pieces of text as they arrive. `result` has the result afterwards.

        If the iteration is left early, the run is interrupted: no tool starts any more, and the next call of a method
        of this object waits until the run has ended.

        Args:
            until: As for `run`, like `check_timeout`.
        """

        def start() -> asyncio.Task[RunResult[T]]:
            return asyncio.create_task(self.run(until=until, check_timeout=check_timeout))

        return RunStream(self._listener_list, start, self._stop_run, self._abandon)

    @abstractmethod
    async def _stop_run(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Interrupt a run of this object because the caller left its stream."""

    def _abandon(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Start to interrupt a run in the background. `_join_abandoned_run` waits until it has ended."""
        self._abandoned_run = asyncio.create_task(self._stop_and_join(run))

    async def _stop_and_join(self, run: asyncio.Task[RunResult[T]]) -> None:
        await self._stop_run(run)
        await asyncio.gather(run, return_exceptions=True)

    async def _join_abandoned_run(self) -> None:
        """Wait for the run whose stream the caller abandoned, if there is one."""
        abandoned_run, self._abandoned_run = self._abandoned_run, None
        if abandoned_run is not None:
            await asyncio.shield(abandoned_run)


def _do_nothing() -> None:
    pass
