"""What people decide of calls that wait: told to the task that waits, or to the log where no task does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from bough.errors import Conflict
from bough.server.access import Access
from bough.server.conversations import opened
from bough.types import JsonObject


async def decide(
    access: Access, id: UUID, *, accept: bool, reason: str = "", calls: Collection[str] = (), run: bool
) -> None:
    """Approve or reject calls that wait, all of them where none is named.

    Args:
        reason: Why they are rejected; the model is told.
        run: Whether the run goes on once nothing waits any more.

    Raises:
        Conflict: Nothing waits, or a call that is named does not.
        LimitExceeded: A new run is needed, and the tenant has as many as it may have.
    """
    runs, by = access.services.runs, access.caller.name
    task = await runs.find_asking(id)
    if task is not None:
        chosen = list(calls) or _calls_of(task.request or {})
        answer: Any = {"approve": chosen} if accept else {"reject": chosen, "reason": reason}
        await runs.broker.provide_input(task.id, answer, run=run, by=by)
        return
    async with opened(access, id) as conversation:
        if accept:
            await conversation.approve(*calls, by=by)
        else:
            await conversation.reject(reason, *calls, by=by)
        waits = bool(conversation.state.waiting)
    if run and not waits and not await runs.is_live(id):  # a run that goes on sees the decision itself
        await runs.start(access.caller, id)


def _calls_of(request: JsonObject) -> list[str]:
    """Return the calls that a task asks about.

    Raises:
        Conflict: It asks a question, which is answered by a value.
    """
    if request.get("kind") != "approval":
        raise Conflict("what waits is no approval", hint="answer it: POST {id}/approvals/{tool_call_id}")
    return [str(call["id"]) for call in request.get("calls", ())]
