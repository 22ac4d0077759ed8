"""Record decisions on waiting calls. Each call is decided once, even if several people decide at the same time."""

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
        """Record that the given calls may run, or all calls that wait for an approval if none are given.

        Raises:
            Conflict: No call waits for an approval, or a given call does not wait.
            InvalidInput: A call waits for an answer; or `arguments` is not an object, or not for exactly one call.
        """
        await self._append(lambda state: choose_approved(state, calls, by=by, reason=reason, arguments=arguments))

    async def reject(self, calls: Sequence[str], *, by: str, reason: str) -> None:
        """Reject the given calls, or all waiting calls if none are given, and record why.

        Raises:
            Conflict: No call waits, or a given call does not wait.
        """
        await self._append(lambda state: choose_rejected(state, calls, by=by, reason=reason))

    async def answer(self, call: str, value: Json, *, by: str, max_chars: int | None = None) -> None:
        """Record a JSON value as the result of a waiting call. The tool itself does not run.

        Args:
            max_chars: Maximum number of characters of the value that the model is shown; None shows all.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is not one of the choices; or the call waits for a task, which must be answered.
        """
        await self._append(lambda state: choose_answer(state, call, value, by=by, max_chars=max_chars))

    async def reply(self, message: Sequence[Event], reason: str, *, by: str, change: Ending | None = None) -> None:
        """Append a person's message and reject every waiting call, in one append.

        Args:
            reason: The reason for the rejections: the text of the message.
            change: Made in the same transaction.

        Raises:
            Conflict: The append was refused although no other writer appended.
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
        """Append the events of the decision that `choose` returns. If another writer was faster, choose again.

        Raises:
            Conflict: The append was refused although no other writer appended.
        """
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
