"""The inputs of a recorded run: messages and summaries, which a replay inserts at the same positions.

Positions are counted in steps of the run (responses, calls and outcomes), because the log of a replay may contain other
events between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bough.conversation.log.condenser import Size
from bough.conversation.log.state import State
from bough.conversation.log.view import View
from bough.conversation.run.loop import REMINDER
from bough.events.model import (
    Condensed,
    Event,
    ModelResponded,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.events.record import StoredEvent

STEPS = (ModelResponded, ToolCalled, ToolReturned, ToolFailed, ToolRejected, ToolInterrupted)
"""The events of a run's steps."""

RUN_SENDERS = frozenset({"hook", REMINDER})
"""The senders of messages that the run itself writes."""


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """The start of a turn: a message that was sent while there was no work; None for a call of `condense`."""

    message: UserMessage | None


@dataclass(frozen=True, kw_only=True)
class Steering:
    """A message that was sent while there was work to do.

    Attributes:
        steps: How many steps came before the message.
        response: Number of the response that the model was writing at that time, from 0; None if it was not writing.
    """

    message: UserMessage
    steps: int
    response: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A recorded condensation.

    Attributes:
        event: The recorded event.
        responses: How many responses came before it.
        first: Index of the first replaced message of the view.
        stop: Index after the last replaced message.
    """

    event: Condensed
    responses: int
    first: int
    stop: int


@dataclass
class RecordedParts:
    """The inputs of a record that a replay inserts, each list in order.

    Attributes:
        turns: Messages and condensations outside of a run.
        steering: Messages that were sent during a run.
        summaries: Condensations.
    """

    turns: list[RecordedTurn] = field(default_factory=list[RecordedTurn])
    steering: deque[Steering] = field(default_factory=deque[Steering])
    summaries: deque[Summary] = field(default_factory=deque[Summary])

    @classmethod
    def of(cls, record: Sequence[StoredEvent]) -> RecordedParts:
        """Read a record up to its last response. O(events)."""
        parts, state, view = cls(), State(), View()
        last_response = max((stored.seq for stored in record if stored.kind == "ModelResponded"), default=-1)
        steps = responses = 0
        for index, stored in enumerate(record):
            event = stored.event
            if stored.seq < last_response:
                if isinstance(event, UserMessage) and event.sender not in RUN_SENDERS:
                    written_response = responses if _is_model_writing(record, index) else None
                    parts._add_message(event, state.has_work, steps, written_response)
                elif isinstance(event, Condensed):
                    parts._add_summary(event, view, responses, is_idle=not state.has_work)
            steps += isinstance(event, STEPS)
            responses += isinstance(event, ModelResponded)
            state.apply(stored.seq, event)
            view.apply(stored.seq, event)
        return parts

    def take_messages(self, steps: int) -> list[UserMessage]:
        """Remove and return the next messages that were sent between responses, after at most `steps` steps."""
        messages: list[UserMessage] = []
        while self.steering and self.steering[0].response is None and self.steering[0].steps <= steps:
            messages.append(self.steering.popleft().message)
        return messages

    def take_messages_during(self, response: int) -> list[UserMessage]:
        """Remove and return the next messages that were sent while the model wrote this response or an earlier one."""
        messages: list[UserMessage] = []
        while self.steering:
            number = self.steering[0].response
            if number is None or number > response:
                break
            messages.append(self.steering.popleft().message)
        return messages

    def _add_message(self, event: UserMessage, has_work: bool, steps: int, response: int | None) -> None:
        message = UserMessage(content=event.content, sender=event.sender)
        if has_work:
            self.steering.append(Steering(message=message, steps=steps, response=response))
        else:
            self.turns.append(RecordedTurn(message=message))

    def _add_summary(self, event: Condensed, view: View, responses: int, *, is_idle: bool) -> None:
        indexes = [
            index for index, item in enumerate(view.shown) if event.start <= item.start and item.stop <= event.stop
        ]
        if not indexes:
            return
        self.summaries.append(Summary(event=event, responses=responses, first=indexes[0], stop=indexes[-1] + 1))
        if is_idle:
            self.turns.append(RecordedTurn(message=None))


def _is_model_writing(record: Sequence[StoredEvent], index: int) -> bool:
    """Whether the model was writing a response when the event at `index` was recorded."""
    next_response = next((stored.event for stored in record[index:] if isinstance(stored.event, ModelResponded)), None)
    if next_response is None or next_response.seen is None:
        return False
    was_requested = record[index].seq >= next_response.seen
    return was_requested and not _is_tool_step_next(record, index)


def _is_tool_step_next(record: Sequence[StoredEvent], index: int) -> bool:
    """Whether the next step after the event at `index` is a call or an outcome, not a response."""
    for stored in record[index + 1 :]:
        if isinstance(stored.event, STEPS):
            return not isinstance(stored.event, ModelResponded)
    return False


@dataclass(frozen=True)
class RecordedCondenser:
    """Inserts the recorded summaries at their recorded positions, without asking a model.

    Attributes:
        responses: Returns how many responses the replay has had.
    """

    parts: RecordedParts
    responses: Callable[[], int]

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return the next recorded summary if its position is reached and the view has the messages, else None."""
        summaries = self.parts.summaries
        if not summaries or summaries[0].responses > self.responses():
            return None
        summary = summaries.popleft()
        if summary.stop > len(view.shown):
            return None
        start, stop = view.shown[summary.first].start, view.shown[summary.stop - 1].stop
        return Condensed(start=start, stop=stop, summary=summary.event.summary, usage=summary.event.usage)


@dataclass
class Conductor:
    """Follows a replay step by step, and inserts the recorded messages.

    Attributes:
        send: Appends a message immediately.
        responses: How many responses the replay has had.
        steps: How many steps the replay has taken.
    """

    parts: RecordedParts
    send: Callable[[UserMessage], None] | None = None
    responses: int = 0
    steps: int = 0

    def watch(self, event: Event) -> None:
        """Count an event of the replay, and send the messages that follow it in the record."""
        self.responses += isinstance(event, ModelResponded)
        self.steps += isinstance(event, STEPS)
        if isinstance(event, (*STEPS, UserMessage)):
            self._send(self.parts.take_messages(self.steps))

    async def send_during(self, response: int) -> None:
        """Send the messages that were sent while the model wrote this response."""
        self._send(self.parts.take_messages_during(response))

    def _send(self, messages: Sequence[UserMessage]) -> None:
        if self.send is not None:
            for message in messages:
                self.send(message)
