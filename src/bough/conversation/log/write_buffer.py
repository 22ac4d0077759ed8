"""A write buffer in front of a conversation's log, with optimistic concurrency.

Staged events are folded at once and written in batches: by the next `settle`, which is the barrier before every side
effect, or automatically after `LINGER_SECONDS`. Batches are written one at a time, in order. When another process has
appended in between, or a batch fails, the fold is reset to the durable events and the other batches are folded again.

Some events are valid only while the log before them is unchanged, for example that a call may start or that a run has
ended. They carry a condition on the fold and are written by compare-and-set: the batch names the head it was folded on.
If other writers were faster, their events are folded first and the condition is evaluated again. An event whose
condition is now false is withdrawn; the remaining events of its batch are written.
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
from bough.conversation.log.kept_states import StateWriter, find_nearest
from bough.conversation.log.listeners import Delta, Listeners
from bough.conversation.log.staged_write import Also, Condition, Write, Writer, is_control
from bough.conversation.log.state import LOOK_EVENTS, STEP, Fold, Mark, YieldingDecoder
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
    from bough.events.side_tables import Tables

LINGER_SECONDS = 0.02
"""How long a staged event waits for others to join its batch while no caller waits for it."""


_REPLACED = "\ufffd".encode()


class Staging:
    """The write buffer of one conversation, shared by all its writers in this process.

    Attributes:
        watchers: Called once for each event when it is first folded, durable or not; for an event with a condition,
            when it is durable.
        controls: How many events that control a run were folded and were not written by the holder of the lease.
            A review of a call is outdated once this number has changed.
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
        """The number of folded events that are durable, with their final seq."""
        return self._batches[0].mark.head if self._batches else self._fold.state.head

    @property
    def has_prompts(self) -> bool:
        """Whether a prompt (a message or the text of a skill) is staged and not durable yet."""
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
        """Fold events and stage them for writing; O(len(events)).

        Args:
            condition: Must be true now, and when the events are written; see `Write.withdrawn`.
            also: A change in the same transaction. It gets a separate batch, also without any events.
            alone: Whether the events get a separate batch, as those with `expected_head` always do.

        Raises:
            CorruptLog: An event does not match its kind; nothing is staged.
            BoughError: Events that the writer staged earlier could not be written.
        """
        events = [as_recorded(event) for event in events]
        if writer.failure is not None:
            raise writer.failure  # these events assume that the failed ones are in the log
        alone = alone or expected_head is not None or also is not None
        batch = None if alone else self._open_batch(writer)
        if batch is None:
            batch = Write(writer, self._fold.mark(), asyncio.get_running_loop().create_future(), expected_head, also)
            batch.full = alone
        try:
            self._apply(events)
        except BaseException:
            # Without this the fold would contain the events before the faulty one, which are never written.
            self._fold.back_to(batch.mark)
            self._apply(batch.events)
            raise
        # Only after folding succeeded: a batch in the queue is written.
        if not batch.events:
            self._batches.append(batch)
        batch.events += events
        if condition is not None:
            batch.conditions |= {event.id: condition for event in events}
        else:
            # Watchers hear of conditional events when they are durable: a withdrawn one never happened.
            for event in events:
                self._tell(event)
        if writer.generation is None:
            self._count_controls(events)
        if self._writing is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._start)
        return batch

    def tell_behind(self, piece: Delta) -> None:
        """Publish a piece of a response after all events that were folded before it."""
        if self._batches and self._batches[-1].events:
            last = self._batches[-1]
            last.pieces.setdefault(last.events[-1].id, []).append(piece)
        else:
            self._listeners.tell(piece)

    async def settle(self, writer: Writer) -> None:
        """Wait until everything that `writer` staged is durable. A cancellation is raised after that.

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
        # Not a plain `await`: a cancelled caller would go on while its batch can still reach the log.
        await finish(batch.done)

    async def flush(self) -> None:
        """Wait until no writer has staged events. Failures are raised to the writers that staged them."""
        while self._batches:
            self._start()
            await asyncio.wait([self._batches[-1].done])

    async def catch_up(self, stop: int | None = None, *, head: int | None = None) -> None:
        """Write the staged events and fold the new events of the log.

        O(new events); without watchers and listeners at most about `STEP` events, the rest comes from a kept state.

        Args:
            stop: Fold only events before this seq.
            head: The head of the log, if the caller knows it.
        """
        # First: events of the log go before staged ones, which would otherwise have to be folded again.
        await self.flush()
        await self._jump(head if stop is None else stop)
        while not await self._read(stop):
            await self.flush()
        self._states.write(self._fold.checkpoints, self.durable)

    async def render(self) -> View:
        """Return the view that the model is shown, built at the first call. O(events), once."""
        from bough.conversation.log.view import View

        while (view := self._fold.view) is None:
            view, head, decoder = View(), 0, YieldingDecoder()
            while head < self.durable:
                read = self._store.read(self._cid, head, self.durable)
                async with aclosing(read):
                    async for stored in read:
                        view.apply(stored.seq, await decoder.decode(stored))
                        head = stored.seq + 1
            # More events may have become durable while this was reading: then it is built again.
            if self._fold.view is None and head == self.durable:
                self._show(view)
        return view

    async def settle_states(self) -> None:
        """Wait until no kept state is being written."""
        await self._states.settle()

    def _show(self, view: View) -> None:
        """Use a view of the durable events, and add the staged events to it."""
        self._fold.view = view
        for batch in self._batches:
            batch.mark = replace(batch.mark, view=view.mark())
            for seq, event in enumerate(batch.events, batch.mark.head):
                view.apply(seq, event)

    async def _jump(self, head: int | None) -> None:
        """Continue from a kept state if the fold is far behind. Watchers and listeners must see every event."""
        if self.watchers or self._listeners.listeners:
            return
        if head is None:
            head = (await self._store.get(self._cid)).head
        if not self._may_jump(head):
            return
        nearest = await find_nearest(self._store, self._cid, head)
        if nearest is None or self._batches:  # staged while this was reading: they are folded on the old state
            return
        state = nearest.state
        if state is not None and state.head > self._fold.state.head:
            self._fold.jump(state)
            self._states.skip(state.head)
            self._states.erased = nearest.erased
            self.controls += 1  # the skipped events may include one that controls a run
        elif self._fold.state.head == 0:
            self._states.erased = nearest.erased

    def _may_jump(self, head: int) -> bool:
        """Whether a kept state is cheaper than folding the events up to `head`. A jump discards the view."""
        folded = self._fold.state.head
        return head - folded > (STEP if self._fold.view is None else max(STEP, folded))

    async def _read(self, stop: int | None) -> bool:
        """Fold the new events of the log. Returns False if events were staged meanwhile: write them first."""
        decoder = YieldingDecoder()
        read = self._store.read(self._cid, self._fold.state.head, stop)
        async with aclosing(read):
            async for stored in read:
                event = await decoder.decode(stored)
                if self._batches:
                    return False
                # Not so for events that this buffer itself wrote and folded while the read was going on.
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
        """Write the batches in order until none is left."""
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
        batch.full = True  # before the first await: an event added later would be folded and not written
        try:
            between = await self._append(batch)
            ahead = None if between is None else await self._fold_apart(batch, between)
            self._finish_batch(batch, between, ahead)
        except BaseException as error:  # raised to the caller that waits for the batch, or by the writer's next `add`
            self._fail_batch(batch, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            batch.done.set_result(None)

    async def _append(self, batch: Write) -> list[StoredEvent] | None:
        """Append a batch. Returns the events since its mark if other writers have appended too, else None."""
        while batch.events or (batch.also is not None and not batch.withdrawn):
            try:
                head = await self._append_once(batch)
            except Conflict as error:
                if not batch.conditions or "expected_head" not in error.details:
                    raise
                log = [stored async for stored in self._store.read(self._cid, batch.mark.head)]
                if any(stored.id == batch.events[0].id for stored in log):
                    return log  # an earlier attempt succeeded and its response was lost
                self._rebase_on(batch, log, await self._fold_apart(batch, log))
            else:
                return await self._since(batch, head)
        return None

    async def _append_once(self, batch: Write) -> int:
        """Append a batch with its change of side tables in one transaction, and return the new head."""
        generation, expected_head = batch.writer.generation, batch.expects
        if (also := batch.also) is None:
            return await self._store.append(self._cid, batch.events, generation=generation, expected_head=expected_head)
        # Copies: `change` runs in another thread, while this one goes on folding.
        events, state = tuple(batch.events), self._fold.state.copy()

        def change(tables: Tables) -> int:
            head = tables.append(self._cid, events, generation=generation, expected_head=expected_head)
            also.change(tables, state)
            return head

        head = await self._store.transaction(also.side_tables, change)
        also.made()
        return head

    async def _fold_apart(self, batch: Write, log: Sequence[StoredEvent]) -> Fold | None:
        """Return a separate fold of the events since a batch's mark; None for a few events, which are folded later.

        A long fold yields to the event loop. Others may stage events meanwhile, on the fold in use, which is unchanged.
        """
        if len(log) <= LOOK_EVENTS:
            return None
        while True:
            mark, decoder = batch.mark, YieldingDecoder()
            ahead = Fold.at(mark)
            for stored in log:
                ahead.apply(await decoder.decode(stored))
            # A failed batch before this one moves the mark, and `ahead` would contain its events.
            if batch.mark is mark:
                return ahead

    def _fold_behind(self, batch: Write, log: Sequence[StoredEvent], ahead: Fold | None) -> None:
        """Reset the fold to a batch's mark, and fold the events of the log since then."""
        self._fold.back_to(batch.mark)
        if ahead is not None:
            self._fold.become(ahead)
            return
        for stored in log:
            self._fold.apply(stored.event)

    def _rebase_on(self, batch: Write, log: Sequence[StoredEvent], ahead: Fold | None) -> None:
        """Put events of other writers before the unwritten batches, and drop those whose condition no longer holds."""
        self._fold_behind(batch, log, ahead)
        for stored in log:
            self._tell(stored.event)
            self._listeners.tell(stored)
        self._count_controls([stored.event for stored in log])
        self._stage_again()

    async def _since(self, batch: Write, head: int) -> list[StoredEvent] | None:
        """Return the events since the batch's mark if other writers have appended too, else None.

        If there are many, and no watcher or listener must see each of them, the mark moves to a kept state.
        """
        # The store returned a head that only this batch's own events explain.
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
        # Before any watcher is called: it may look at `durable`, or stage events behind this batch.
        self._batches.popleft()
        for event in batch.events:
            if event.id in batch.conditions:
                self._tell(event)
        if log is None:
            for seq, event in enumerate(batch.events if self._listeners.listeners else (), batch.mark.head):
                self._listeners.tell(_make_stored(seq, event))
                self._tell_pieces(batch, event.id)
            self._states.write(self._fold.checkpoints, self.durable)
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
        self._states.write(self._fold.checkpoints, self.durable)

    def _tell_pieces(self, batch: Write, event: UUID) -> None:
        for piece in batch.pieces.get(event, ()):
            self._listeners.tell(piece)

    def _fail_batch(self, batch: Write, error: BaseException) -> None:
        # Events of a run depend on its earlier ones, so all its batches fail. Those of other writers are independent.
        failed = [batch]
        if batch.writer.generation is not None:
            batch.writer.failure = error
            failed = [other for other in self._batches if other.writer is batch.writer]
        self._fold.back_to(batch.mark)
        self._batches = deque(other for other in self._batches if other not in failed)
        self._stage_again()
        for other in failed:
            other.done.set_exception(error)
            other.done.exception()  # marks it as retrieved: asyncio would log the failure of a batch nobody awaits

    def _stage_again(self) -> None:
        """Fold the staged batches again, after the durable events. Withdraws events whose condition is now false."""
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
    """Return the event as the log returns it, with invalid text replaced."""
    if _REPLACED not in encode(event):
        return event
    recorded = _make_stored(0, event).event
    return recorded.carry_bytes(event) if isinstance(recorded, UserMessage) else recorded


def _make_stored(seq: int, event: Event) -> StoredEvent:
    return StoredEvent(seq=seq, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event))
