"""A write buffer in front of a conversation's log, with optimistic concurrency.

Staged events are folded at once and written in batches: by the next `settle`, which is the barrier before every side
effect, or automatically after `LINGER_SECONDS`. Batches are written one at a time, in order. When another process has
appended events meanwhile, or a batch fails, the fold is reset to the durable events and the remaining batches are
folded again.

Some events are valid only for the log before them, for example the start of a call or the end of a run. They have a
condition on the fold and are written by compare-and-set: the batch requires the head on which it was folded. If other
writers were faster, their events are folded first and the condition is evaluated again. If it is now false, the event
is withdrawn, and the remaining events of its batch are written.
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
from bough.conversation.log.staged_write import Condition, SideChange, WriteBatch, Writer, is_control
from bough.conversation.log.state import CLOCK_EVENTS, STEP, Fold, Mark, YieldingDecoder
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

_REPLACEMENT = "\ufffd".encode()


class Staging:
    """The write buffer of one conversation, shared by all its writers in this process.

    Attributes:
        watchers: Called once for each event when it is first folded, durable or not. An event with a condition is
            passed to them when it is durable.
        controls: How many events that control a run were folded, except those of the lease holder. A review of a call
            is outdated once this number has changed.
    """

    def __init__(
        self, store: EventStore, cid: UUID, fold: Fold, listeners: Listeners, *, predecessor: Staging | None = None
    ) -> None:
        self._store = store
        self._cid = cid
        self._fold = fold
        self._listeners = listeners
        self._states = StateWriter(store, cid, predecessor=None if predecessor is None else predecessor._states)
        self.watchers: list[Callable[[Event], None]] = []
        self._batches: deque[WriteBatch] = deque()
        self._write_task: asyncio.Task[None] | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
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
        side_change: SideChange | None = None,
        alone: bool = False,
    ) -> WriteBatch:
        """Fold events and stage them for writing; O(len(events)).

        Args:
            condition: True now. If it is false when the events are written, they are withdrawn.
            side_change: A change in the same transaction. It gets a separate batch, even without events.
            alone: Whether the events get a separate batch. Events with `expected_head` always do.

        Raises:
            CorruptLog: An event does not match its kind; nothing is staged.
            BoughError: Events that the writer staged earlier could not be written.
        """
        events = [as_recorded(event) for event in events]
        if writer.failure is not None:
            raise writer.failure  # these events depend on those that could not be written
        alone = alone or expected_head is not None or side_change is not None
        batch = None if alone else self._open_batch(writer)
        if batch is None:
            done = asyncio.get_running_loop().create_future()
            batch = WriteBatch(writer, self._fold.mark(), done, expected_head, side_change)
            batch.is_closed = alone
        try:
            self._apply(events)
        except BaseException:
            # The fold must not contain the events before the invalid one, because they are not written.
            self._fold.reset_to(batch.mark)
            self._apply(batch.events)
            raise
        # Only after folding has succeeded, because every batch in the queue is written.
        if not batch.events:
            self._batches.append(batch)
        batch.events += events
        if condition is not None:
            batch.conditions |= {event.id: condition for event in events}
        else:
            # Not for events with a condition: they may be withdrawn, so the watchers are called when they are durable.
            for event in events:
                self._call_watchers(event)
        if writer.generation is None:
            self._count_controls(events)
        if self._write_task is None and self._linger_timer is None:
            self._linger_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._start_writing)
        return batch

    def publish_piece(self, piece: Delta) -> None:
        """Publish a piece of a response after all events that were folded before it."""
        if self._batches and self._batches[-1].events:
            last = self._batches[-1]
            last.pieces.setdefault(last.events[-1].id, []).append(piece)
        else:
            self._listeners.notify(piece)

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

    async def wait_written(self, batch: WriteBatch) -> None:
        """Wait until a batch is durable. Raises: see `settle`."""
        self._start_writing()
        # Not a plain `await`: a cancelled caller would continue while its batch may still be written.
        await finish(batch.done)

    async def flush(self) -> None:
        """Wait until no events are staged. A failure is raised only to the writer that staged the events."""
        while self._batches:
            self._start_writing()
            await asyncio.wait([self._batches[-1].done])

    async def catch_up(self, stop: int | None = None, *, head: int | None = None) -> None:
        """Write the staged events and fold the new events of the log.

        O(new events). Without watchers and listeners it folds at most about `STEP` events, from a kept state on.

        Args:
            stop: Fold only events before this seq.
            head: The head of the log, if the caller knows it.
        """
        # First, because new events of the log precede staged ones, which would have to be folded again after them.
        await self.flush()
        end = head if stop is None else stop
        if end is None and self._may_jump:
            end = (await self._store.get(self._cid)).head
        if end is None or end > self._fold.state.head or self._batches:
            await self._jump_to_kept_state(end)
            while not await self._fold_new_events(stop):
                await self.flush()
        self._states.write(self._fold.checkpoints, self.durable)

    async def render(self) -> View:
        """Return the view that the model is shown, built at the first call. O(events), once."""
        from bough.conversation.log.view import View

        while (view := self._fold.view) is None:
            view, head, decoder = View(), 0, YieldingDecoder()
            while head < self.durable:
                stored_events = self._store.read(self._cid, head, self.durable)
                async with aclosing(stored_events):
                    async for stored in stored_events:
                        view.apply(stored.seq, await decoder.decode(stored))
                        head = stored.seq + 1
            # If more events became durable during the read, the view is built again.
            if self._fold.view is None and head == self.durable:
                self._use_view(view)
        return view

    async def settle_states(self) -> None:
        """Wait until no kept state is being written."""
        await self._states.settle()

    def _use_view(self, view: View) -> None:
        """Use a view of the durable events, and add the staged events to it."""
        self._fold.view = view
        for batch in self._batches:
            batch.mark = replace(batch.mark, view=view.mark())
            for seq, event in enumerate(batch.events, batch.mark.head):
                view.apply(seq, event)

    @property
    def _may_jump(self) -> bool:
        """Whether events may be skipped: there is no watcher and no listener, which must see every event."""
        return not (self.watchers or self._listeners.listeners)

    async def _jump_to_kept_state(self, head: int | None) -> None:
        """Continue from a kept state if the fold is far behind and events may be skipped."""
        if head is None or not self._may_jump or not self._should_jump(head):
            return
        nearest = await find_nearest(self._store, self._cid, head)
        if nearest is None or self._batches:  # batches staged meanwhile are folded on the present state
            return
        state = nearest.state
        if state is not None and state.head > self._fold.state.head:
            self._fold.jump(state)
            self._states.skip(state.head)
            self._states.erasure_token = nearest.erasure_token
            self.controls += 1  # the skipped events may include one that controls a run
        elif self._fold.state.head == 0:
            self._states.erasure_token = nearest.erasure_token

    def _should_jump(self, head: int) -> bool:
        """Whether a kept state is cheaper than folding the events up to `head`. A jump discards the view."""
        folded = self._fold.state.head
        return head - folded > (STEP if self._fold.view is None else max(STEP, folded))

    async def _fold_new_events(self, stop: int | None) -> bool:
        """Fold the new events of the log before seq `stop`.

        Returns:
            True if all were folded. False if events were staged meanwhile, which must be written first.
        """
        decoder = YieldingDecoder()
        stored_events = self._store.read(self._cid, self._fold.state.head, stop)
        async with aclosing(stored_events):
            async for stored in stored_events:
                event = await decoder.decode(stored)
                if self._batches:
                    return False
                # With another seq, the event is not new: this buffer wrote and folded it during the read.
                if stored.seq == self._fold.state.head:
                    self._fold.apply(event)
                    self._count_controls([event])
                    self._call_watchers(event)
                    self._listeners.notify(stored)
        return not self._batches

    def _open_batch(self, writer: Writer) -> WriteBatch | None:
        """Return the last batch if `writer` may add events to it, else None."""
        last = self._batches[-1] if self._batches else None
        if last is None or last.writer is not writer or last.is_closed:
            return None
        return last

    def _start_writing(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._write_task is None and self._batches:
            self._write_task = asyncio.create_task(self._write(), name=f"log of {self._cid}")

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
            self._write_task = None

    async def _write_batch(self, batch: WriteBatch) -> None:
        batch.is_closed = True  # before the first await: an event added later would be folded but not written
        try:
            log = await self._append(batch)
            separate_fold = None if log is None else await self._fold_separately(batch, log)
            self._finish_batch(batch, log, separate_fold)
        except BaseException as error:  # raised to the caller that waits for the batch, or by the writer's next `add`
            self._fail_batch(batch, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            batch.done.set_result(None)

    async def _append(self, batch: WriteBatch) -> list[StoredEvent] | None:
        """Append a batch, withdrawing events whose condition is false.

        Returns:
            The events of the log since the batch's mark if other writers have appended some of them, else None.
        """
        while batch.events or (batch.side_change is not None and not batch.withdrawn):
            try:
                head = await self._append_once(batch)
            except Conflict as error:
                if not batch.conditions or "expected_head" not in error.details:
                    raise
                log = [stored async for stored in self._store.read(self._cid, batch.mark.head)]
                if any(stored.id == batch.events[0].id for stored in log):
                    return log  # an earlier attempt succeeded, but its response was lost
                self._rebase_batches(batch, log, await self._fold_separately(batch, log))
            else:
                return await self._read_foreign_events(batch, head)
        return None

    async def _append_once(self, batch: WriteBatch) -> int:
        """Append a batch with its change of side tables in one transaction, and return the new head."""
        generation, expected_head = batch.writer.generation, batch.required_head
        if (side_change := batch.side_change) is None:
            return await self._store.append(self._cid, batch.events, generation=generation, expected_head=expected_head)
        # Copies, because `change` runs in another thread while this one continues to fold events.
        events, state = tuple(batch.events), self._fold.state.copy()

        def change(tables: Tables) -> int:
            head = tables.append(self._cid, events, generation=generation, expected_head=expected_head)
            side_change.change(tables, state)
            return head

        head = await self._store.transaction(side_change.side_tables, change)
        side_change.on_durable()
        return head

    async def _fold_separately(self, batch: WriteBatch, log: Sequence[StoredEvent]) -> Fold | None:
        """Return a separate fold with the events since a batch's mark; None if they are few, and are folded later.

        A long fold yields to the event loop. Meanwhile the fold in use is unchanged, and events may be staged on it.
        """
        if len(log) <= CLOCK_EVENTS:
            return None
        while True:
            mark, decoder = batch.mark, YieldingDecoder()
            separate_fold = Fold.from_mark(mark)
            for stored in log:
                separate_fold.apply(await decoder.decode(stored))
            # If an earlier batch failed meanwhile, its events are in the separate fold, and the mark has moved.
            if batch.mark is mark:
                return separate_fold

    def _fold_log(self, batch: WriteBatch, log: Sequence[StoredEvent], separate_fold: Fold | None) -> None:
        """Reset the fold to a batch's mark, and add the events of the log since then, from a separate fold if any."""
        self._fold.reset_to(batch.mark)
        if separate_fold is not None:
            self._fold.take_over(separate_fold)
            return
        for stored in log:
            self._fold.apply(stored.event)

    def _rebase_batches(self, batch: WriteBatch, log: Sequence[StoredEvent], separate_fold: Fold | None) -> None:
        """Fold events of other writers before the unwritten batches. Withdraws events whose condition is now false."""
        self._fold_log(batch, log, separate_fold)
        for stored in log:
            self._call_watchers(stored.event)
            self._listeners.notify(stored)
        self._count_controls([stored.event for stored in log])
        self._refold_batches()

    async def _read_foreign_events(self, batch: WriteBatch, head: int) -> list[StoredEvent] | None:
        """Return the events since the batch's mark if other writers have appended some of them, else None.

        If there are many, the mark moves to a kept state, and the events before that state are skipped.
        """
        if head - len(batch.events) == batch.mark.head:
            return None
        nearest = None
        if self._should_jump(head):
            nearest = await find_nearest(self._store, self._cid, head)
        if nearest is not None and nearest.state is not None and nearest.state.head > batch.mark.head:
            batch.mark = Mark(nearest.state)
            self._states.skip(nearest.state.head)
            self._states.erasure_token = nearest.erasure_token
        return [stored async for stored in self._store.read(self._cid, batch.mark.head, head)]

    def _finish_batch(self, batch: WriteBatch, log: list[StoredEvent] | None, separate_fold: Fold | None) -> None:
        """Remove a written batch from the queue, and notify watchers and listeners of its events.

        Args:
            log: The events since the batch's mark if other writers have appended some of them, else None.
            separate_fold: See `_fold_separately`.
        """
        # Before any watcher is called, because it may read `durable`, or stage events after this batch.
        self._batches.popleft()
        for event in batch.events:
            if event.id in batch.conditions:
                self._call_watchers(event)
        if log is None:
            if self._listeners.listeners:
                for seq, event in enumerate(batch.events, batch.mark.head):
                    self._listeners.notify(_make_stored(seq, event))
                    self._publish_pieces(batch, event.id)
            self._states.write(self._fold.checkpoints, self.durable)
            return
        own_ids = {event.id for event in batch.events}
        self._fold_log(batch, log, separate_fold)
        for stored in log:
            if stored.id not in own_ids:
                self._count_controls([stored.event])
                self._call_watchers(stored.event)
            self._listeners.notify(stored)
            self._publish_pieces(batch, stored.id)
        self._refold_batches()
        self._states.write(self._fold.checkpoints, self.durable)

    def _publish_pieces(self, batch: WriteBatch, event: UUID) -> None:
        for piece in batch.pieces.get(event, ()):
            self._listeners.notify(piece)

    def _fail_batch(self, batch: WriteBatch, error: BaseException) -> None:
        """Remove a batch that could not be written. If it is a run's, all batches of the run fail."""
        failed = [batch]
        if batch.writer.generation is not None:
            batch.writer.failure = error
            failed = [other for other in self._batches if other.writer is batch.writer]
        self._fold.reset_to(batch.mark)
        self._batches = deque(other for other in self._batches if other not in failed)
        self._refold_batches()
        for other in failed:
            other.done.set_exception(error)
            other.done.exception()  # marks it as retrieved; else asyncio logs it for a batch without a waiter

    def _refold_batches(self) -> None:
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

    def _call_watchers(self, event: Event) -> None:
        for watcher in self.watchers:
            watcher(event)


def as_recorded(event: Event) -> Event:
    """Return the event as it will be read from the log, in which invalid text is replaced by U+FFFD."""
    if _REPLACEMENT not in encode(event):
        return event
    return _make_stored(0, event).event.carry_bytes(event)


def _make_stored(seq: int, event: Event) -> StoredEvent:
    return StoredEvent(seq=seq, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event))
