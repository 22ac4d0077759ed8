"""The journal of an open conversation. It masks secrets, appends to the log, folds it, and notifies listeners."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from bough.conversation.log.listeners import Delta, Listeners, OnEvent, Update, local_followers
from bough.conversation.log.prefix import PrefixWatch
from bough.conversation.log.result_files import mask_files
from bough.conversation.log.staged_write import Condition, Ending, SideChange, Writer
from bough.conversation.log.state import Fold, State
from bough.conversation.log.turns import fold_to_turn
from bough.conversation.log.write_buffer import Staging, as_recorded
from bough.errors import BoughError, InvalidInput
from bough.events.model import Event, ToolReturned
from bough.events.store import EventStore
from bough.guard import Masker, MaskStream, Secrets

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from bough.conversation.log.view import View

__all__ = ["Delta", "Journal", "Update"]


class Journal:
    """The log of one conversation with its fold (`state`) and its view.

    Events appended here are folded at once. Events of other processes are folded by `catch_up` and by the next append,
    in the order of the log.
    """

    def __init__(
        self,
        store: EventStore,
        cid: UUID,
        *,
        secrets: Secrets | None = None,
        fold: Fold | None = None,
        predecessor: Staging | None = None,
    ) -> None:
        self.secrets = secrets or Secrets()
        self.store = store
        self._fold = fold or Fold()
        self._writer = Writer()
        self._streams: dict[tuple[str, str | None], tuple[MaskStream, Delta]] = {}
        self._streamed_response: UUID | None = None
        self._streamed_lengths: dict[tuple[str, str | None], int] = {}
        self._bind(cid, predecessor=predecessor)

    def _bind(self, cid: UUID, *, predecessor: Staging | None = None) -> None:
        """Use the log of a conversation, with new listeners and a new write buffer.

        Args:
            predecessor: The write buffer of a log that shares the kept states up to the present position.
        """
        self.cid = cid
        self._listeners = Listeners(cid)
        self._staging = Staging(self.store, cid, self._fold, self._listeners, predecessor=predecessor)
        self.listeners = self._listeners.listeners

    @cached_property
    def prefix(self) -> PrefixWatch:
        """Compares each request to the model with the one before it."""
        return PrefixWatch(self.cid)

    def call_for_updates(self, on_event: OnEvent) -> AbstractAsyncContextManager[None]:
        """Call `on_event` for every update during the block; see `Listeners.call_for_updates`."""
        return self._listeners.call_for_updates(on_event)

    @property
    def state(self) -> State:
        """The state after the events folded so far; always the same object."""
        return self._fold.state

    @property
    def view(self) -> View:
        """The view that the model is shown. `render` must be awaited first.

        A watcher must be registered while the view is used, so that no jump to a kept state discards it.
        """
        assert self._fold.view is not None, "await render() first"  # noqa: S101 - only a bug can fail this
        return self._fold.view

    async def render(self) -> View:
        """Return the view that the model is shown, built at the first call. O(events), once.

        Raises:
            CorruptLog: An event is missing, or does not match its kind.
        """
        return await self._staging.render()

    async def messages(self) -> list[ModelMessage]:
        """Return the messages that the model is shown, with the bytes of files. O(events) once, then O(messages).

        Raises: see `render`.
        """
        from bough.conversation.log.view import fill_files  # imports PydanticAI, which a fork does not need

        messages = (await self.render()).messages()
        await fill_files(self.store, self.cid, messages)
        return messages

    @property
    def watchers(self) -> list[Callable[[Event], None]]:
        """Called with every event as soon as it is folded, durable or not."""
        return self._staging.watchers

    @property
    def durable(self) -> int:
        """How many of the folded events are durable."""
        return self._staging.durable

    async def catch_up(self, head: int | None = None) -> None:
        """Write the staged events and fold the new events of the log. O(new events).

        Args:
            head: The head of the log, if the caller has just read it. Saves a query.

        Raises: see `settle`.
        """
        await self._staging.catch_up(head=head)
        await self.settle()

    def stage(self, *events: Event) -> None:
        """Mask secrets, fold the events now and write them soon, in order, all or none.

        Await `settle` before any side effect that depends on them.

        Raises:
            BoughError: Events staged earlier could not be written.
        """
        if events:
            self._staging.add(self._writer, self.mask(events))

    async def settle(self) -> None:
        """Wait until all events staged by this journal are durable. Required before every side effect.

        A cancellation is raised after the events are in the log.

        Raises:
            Conflict: The lease was lost.
            StoreError: The store could not write.
        """
        await self._staging.settle(self._writer)

    async def settle_prompts(self) -> None:
        """Wait until all prompts of the next request are durable and have their final seq.

        Raises: see `settle`.
        """
        while self._staging.has_prompts:
            await self._staging.flush()
        if self._writer.failure is not None:
            raise self._writer.failure

    async def append(
        self, *events: Event, expected_head: int | None = None, change: Ending | None = None, alone: bool = False
    ) -> None:
        """Append and fold all events or none, durable on return.

        Args:
            change: Made in the same transaction, after the events.
            alone: Whether they get a separate batch, so that a duplicate id fails no other events.

        Raises:
            Conflict: The lease was lost, the head is not `expected_head`, or another event has one of the ids.
            StoreError: The store could not write.
        """
        side_change = None if change is None else _make_side_change(change, None)
        batch = self._staging.add(
            self._writer, self.mask(events), expected_head=expected_head, side_change=side_change, alone=alone
        )
        await self._staging.wait_written(batch)

    @property
    def controls(self) -> int:
        """How many events of other writers that control a run were folded: new rules, decisions on calls, pauses."""
        return self._staging.controls

    async def append_while(self, condition: Condition, *events: Event, ending: Ending | None = None) -> bool:
        """Append events by compare-and-set: only if `condition` is true for the state right before them.

        The condition is evaluated now, and again whenever another writer was faster.

        Args:
            ending: Made in the same transaction, after the events.

        Returns:
            True if the events are durable. False if nothing was written; `state` includes the other writers' events.

        Raises:
            Conflict: The lease was lost.
            StoreError: The store could not write.
        """
        if not condition():
            return False
        side_change = None if ending is None else _make_side_change(ending, None)
        batch = self._staging.add(self._writer, self.mask(events), condition=condition, side_change=side_change)
        await self._staging.wait_written(batch)
        return batch.withdrawn.isdisjoint(event.id for event in events)

    async def finish(
        self, *events: Event, ending: Ending, error: BoughError | None = None, expected_head: int | None = None
    ) -> None:
        """Append the last events of a run and make the change of `ending`, in one transaction. Durable on return.

        Raises:
            Conflict: The lease was lost, or the head is not `expected_head`. Nothing is written, and this journal
                refuses later events.
            StoreError: The store could not write.
        """
        masked, side_change = self.mask(events), _make_side_change(ending, error)
        batch = self._staging.add(self._writer, masked, expected_head=expected_head, side_change=side_change)
        await self._staging.wait_written(batch)

    def use_lease(self, generation: int) -> Journal:
        """Return a journal for the holder of a lease. Its appends are refused once another process has the lease.

        State, view and listeners are shared with this journal.
        """
        _ = self.prefix  # created before the copy, so that both share it: it compares requests across runs
        new = copy.copy(self)
        new._writer, new._streams = Writer(generation), {}
        return new

    async def cut(self, at: int) -> Journal:
        """Return a journal of this log that has folded only the first `at` events.

        Nothing is read if `at` is the head. Otherwise the events since the latest kept state before `at` are read: at
        most about `STEP`, plus the events of one response.
        """
        if self.state.head == at == self.durable:
            return Journal(
                self.store, self.cid, secrets=self.secrets, fold=self._fold.copy(), predecessor=self._staging
            )
        state = self._fold.find_checkpoint(at)
        fold, predecessor = (Fold(), None) if state is None else (Fold(state.copy()), self._staging)
        new = Journal(self.store, self.cid, secrets=self.secrets, fold=fold, predecessor=predecessor)
        await new._staging.catch_up(at)
        return new

    async def find_turn(self, number: int) -> int:
        """Return the number of events before turn `number` + 1 begins. The cost is that of `cut`.

        Raises:
            InvalidInput: There is no such turn.
        """
        if not 0 <= number <= self.state.turns:
            raise InvalidInput(
                f"there is no turn {number}: the conversation has {self.state.turns}",
                hint=f"choose a number from 0 to {self.state.turns}",
            )
        head = self.durable
        if number == self.state.turns:
            return head
        start = self._fold.find_checkpoint_before_turn(number)
        state = await fold_to_turn(self.store, self.cid, number, start=start, head=head)
        # The message that begins the next turn may not be durable yet: then the turn ends at the head.
        return state.turn_start if state.turns > number else head

    async def make_fork(self, cid: UUID, events: Sequence[Event] | None = None) -> Journal:
        """Turn this journal into the journal of a fork that was cut at its present position.

        Args:
            events: The events of the fork after the cut, if only the caller has written to it; None reads them from the
                store.
        """
        self._bind(cid, predecessor=self._staging)
        if events is None:
            await self.catch_up()
        for event in events or ():
            self._fold.apply(as_recorded(event))
        return self

    async def aclose(self) -> None:
        """Wait until no kept state is being written."""
        await self._staging.settle_states()

    def stream(self, delta: Delta) -> None:
        """Publish a piece of a response after all earlier events. Masks secrets, also a secret split between pieces."""
        if self.secrets.names:
            key = (delta.kind, delta.tool_call_id)
            stream, _ = self._streams.get(key) or (self.secrets.masker().text_stream(), delta)
            self._streams[key] = (stream, delta)
            delta = replace(delta, text=stream.feed(delta.text))
        if delta.text:
            self._publish(delta)

    def end_stream(self) -> None:
        """Publish the rest of all streams: text held back because it might have been the start of a secret."""
        for stream, last_delta in self._streams.values():
            if text := stream.close():
                self._publish(replace(last_delta, text=text))
        self._streams = {}

    def _publish(self, piece: Delta) -> None:
        if piece.response != self._streamed_response:
            self._streamed_response, self._streamed_lengths = piece.response, {}
        key = (piece.kind, piece.tool_call_id)
        offset = self._streamed_lengths.get(key, 0)
        # Counted after masking: clients compare it with the text that they have received.
        self._streamed_lengths[key] = offset + len(piece.text)
        piece = replace(piece, offset=offset, head=self.state.head)
        # Immediately: a follower reads the events from the store and orders the pieces by their `head`.
        local_followers.publish(self.store.url, self.cid, piece)
        self._staging.publish_piece(piece)

    def mask(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events with the values of secrets masked."""
        return mask_events(self.secrets, events)


def mask_events(secrets: Secrets, events: Sequence[Event]) -> Sequence[Event]:
    """Return the events with the values of secrets masked."""
    if not secrets.names:
        return events
    masker = secrets.masker()
    return tuple(_mask_event(masker, event) for event in events)


def _mask_event(masker: Masker, event: Event) -> Event:
    if isinstance(event, ToolReturned) and event.files:
        event = mask_files(masker, event)
    return type(event).model_validate(masker.json(event.model_dump(mode="json"))).carry_bytes(event)


def _make_side_change(ending: Ending, error: BoughError | None) -> SideChange:
    def mark_made() -> None:
        ending.is_made = True

    return SideChange(ending.side_tables, lambda tables, state: ending.change(tables, state, error), mark_made)
