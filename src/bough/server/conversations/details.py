"""What the document of a conversation says beside its row and its fold: read only where there is something to read."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from bough.conversation import State
from bough.events.model import SkillActivated, TaskLinked
from bough.events.record import ConversationRecord
from bough.server.auth.owned import OwnedStore
from bough.server.bodies.info import InfoDetails

_WAITING = "waiting_for_confirmation"


async def read_details(store: OwnedStore, record: ConversationRecord, state: State) -> InfoDetails:
    """Return the details of a conversation. No statement where it has neither skills, tasks nor waiting calls."""
    triggered: dict[str, None] = {}
    invoked: dict[str, None] = {}
    children: dict[UUID, None] = {}
    kinds = (["SkillActivated"] if state.active_skills else []) + (["TaskLinked"] if _has_tasks(state) else [])
    if kinds:
        async for stored in store.read(record.id, kinds=kinds):
            event = stored.event
            if isinstance(event, SkillActivated) and event.trigger != "always":
                (invoked if event.trigger == "tool" else triggered)[event.name] = None
            # What came before the fork is the source's to name.
            if isinstance(event, TaskLinked) and event.conversation is not None and stored.seq >= state.base:
                children[event.conversation] = None
    return InfoDetails(
        triggered=tuple(sorted(triggered)),
        invoked=tuple(sorted(invoked)),
        children=tuple(children),
        waiting_since=await find_waiting_since(store, record) if state.waiting else None,
    )


async def find_waiting_since(store: OwnedStore, record: ConversationRecord) -> datetime:
    """Return when a conversation that waits began to. O(changes of state since)."""
    async for stored in store.read(record.id, kinds=("StateChanged",), reverse=True):
        if stored.as_json().get("changes", {}).get("status") == _WAITING:
            return stored.ts
    return record.updated


def _has_tasks(state: State) -> bool:
    return bool(state.tasks or state.delegated.requests)
