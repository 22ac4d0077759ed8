"""What local and remote conversations share: properties of the folded log, and iterating a run."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Generic
from uuid import UUID

from bough.conversation.log.listeners import Listener, OnEvent, Update
from bough.conversation.log.state import State
from bough.conversation.result import RunResult, T, WaitingCall, list_waiting
from bough.conversation.run_stream import RunStream
from bough.events.model import Usage
from bough.events.record import ConversationRecord, Status
from bough.guard import Limits


class ConversationBase(ABC, Generic[T]):
    """An open conversation, in this process or on a server.

    Args:
        record: Its row when it was opened.
        listeners: The list of its listeners.

    Attributes:
        on_closed: Called when the object has been closed.
    """

    def __init__(self, record: ConversationRecord, listeners: list[Listener]) -> None:
        self._record = record
        self._listener_list = listeners
        self.on_closed: Callable[[], object] = _do_nothing
        self._abandoned: asyncio.Task[None] | None = None

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
        """The fold of the events that this object has read."""

    @property
    def status(self) -> Status:
        """Its status."""
        return self.state.status

    @property
    @abstractmethod
    def result(self) -> RunResult[T] | None:
        """The result of the latest run of this object, however it was begun; None before the first one has ended."""

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
        """Usage since it was started or forked."""
        return self.state.own

    @property
    def workspace(self) -> Path:
        """The working folder, on the machine that runs it."""
        return self.state.workspace

    @abstractmethod
    async def run(self, *, on_event: OnEvent | None = None, limits: Limits | None = None) -> RunResult[T]:
        """Run until the model has answered everything, and return the result."""

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

    @abstractmethod
    def follow(self, after: int = -1) -> AsyncGenerator[Update]:
        """Iterate the events after seq `after`, then those of the present run as they come, in any process.

        Ends with the run, or at the head of the log if there is none. Leaving it early stops nothing. Pieces of text
        come from runs on this event loop and from servers; for other runs there are only events.

        Args:
            after: The seq of the last event that you have; -1 for all events.

        Raises:
            InvalidInput: `after` is not a whole number from -1 on.
            NotFound: The conversation was deleted.
        """

    def run_stream(self) -> RunStream:
        """Run, and iterate the durable events and pieces of text as they come. Leaving early interrupts the run.

        No tool starts after that, and the next call of this object waits until the run has ended. `result` has the
        result afterwards.
        """
        return RunStream(self._listener_list, lambda: asyncio.create_task(self.run()), self._leave, self._abandon)

    @abstractmethod
    async def _leave(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Stop a run of this object whose stream was left."""

    def _abandon(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Start `_leave` in the background; `_settle_abandoned` waits for it."""
        self._abandoned = asyncio.create_task(self._end_abandoned(run))

    async def _end_abandoned(self, run: asyncio.Task[RunResult[T]]) -> None:
        await self._leave(run)
        await asyncio.gather(run, return_exceptions=True)

    async def _settle_abandoned(self) -> None:
        """Wait until a run whose stream was left has ended."""
        ending, self._abandoned = self._abandoned, None
        if ending is not None:
            await asyncio.shield(ending)


def _do_nothing() -> None:
    pass
