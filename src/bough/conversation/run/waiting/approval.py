"""What people decide of calls that wait: each is decided once, whoever else decides at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bough.conversation.log.journal import Journal
from bough.conversation.log.staged_write import Ending
from bough.conversation.log.state import State
from bough.conversation.run.waiting.decision import (
    CallDecision,
    choose_answer,
    choose_approved,
    choose_rejected,
    decide,
)
from bough.errors import Conflict
from bough.events.model import Event
from bough.types import Json, JsonObject


@dataclass(frozen=True)
class Decisions:
    """Decides waiting calls of one conversation."""

    journal: Journal

    async def approve(
        self, calls: Sequence[str], *, by: str, reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Record that calls may run: those that are named, or all that wait for an approval.

        Raises:
            Conflict: No call waits for an approval, or a call that is named does not wait.
            InvalidInput: A call waits for an answer; `arguments` come without exactly one call, or are not an object.
        """
        await self._append(lambda state: choose_approved(state, calls, by=by, reason=reason, arguments=arguments))

    async def reject(self, calls: Sequence[str], *, by: str, reason: str) -> None:
        """Record that calls may not run, and why: those that are named, or all that wait.

        Raises:
            Conflict: No call waits, or a call that is named does not.
        """
        await self._append(lambda state: choose_rejected(state, calls, by=by, reason=reason))

    async def answer(self, call: str, value: Json, *, by: str, max_chars: int | None = None) -> None:
        """Record the result of a call that waits, as JSON; the tool itself does not run.

        Args:
            max_chars: How many characters of it the model is shown at most.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is none of the choices; or the call waits for a task, which is answered there.
        """
        await self._append(lambda state: choose_answer(state, call, value, by=by, max_chars=max_chars))

    async def reply(self, message: Sequence[Event], reason: str, *, by: str, change: Ending | None = None) -> None:
        """Append a person's message, which rejects every call that waits, its text being the reason; one append.

        Args:
            change: Made in that very transaction.

        Raises:
            Conflict: The log keeps moving.
        """
        state = self.journal.state
        while True:
            decision = CallDecision(reject=tuple(state.waiting), reason=reason, by=by)
            head, (events, _) = state.head, decide(state, decision)
            try:
                return await self.journal.append(*events, *message, expected_head=head, change=change)
            except Conflict:
                await self.journal.catch_up()
                if state.head == head:
                    raise

    async def _append(self, choose: Callable[[State], CallDecision]) -> None:
        """Append what is decided; when the log has moved on meanwhile, look again."""
        state = self.journal.state
        while True:
            await self.journal.catch_up()
            head = state.head
            events, _ = decide(state, choose(state))
            try:
                return await self.journal.append(*events, expected_head=head)
            except Conflict:
                await self.journal.catch_up()
                if state.head == head:
                    raise
