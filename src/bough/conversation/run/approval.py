"""What people decide of calls that wait: each is decided once, whoever else decides at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.run.decision import CallDecision, decide, kind_of, require_choice
from bough.errors import Conflict, InvalidInput
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
        if arguments is not None:
            _require_arguments(calls, arguments)

        def choose(state: State) -> CallDecision:
            chosen = tuple(calls) or _waiting(state, "approval")
            if asks := next((id for id in chosen if kind_of(state, id) not in ("approval", None)), None):
                raise InvalidInput(
                    f"call {asks} waits for an answer, not for an approval", hint=f"answer it: answer({asks!r}, …)"
                )
            edited = {} if arguments is None else {chosen[0]: arguments}
            return CallDecision(approve=chosen, arguments=edited, by=by, reason=reason)

        await self._append(choose)

    async def reject(self, calls: Sequence[str], *, by: str, reason: str) -> None:
        """Record that calls may not run, and why: those that are named, or all that wait.

        Raises:
            Conflict: No call waits, or a call that is named does not.
        """
        await self._append(
            lambda state: CallDecision(reject=tuple(calls) or _waiting(state), reason=reason, by=by),
        )

    async def answer(self, call: str, value: Json, *, by: str, shown: int | None = None) -> None:
        """Record the result of a call that waits, as JSON; the tool itself does not run.

        Args:
            shown: How many characters of it the model is shown at most.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is none of the choices; or the call waits for a task, which is answered there.
        """

        def choose(state: State) -> CallDecision:
            waiting = state.waiting.get(call, {})
            if kind_of(state, call) == "task":
                raise InvalidInput(
                    f"call {call} waits for the task {waiting.get('task')}, which asks",
                    hint=f"answer the task: `bough tasks input {waiting.get('task')} …`",
                )
            require_choice(waiting.get("request"), value)
            return CallDecision(answers={call: value}, shown=shown, by=by)

        await self._append(choose)

    async def reply(self, message: Sequence[Event], reason: str, *, by: str) -> None:
        """Append a person's message, which rejects every call that waits, its text being the reason; one append.

        Raises:
            Conflict: The log keeps moving.
        """
        state = self.journal.state
        while True:
            decision = CallDecision(reject=tuple(state.waiting), reason=reason, by=by)
            head, (events, _) = state.head, decide(state, decision)
            try:
                return await self.journal.append(*events, *message, expected_head=head)
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


def _waiting(state: State, kind: str | None = None) -> tuple[str, ...]:
    """Return the calls that wait, those of one kind where it is given; there must be one."""
    found = tuple(id for id in state.waiting if kind is None or kind_of(state, id) == kind)
    if not found:
        others = ", ".join(f"{id} ({kind_of(state, id)})" for id in state.waiting)
        what = "no call waits for an approval" if kind else "no call waits"
        raise Conflict(what, hint=f"waiting: {others or 'none'}")
    return found


def _require_arguments(calls: Sequence[str], arguments: object) -> None:
    if len(calls) != 1:
        raise InvalidInput(
            f"arguments were given for {len(calls)} calls", hint="name the one call whose arguments they are"
        )
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"the arguments of a call are an object, not {type(arguments).__name__}", hint='for example {"path": "a"}'
        )
