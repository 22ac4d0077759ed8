"""Runs a conversation on its server: starts the run, follows its events, and returns its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from uuid import UUID

from typing_extensions import override

from bough.conversation.bisect import Bisection
from bough.conversation.check import CHECK_SECONDS
from bough.conversation.explore import Exploration, OnBranch, Variant
from bough.conversation.follow import LIVE_TASK_STATES, ends_run
from bough.conversation.log.listeners import Delta, OnEvent, Update
from bough.conversation.log.turns import Turn
from bough.conversation.remote.bodies import require_absent
from bough.conversation.remote.control import RemoteControl
from bough.conversation.remote.transport import ServerTransport, make_error
from bough.conversation.result import RunResult, T, list_waiting
from bough.conversation.run.loop import NodeListener
from bough.conversation.run.outcome import RunOutcome
from bough.errors import BoughError, Conflict, NotSupported
from bough.events.model import ErrorRaised, ModelResponded
from bough.events.record import ConversationRecord, StoredEvent
from bough.events.store import Cut
from bough.guard import Limits
from bough.types import JsonObject, new_id

_WAIT_SECONDS = 30


class RemoteRuns(RemoteControl[T]):
    """An open conversation on a server, with its runs. A lost connection does not stop a run."""

    def __init__(self, transport: ServerTransport, record: ConversationRecord) -> None:
        super().__init__(transport, record)
        self._is_running = False
        self._start_seq: int | None = None
        self._result: RunResult[T] | None = None

    @property
    @override
    def result(self) -> RunResult[T] | None:
        return self._result

    @override
    async def start(self, *, limits: Limits | None = None, close: bool = False) -> None:
        require_absent(limits=limits)
        await self._join_abandoned_run()
        try:
            await self.refresh()
            await self._post("run", {"wait": 0}, key=new_id())
            self._start_seq, self._was_interrupted, self._result = self.state.head, False, None
        finally:
            if close:
                await self.aclose()

    @override
    async def _iterate_updates(self, after: int) -> AsyncGenerator[Update]:
        position, head, is_running = after + 1, 0, True
        async for update in self._log.follow(position):
            if isinstance(update, StoredEvent):
                yield update
                position = update.seq + 1
                is_running = is_running and not (position > head and ends_run(update))
            elif update.kind == "delta":
                yield _read_piece(update.data)
            elif update.kind == "state" and head == 0:  # the first frame of a stream
                run, head = update.data["run"], update.data["head"]
                is_running = run is not None and run["state"] in LIVE_TASK_STATES
            if not is_running and position >= head:
                break
        await self.refresh()
        if self._start_seq is not None and not is_running:
            start, self._start_seq = self._start_seq, None
            with suppress(BoughError):  # the error of the run is in the log, and `result` has its code
                await self._read_result(start)

    async def run(
        self,
        *,
        on_event: OnEvent | None = None,
        on_node: NodeListener | None = None,
        limits: Limits | None = None,
        until: str | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> RunResult[T]:
        """Run the conversation on the server until the model has answered everything, and return the result.

        Args:
            on_event: Called in order for all durable events and pieces of text of the run, before this returns.

        Raises:
            Conflict: This object already waits for a run.
            ModelError: The model failed. The conversation has the status `error` and can be run again.
            NotSupported: `on_node`, `limits` or `until` are given.
        """
        require_absent(on_node=on_node, limits=limits, until=until)
        await self._join_abandoned_run()
        if self._is_running:
            raise Conflict("the conversation is already running", hint="wait for that run, or interrupt it")
        if on_event is not None:
            async with self._listeners.call_for_updates(on_event):
                return await self.run()
        self._is_running, self._was_interrupted = True, False
        try:
            return await self._run()
        except asyncio.CancelledError:
            await asyncio.shield(self.interrupt())
            raise
        finally:
            self._is_running = False

    async def explore(
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
        """Raise `NotSupported`."""
        raise _make_check_error()

    async def bisect(
        self,
        check: str,
        *,
        good: Cut | Turn | None = None,
        bad: Cut | Turn | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> Bisection:
        """Raise `NotSupported`."""
        raise _make_check_error()

    async def _stop_run(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Cancel the asyncio task that waits for a run; the task then interrupts the run, if it has started."""
        run.cancel()

    async def _run(self) -> RunResult[T]:
        """Start a run on the server, pass its events to the listeners, and return its result."""
        await self.refresh()
        start, key = self.state.head, new_id()
        following = asyncio.create_task(self._follow(start)) if self._listeners.listeners else None
        try:
            # All requests have the same key, so they wait for the same run, and a lost response can be requested again.
            document = await self._post("run", {"wait": _WAIT_SECONDS}, key=key)
            while document["status"] == "running":
                document = await self._post("run", {"wait": _WAIT_SECONDS}, key=key)
            if following is not None:
                await self._wait_for(following, document["head"])
            await self.refresh()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        return await self._read_result(start)

    async def _follow(self, head: int) -> None:
        """Apply live events to the state, and pass them and the pieces of text to the listeners."""
        async for update in self._log.follow(head):
            if isinstance(update, StoredEvent):
                async with self._apply_lock:
                    self._apply_event(update)
            elif update.kind == "delta":
                self._listeners.notify(_read_piece(update.data))

    async def _wait_for(self, following: asyncio.Task[None], head: int) -> None:
        """Wait until the state has the events up to `head`. Returns earlier if `following` ends, or after a timeout.

        The caller then reads the missing events.
        """
        reached = asyncio.Event()

        def check_head(update: Update) -> None:
            if self.state.head >= head:
                reached.set()

        self._listeners.listeners.append(check_head)
        try:
            if self.state.head < head:
                waiting = asyncio.create_task(reached.wait())
                await asyncio.wait({following, waiting}, timeout=_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            with suppress(ValueError):
                self._listeners.listeners.remove(check_head)

    async def _read_result(self, start: int) -> RunResult[T]:
        """Return the result of the run whose first event has seq `start`. Reads the events of the run.

        Raises:
            BoughError: The run ended with an error.
        """
        steps, failure, outcome = 0, None, RunOutcome()
        async for stored in self._log.read(start, self.state.head):
            outcome.watch(stored.event)
            if isinstance(event := stored.event, ModelResponded):
                steps += 1
            elif isinstance(event, ErrorRaised):
                failure = event
        state = self.state
        outcome.interrupted = state.status == "paused" and self._was_interrupted
        self._result = RunResult(
            conversation=self.id,
            status=state.status,
            output=outcome.output,
            steps=steps,
            start=start,
            stop=state.head,
            usage=state.own,
            limit=state.limit,
            data=state.data,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - JSON: the type is the server's
            finish_reason=outcome.finish_reason,
            partial=outcome.partial,
            reason=outcome.reason(state),
            waiting=list_waiting(state.waiting),
        )
        if state.status == "error" and failure is not None:
            raise make_error(failure.code, failure.message, hint=failure.hint)
        return self._result


def _make_check_error() -> NotSupported:
    return NotSupported(
        "checks of files cannot be run over HTTP", hint="`bough try` and `bough bisect` run them where the files are"
    )


def _read_piece(data: JsonObject) -> Delta:
    """Return a piece of a response; a server before 0.4.0 sends neither the id of the response nor the offset."""
    response = UUID(data["response"]) if "response" in data else new_id()
    return Delta(text=data["text"], kind=data["kind"], response=response, offset=data.get("offset", 0))
