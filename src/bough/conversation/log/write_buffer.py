"""Events on their way into the log: folded at once, durable together, and awaited before anything outside follows.

What is staged is written by the next `settle` (the barrier before an effect), or by itself after `LINGER_SECONDS`, so
that watchers see it soon. Batches are written one after the other, in their order. When another process has
appended in between, or a batch fails, the fold goes back to what is durable and on from there.

Some events hold only as long as what came before them has not changed: that a call may start, that a run is at its end.
They carry a condition on the fold, and are written by compare-and-set: the batch names the head it was folded behind.
Where others were faster, their events are folded in before it, the condition is asked again, and an event whose
condition no longer holds is withdrawn; the rest of its batch is written all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from bough.cancellation import finish
from bough.conversation.log.fold import STEP, Fold, Mark
from bough.conversation.log.kept_states import StateWriter, find_nearest
from bough.conversation.log.listeners import Delta, Listeners
from bough.conversation.log.pace import LOOK_EVENTS, Pace
from bough.conversation.log.staged_write import Also, Condition, Write, Writer, is_control
from bough.errors import Conflict
from bough.events.codec import encode
from bough.events.model import (
    Event,
    SkillActivated,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.events.store import EventStore

if TYPE_CHECKING:
    from bough.conversation.log.view import View
    from bough.events.beside import Tables

LINGER_SECONDS = 0.02
"""How long a staged event waits for others to be written with it when nothing waits for it."""


_REPLACED = "\ufffd".encode()


class Staging:
    """The way of one conversation's events into its log, shared by all who append to it in this process.

    Attributes:
        watchers: Told of each event when it is first folded, durable or not, and once; of one with a condition when
            it is durable.
        controls: How many events that control a run have been folded which the holder of the lease did not write.
            A review of a call is out of date when this has moved.
    """

    def __init__(
        self, store: EventStore, cid: UUID, fold: Fold, audience: Listeners, *, after: Staging | None = None
    ) -> None:
        self._store = store
        self._cid = cid
        self._fold = fold
        self._listeners = audience
        self._states = StateWriter(store, cid, after=None if after is None else after._states)
        self.watchers: list[Callable[[Event], None]] = []
        self._batches: deque[Write] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.controls = 0

    @property
    def durable(self) -> int:
        """How many of the folded events are certainly in the log, at this place."""
        return self._batches[0].mark.head if self._batches else self._fold.state.head

    @property
    def has_prompts(self) -> bool:
        """Whether something that was said to the model is not durable yet."""
        staged = (event for batch in self._batches for event in batch.events)
        return any(isinstance(event, UserMessage | SkillActivated) for event in staged)

    def add(
        self,
        writer: Writer,
        events: Sequence[Event],
        *,
        expected_head: int | None = None,
        condition: Condition | None = None,
        also: Also | None = None,
        alone: bool = False,
    ) -> Write:
        """Fold events and have them written; O(len(events)).

        Args:
            condition: They are written only while it holds; it has to hold now. See `Write.withdrawn`.
            also: Made in the same transaction; they are in a write of their own then, even where there are none.
            alone: In a write of their own, as events with `expected_head` are.

        Raises:
            CorruptLog: An event does not match its kind; nothing is staged.
            BoughError: What the writer staged before could not be written.
        """
        events = [as_recorded(event) for event in events]
        if writer.failure is not None:
            raise writer.failure
        alone = alone or expected_head is not None or also is not None
        batch = None if alone else self._open_batch(writer)
        if batch is None:
            batch = Write(writer, self._fold.mark(), asyncio.get_running_loop().create_future(), expected_head, also)
            batch.full = alone
        try:
            self._apply(events)
        except BaseException:
            self._fold.back_to(batch.mark)
            self._apply(batch.events)
            raise
        if not batch.events:
            self._batches.append(batch)
        batch.events += events
        if condition is not None:
            batch.conditions |= {event.id: condition for event in events}
        else:
            for event in events:
                self._tell(event)
        if writer.generation is None:
            self._count_controls(events)
        if self._writing is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._start)
        return batch

    def tell_behind(self, piece: Delta) -> None:
        """Tell the listeners of a piece of a response, once they know of every event that was folded before it."""
        if self._batches and self._batches[-1].events:
            last = self._batches[-1]
            last.pieces.setdefault(last.events[-1].id, []).append(piece)
        else:
            self._listeners.tell(piece)

    async def settle(self, writer: Writer) -> None:
        """Wait until everything that `writer` has staged is durable; a cancellation meanwhile is raised after that.

        Raises:
            Conflict: The lease was lost.
            StoreError: The store could not write.
        """
        last = next((batch for batch in reversed(self._batches) if batch.writer is writer), None)
        if last is not None:
            await self.wait_written(last)
        elif writer.failure is not None:
            raise writer.failure

    async def wait_written(self, batch: Write) -> None:
        """Wait until a batch is durable. Raises: see `settle`."""
        self._start()
        await finish(batch.done)

    async def flush(self) -> None:
        """Wait until nothing is staged any more, by whomever; failures are raised to those who staged."""
        while self._batches:
            self._start()
            await asyncio.wait([self._batches[-1].done])

    async def catch_up(self, stop: int | None = None, *, head: int | None = None) -> None:
        """Write what is staged, and fold what is in the log and not yet here.

        O(new events), at most `STEP` and a few of them where nobody is told of each: then from a kept state.

        Args:
            stop: Fold no further than to this seq.
            head: Of the log, if the caller knows it.
        """
        await self.flush()
        await self._jump(head if stop is None else stop)
        while not await self._read(stop):
            await self.flush()
        self._states.write(self._fold.kept, self.durable)

    async def render(self) -> View:
        """Return what the model is shown of the log, made now where it was not yet. O(events), once."""
        from bough.conversation.log.view import View

        while (view := self._fold.view) is None:
            view, head, pace = View(), 0, Pace()
            while head < self.durable:
                read = self._store.read(self._cid, head, self.durable)
                async with aclosing(read):
                    async for stored in read:
                        view.apply(stored.seq, await pace.decode(stored))
                        head = stored.seq + 1
            if self._fold.view is None and head == self.durable:
                self._show(view)
        return view

    async def settle_states(self) -> None:
        """Return when no kept state is being written any more."""
        await self._states.settle()

    def _show(self, view: View) -> None:
        """Take a view of what is durable, and show what is staged behind it."""
        self._fold.view = view
        for batch in self._batches:
            batch.mark = replace(batch.mark, view=view.mark())
            for seq, event in enumerate(batch.events, batch.mark.head):
                view.apply(seq, event)

    async def _jump(self, head: int | None) -> None:
        """Continue from a kept state where the fold is far behind, and nobody has to be told of each event."""
        if self.watchers or self._listeners.listeners:
            return
        if head is None:
            head = (await self._store.get(self._cid)).head
        if not self._may_jump(head):
            return
        nearest = await find_nearest(self._store, self._cid, head)
        if nearest is None or self._batches:
            return
        state = nearest.state
        if state is not None and state.head > self._fold.state.head:
            self._fold.jump(state)
            self._states.skip(state.head)
            self._states.erased = nearest.erased
            self.controls += 1  # nobody knows what was in between
        elif self._fold.state.head == 0:
            self._states.erased = nearest.erased

    def _may_jump(self, head: int) -> bool:
        """Whether to continue from a kept state, not with the events up to a head; few events do not rebuild a view."""
        folded = self._fold.state.head
        return head - folded > (STEP if self._fold.view is None else max(STEP, folded))

    async def _read(self, stop: int | None) -> bool:
        """Fold what is in the log and not here, and say whether that is all; staged events meanwhile come first."""
        pace = Pace()
        read = self._store.read(self._cid, self._fold.state.head, stop)
        async with aclosing(read):
            async for stored in read:
                event = await pace.decode(stored)
                if self._batches:
                    return False
                if stored.seq == self._fold.state.head:
                    self._fold.apply(event)
                    self._count_controls([event])
                    self._tell(event)
                    self._listeners.tell(stored)
        return not self._batches

    def _open_batch(self, writer: Writer) -> Write | None:
        last = self._batches[-1] if self._batches else None
        return last if last is not None and last.writer is writer and not last.full else None

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and self._batches:
            self._writing = asyncio.create_task(self._write(), name=f"log of {self._cid}")

    async def _write(self) -> None:
        """Write batch after batch until none is left."""
        try:
            while self._batches:
                await self._write_batch(self._batches[0])
        except asyncio.CancelledError as error:  # the event loop is being closed
            while self._batches:
                self._fail_batch(self._batches[0], error)
            raise
        finally:
            self._writing = None

    async def _write_batch(self, batch: Write) -> None:
        batch.full = True
        try:
            between = await self._append(batch)
            ahead = None if between is None else await self._fold_apart(batch, between)
            self._finish_batch(batch, between, ahead)
        except BaseException as error:  # raised where the events are awaited, or by what the writer stages next
            self._fail_batch(batch, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            batch.done.set_result(None)

    async def _append(self, batch: Write) -> list[StoredEvent] | None:
        """Append a batch, and return what the log has since its mark where others have appended too; None otherwise."""
        while batch.events or (batch.also is not None and not batch.withdrawn):
            try:
                head = await self._append_once(batch)
            except Conflict as error:
                if not batch.conditions or "expected_head" not in error.details:
                    raise
                log = [stored async for stored in self._store.read(self._cid, batch.mark.head)]
                if any(stored.id == batch.events[0].id for stored in log):
                    return log  # written after all: the answer to an earlier attempt was lost
                self._let_precede(batch, log, await self._fold_apart(batch, log))
            else:
                return await self._since(batch, head)
        return None

    async def _append_once(self, batch: Write) -> int:
        """Append a batch, with what is changed beside it, and return the head behind it."""
        generation, expected_head = batch.writer.generation, batch.expects
        if (also := batch.also) is None:
            return await self._store.append(self._cid, batch.events, generation=generation, expected_head=expected_head)
        events, state = tuple(batch.events), self._fold.state.copy()

        def change(tables: Tables) -> int:
            head = tables.append(self._cid, events, generation=generation, expected_head=expected_head)
            also.change(tables, state)
            return head

        head = await self._store.together(also.beside, change)
        also.made()
        return head

    async def _fold_apart(self, batch: Write, log: Sequence[StoredEvent]) -> Fold | None:
        """Return what a log comes to from a batch's mark on; None for a short one, which is folded when it is needed.

        The fold in use stays as it is meanwhile: what others stage in the turns of the loop is folded behind it.
        """
        if len(log) <= LOOK_EVENTS:
            return None
        while True:
            mark, pace = batch.mark, Pace()
            ahead = Fold.at(mark)
            for stored in log:
                ahead.apply(await pace.decode(stored))
            if batch.mark is mark:
                return ahead

    def _fold_behind(self, batch: Write, log: Sequence[StoredEvent], ahead: Fold | None) -> None:
        """Bring the fold to the end of what the log has from a batch's mark on."""
        self._fold.back_to(batch.mark)
        if ahead is not None:
            self._fold.become(ahead)
            return
        for stored in log:
            self._fold.apply(stored.event)

    def _let_precede(self, batch: Write, log: Sequence[StoredEvent], ahead: Fold | None) -> None:
        """Fold what others appended before the first batch, and withdraw what no longer holds behind it."""
        self._fold_behind(batch, log, ahead)
        for stored in log:
            self._tell(stored.event)
            self._listeners.tell(stored)
        self._count_controls([stored.event for stored in log])
        self._stage_again()

    async def _since(self, batch: Write, head: int) -> list[StoredEvent] | None:
        """Return what the log has since the batch's mark where others have appended as well; None otherwise.

        Where that is much, and nobody has to be told of each event, the mark moves on to a kept state.
        """
        if head - len(batch.events) == batch.mark.head:
            return None
        nearest = None
        if self._may_jump(head):
            nearest = await find_nearest(self._store, self._cid, head)
        if nearest is not None and nearest.state is not None and nearest.state.head > batch.mark.head:
            batch.mark = Mark(nearest.state)
            self._states.skip(nearest.state.head)
            self._states.erased = nearest.erased
        return [stored async for stored in self._store.read(self._cid, batch.mark.head, head)]

    def _finish_batch(self, batch: Write, log: list[StoredEvent] | None, ahead: Fold | None) -> None:
        self._batches.popleft()
        for event in batch.events:
            if event.id in batch.conditions:
                self._tell(event)
        if log is None:
            for seq, event in enumerate(batch.events if self._listeners.listeners else (), batch.mark.head):
                self._listeners.tell(_make_stored(seq, event))
                self._tell_pieces(batch, event.id)
            self._states.write(self._fold.kept, self.durable)
            return
        own = {event.id for event in batch.events}
        self._fold_behind(batch, log, ahead)
        for stored in log:
            if stored.id not in own:
                self._count_controls([stored.event])
                self._tell(stored.event)
            self._listeners.tell(stored)
            self._tell_pieces(batch, stored.id)
        self._stage_again()
        self._states.write(self._fold.kept, self.durable)

    def _tell_pieces(self, batch: Write, event: UUID) -> None:
        for piece in batch.pieces.get(event, ()):
            self._listeners.tell(piece)

    def _fail_batch(self, batch: Write, error: BaseException) -> None:
        failed = [batch]
        if batch.writer.generation is not None:
            batch.writer.failure = error
            failed = [other for other in self._batches if other.writer is batch.writer]
        self._fold.back_to(batch.mark)
        self._batches = deque(other for other in self._batches if other not in failed)
        self._stage_again()
        for other in failed:
            other.done.set_exception(error)
            other.done.exception()  # looked at: it is raised where the batch is awaited, if it is

    def _stage_again(self) -> None:
        """Fold what is still on its way anew, after what is durable; what no longer holds there is withdrawn."""
        for batch in self._batches:
            batch.mark = self._fold.mark()
            events: list[Event] = []
            for event in batch.events:
                condition = batch.conditions.get(event.id)
                if condition is not None and not condition():
                    del batch.conditions[event.id]
                    batch.withdrawn.add(event.id)
                    continue
                self._fold.apply(event)
                events.append(event)
            batch.events[:] = events

    def _count_controls(self, events: Sequence[Event]) -> None:
        self.controls += sum(is_control(event) for event in events)

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            self._fold.apply(event)

    def _tell(self, event: Event) -> None:
        for watcher in self.watchers:
            watcher(event)


def as_recorded(event: Event) -> Event:
    """Return the event as the log gives it back: invalid text has been replaced there."""
    if _REPLACED not in encode(event):
        return event
    recorded = _make_stored(0, event).event
    return recorded.carry_bytes(event) if isinstance(recorded, UserMessage) else recorded


def _make_stored(seq: int, event: Event) -> StoredEvent:
    return StoredEvent(seq=seq, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event))
