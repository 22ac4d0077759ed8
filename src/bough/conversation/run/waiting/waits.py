"""Calls that wait for the task of a sub-agent, and when they continue."""

from __future__ import annotations

from bough.conversation.log.state import State
from bough.types import JsonObject


def release_ended(state: State) -> JsonObject | None:
    """Return what a `StateChanged` says of calls that continue because their task has ended; None where none does.

    They run again and find the task that they had started.
    """
    still_waiting = {id: call for id, call in state.waiting.items() if not _is_over(state, call)}
    if len(still_waiting) == len(state.waiting):
        return None
    return {"status": "waiting_for_confirmation" if still_waiting else "idle", "waiting": still_waiting}


def _is_over(state: State, call: JsonObject) -> bool:
    link = state.tasks.get(str(call.get("task")))
    return call.get("kind") == "task" and (link is None or link.ended is not None)
