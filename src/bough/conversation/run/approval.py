"""What people decide of calls that wait: each is decided once, whoever else decides at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bough.conversation.log.journal import Journal
from bough.errors import Conflict
from bough.events.model import Event, StateChanged, ToolRejected
from bough.types import JsonObject

Waiting = dict[str, JsonObject]


@dataclass(frozen=True)
class Decisions:
    """Decides waiting calls of one conversation; no calls named means all of them."""

    journal: Journal

    async def approve(self, calls: Sequence[str], *, by: str) -> None:
        """Record that calls may run.

        Raises:
            Conflict: Nothing waits, or a call that is named does not.
        """

        def approved(chosen: list[str], left: Waiting) -> list[Event]:
            changes: JsonObject = {**_left(left), "approved": chosen}
            return [StateChanged(changes=changes, reason=f"approved by {by}")]

        await self._decide(calls, approved)

    async def reject(self, calls: Sequence[str], *, by: str, reason: str) -> None:
        """Record that calls may not run, and why.

        Raises:
            Conflict: Nothing waits, or a call that is named does not.
        """

        def rejected(chosen: list[str], left: Waiting) -> list[Event]:
            tools = {id: self.journal.state.calls[id].tool for id in chosen}
            refused = [ToolRejected(tool_call_id=id, tool=tools[id], by=by, reason=reason) for id in chosen]
            return [*refused, StateChanged(changes=_left(left))]

        await self._decide(calls, rejected)

    async def _decide(self, calls: Sequence[str], decided: Callable[[list[str], Waiting], list[Event]]) -> None:
        """Append what is decided; when the log has moved on meanwhile, look again."""
        state = self.journal.state
        while True:
            await self.journal.catch_up()
            head, chosen = state.head, self._chosen(calls)
            left = {id: call for id, call in state.waiting.items() if id not in chosen}
            try:
                return await self.journal.append(*decided(chosen, left), expected_head=head)
            except Conflict:
                await self.journal.catch_up()
                if state.head == head:
                    raise

    def _chosen(self, calls: Sequence[str]) -> list[str]:
        waiting = list(self.journal.state.waiting)
        unknown = [call for call in calls if call not in waiting]
        if not waiting or unknown:
            what = f"call {unknown[0]} does not wait" if unknown else "no call waits"
            raise Conflict(f"{what} for a confirmation", hint=f"waiting: {', '.join(waiting) or 'none'}")
        return list(calls) or waiting


def _left(left: Waiting) -> JsonObject:
    return {"status": "waiting_for_confirmation" if left else "idle", "waiting": left}
