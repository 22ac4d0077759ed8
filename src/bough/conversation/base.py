"""What every open conversation has, whoever runs it: what its folded log says, and a run that is iterated."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic
from uuid import UUID

from bough.conversation.log.listeners import Listener, OnEvent
from bough.conversation.log.state import State
from bough.conversation.result import RunResult, T, WaitingCall, list_waiting
from bough.conversation.run_stream import RunStream
from bough.events.model import Usage
from bough.events.record import ConversationRecord, Status
from bough.guard import Limits


class ConversationBase(ABC, Generic[T]):
    """A conversation in use, in this process or on a server.

    Args:
        record: Its row, as it was when it was opened.
        listeners: Called for its updates.
    """

    def __init__(self, record: ConversationRecord, listeners: list[Listener]) -> None:
        self._record = record
        self._told = listeners
        self._result: RunResult[T] | None = None
        self._abandoned: asyncio.Task[None] | None = None

    @property
    def id(self) -> UUID:
        """Its id."""
        return self._record.id

    @property
    def short_id(self) -> str:
        """The last 8 hexadecimal digits of its id, which are enough to name it."""
        return self.id.hex[-8:]

    @property
    @abstractmethod
    def state(self) -> State:
        """The fold of what this object has seen of the log."""

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.state.status

    @property
    def result(self) -> RunResult[T] | None:
        """How the latest run of this object ended, also one that was iterated; None before one."""
        return self._result

    @property
    def waiting(self) -> tuple[WaitingCall, ...]:
        """The calls that wait for somebody: see `approve`, `reject` and `answer`."""
        return list_waiting(self.state.waiting)

    @property
    def title(self) -> str | None:
        """Its title: given, or taken from the first message."""
        return self.state.title

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self.state.tags)

    @property
    def usage(self) -> Usage:
        """What it used since it was started or forked."""
        return self.state.own

    @property
    def workspace(self) -> Path:
        """The working folder, where it runs."""
        return self.state.workspace

    @abstractmethod
    async def run(self, *, on_event: OnEvent | None = None, limits: Limits | None = None) -> RunResult[T]:
        """Run until the model has answered everything, and return how it ended."""

    def run_stream(self) -> RunStream:
        """Run, and iterate the durable events and the pieces of text as they come. Leaving early interrupts the run.

        Nothing of the run begins after that, and what is done with the conversation next waits until it has ended.
        How it ended is in `result` afterwards.
        """
        return RunStream(self._told, lambda: asyncio.create_task(self.run()), self._leave, self._abandon)

    @abstractmethod
    async def _leave(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Stop a run of this object that nobody iterates any more."""

    def _abandon(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Do what `_leave` does where nobody can wait for it; `_settle_abandoned` waits."""
        self._abandoned = asyncio.create_task(self._end_abandoned(run))

    async def _end_abandoned(self, run: asyncio.Task[RunResult[T]]) -> None:
        await self._leave(run)
        await asyncio.gather(run, return_exceptions=True)

    async def _settle_abandoned(self) -> None:
        """Return when a run whose stream was left has ended."""
        ending, self._abandoned = self._abandoned, None
        if ending is not None:
            await asyncio.shield(ending)
