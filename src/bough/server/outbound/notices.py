"""Writing webhook deliveries in the transactions that change conversations and tasks, so that none is lost.

Every process that changes them calls `follow_notices`. Servers send the deliveries; workers only write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from bough.events.record import StoredEvent
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import SERVER
from bough.types import JsonObject, SystemClock, new_id

EVENTS, A2A = "events", "a2a"
DELETED = "conversation.deleted"
KINDS = ("conversation.status", "conversation.waiting", DELETED, "task.state", "run.finished")
"""The kinds of notices."""

MAX_DUE = 1000
"""Maximum number of waiting deliveries of one webhook. Beyond it, the oldest are deleted."""

_FOLLOWED = ("StateChanged", "TaskChanged")
_ENDED = ("completed", "failed", "cancelled")


def follow_notices(store: EventStore, wake: Callable[[], object] | None = None) -> None:
    """Write deliveries in the transactions that change conversations and tasks through this store object.

    Args:
        wake: Called when deliveries were written, in the thread that wrote them.
    """

    def note(tables: Tables, conversation: UUID, event: StoredEvent) -> None:
        if _add_deliveries(tables, conversation, event) and wake is not None:
            wake()

    store.on_append(SERVER, _FOLLOWED, note)


def note_deletion(tables: Tables, tenant: str, conversation: UUID) -> None:
    """Write the deliveries of a deletion, for which the log has no event."""
    _deliver_to_listeners(tables, tenant, conversation, [(DELETED, {})], None)


def describe_notice(
    kind: str, tenant: str, *, conversation: str | None = None, seq: int | None = None, data: Mapping[str, Any]
) -> JsonObject:
    """Return the body of a delivery; it never contains the text of messages."""
    header = {"id": str(new_id()), "kind": kind, "ts": SystemClock().now().isoformat(), "tenant": tenant}
    return {**header, "conversation": conversation, "seq": seq, "data": dict(data)}


def _add_deliveries(tables: Tables, conversation: UUID, event: StoredEvent) -> bool:
    """Write the deliveries of an event, and return whether any webhook gets one."""
    notices = _list_notices(event)
    if not notices:
        return False
    return _deliver_to_listeners(tables, tables.get(conversation).owner or LOCAL, conversation, notices, event.seq)


def _deliver_to_listeners(
    tables: Tables, tenant: str, conversation: UUID, notices: Sequence[tuple[str, JsonObject]], seq: int | None
) -> bool:
    """Write a delivery for each pair of a notice and an active webhook of the tenant that wants its kind.

    Args:
        notices: Kinds and data.
        seq: The seq of the event; None without one.

    Returns:
        Whether a delivery was written.
    """
    added = False
    for id, kind, target, kinds in tables.run("server.listening", tenant=tenant):
        for name, data in notices:
            if kind == A2A and (name != "task.state" or data.get("task") != target):
                continue
            if name in json.loads(kinds):
                body = describe_notice(name, tenant, conversation=str(conversation), seq=seq, data=data)
                tables.run("server.add_delivery", webhook=id, body=json.dumps(body), now=tables.now())
                tables.run("server.drop_oldest", webhook=id, most=MAX_DUE)
                added = True
    return added


def _list_notices(event: StoredEvent) -> list[tuple[str, JsonObject]]:
    """Return the kind and data of each notice about an event."""
    document = event.as_json()
    if event.kind == "TaskChanged":
        data: JsonObject = {"task": document["task_id"], "state": document["state"]}
        ended = [("run.finished", data)] if document["state"] in _ENDED else []
        return [("task.state", data), *ended]
    status = document.get("changes", {}).get("status")
    if status is None:
        return []
    waiting = [("conversation.waiting", {"status": status})] if status == "waiting_for_confirmation" else []
    return [("conversation.status", {"status": status}), *waiting]
