"""What a record says came from outside of the run, and when: it is brought in again at the same places in a replay.

Places are counted in steps of the run itself (responses, calls and how they ended), because the log of a replay may
hold other events in between.
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
"""What a run does by itself, in the order in which it does it."""

INWARD = frozenset({"hook", REMINDER})
"""Senders of messages that a run writes itself."""


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """A message that found nothing to do, so that a run followed it. None: what was waiting is condensed."""

    message: UserMessage | None


@dataclass(frozen=True, kw_only=True)
class Steering:
    """A message that came while there was work to do.

    Attributes:
        steps: How many steps had been taken.
        response: Number of the response the model was writing meanwhile; None where it was not.
    """

    message: UserMessage
    steps: int
    response: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A condensation: which of the messages that the model saw it stands for, and after how many responses.

    Attributes:
        first: Of the messages, from 0; `last`: after the last one.
    """

    event: Condensed
    responses: int
    first: int
    last: int


@dataclass
class RecordedParts:
    """The parts of a record that a replay brings in, in their order."""

    turns: list[RecordedTurn] = field(default_factory=list[RecordedTurn])
    steering: deque[Steering] = field(default_factory=deque[Steering])
    summaries: deque[Summary] = field(default_factory=deque[Summary])

    @classmethod
    def of(cls, record: Sequence[StoredEvent]) -> RecordedParts:
        """Read a record up to its last response. O(events)."""
        parts, state, view = cls(), State(), View()
        last = max((stored.seq for stored in record if stored.kind == "ModelResponded"), default=-1)
        steps = responses = 0
        for at, stored in enumerate(record):
            event = stored.event
            if stored.seq < last:
                if isinstance(event, UserMessage) and event.sender not in INWARD:
                    parts._message(event, state.has_work, steps, _writing(record, at, responses))
                elif isinstance(event, Condensed):
                    parts._summary(event, view, responses, idle=not state.has_work)
            steps += isinstance(event, STEPS)
            responses += isinstance(event, ModelResponded)
            state.apply(stored.seq, event)
            view.apply(stored.seq, event)
        return parts

    def due(self, steps: int) -> list[UserMessage]:
        """Return the messages that come now that so many steps have been taken."""
        messages: list[UserMessage] = []
        while self.steering and self.steering[0].response is None and self.steering[0].steps <= steps:
            messages.append(self.steering.popleft().message)
        return messages

    def due_while_writing(self, response: int) -> list[UserMessage]:
        """Return the messages that come while the model writes this response."""
        messages: list[UserMessage] = []
        while self.steering and (number := self.steering[0].response) is not None and number <= response:
            messages.append(self.steering.popleft().message)
        return messages

    def _message(self, event: UserMessage, has_work: bool, steps: int, response: int | None) -> None:
        message = UserMessage(content=event.content, sender=event.sender)
        if has_work:
            self.steering.append(Steering(message=message, steps=steps, response=response))
        else:
            self.turns.append(RecordedTurn(message=message))

    def _summary(self, event: Condensed, view: View, responses: int, *, idle: bool) -> None:
        inside = [at for at, item in enumerate(view.shown) if event.start <= item.start and item.stop <= event.stop]
        if inside:
            self.summaries.append(Summary(event=event, responses=responses, first=inside[0], last=inside[-1] + 1))
            if idle:
                self.turns.append(RecordedTurn(message=None))


def _writing(record: Sequence[StoredEvent], at: int, responses: int) -> int | None:
    """Return the number of the response that was being written when event number `at` came; None for none."""
    following = next((stored.event for stored in record[at:] if isinstance(stored.event, ModelResponded)), None)
    seen_head = None if following is None else following.seen
    return (
        responses if seen_head is not None and record[at].seq >= seen_head and not _tools_between(record, at) else None
    )


def _tools_between(record: Sequence[StoredEvent], at: int) -> bool:
    for stored in record[at + 1 :]:
        if isinstance(stored.event, STEPS):
            return not isinstance(stored.event, ModelResponded)
    return False


@dataclass(frozen=True)
class RecordedCondenser:
    """Puts the recorded summaries where they were, without asking a model.

    Attributes:
        responses: Returns how many responses the replay has had.
    """

    parts: RecordedParts
    responses: Callable[[], int]

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return the summary that comes now; None where none does, or what it stood for is not there."""
        due = self.parts.summaries
        if not due or due[0].responses > self.responses():
            return None
        summary = due.popleft()
        if summary.last > len(view.shown):
            return None
        start, stop = view.shown[summary.first].start, view.shown[summary.last - 1].stop
        return Condensed(start=start, stop=stop, summary=summary.event.summary, usage=summary.event.usage)


@dataclass
class Conductor:
    """Follows a replay step by step and brings in what comes from outside.

    Attributes:
        send: Appends a message as `send_message` does, at once.
        responses: How many responses the replay has had; `steps`: how many steps.
    """

    parts: RecordedParts
    send: Callable[[UserMessage], None] | None = None
    responses: int = 0
    steps: int = 0

    def watch(self, event: Event) -> None:
        """Take in what the replay does, and bring in what comes after it."""
        self.responses += isinstance(event, ModelResponded)
        self.steps += isinstance(event, STEPS)
        if isinstance(event, (*STEPS, UserMessage)):
            self._send(self.parts.due(self.steps))

    async def while_writing(self, response: int) -> None:
        """Bring in what came while the model wrote this response."""
        self._send(self.parts.due_while_writing(response))

    def _send(self, messages: Sequence[UserMessage]) -> None:
        if self.send is not None:
            for message in messages:
                self.send(message)
