"""The head of every screen of one conversation: its title, status and totals, and the tabs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.html.numbers import count_of, format_usd
from bough.server.bodies.conversations import ConversationQuery
from bough.server.routes.conversations import count_conversations
from bough.web.screen import Visit

if TYPE_CHECKING:
    from bough.server.bodies.info import ConversationRecord

WORDS: Mapping[str, str] = {
    "waiting_for_confirmation": "waiting",
    "finished": "done",
    "error": "failed",
}
"""The words for statuses that are not their own words."""


def read_word(record: ConversationRecord, live: Collection[UUID] = ()) -> str:
    """Return the word for the status of a conversation.

    Args:
        live: Conversations that have a pending or running run.
    """
    return "running" if record.id in live else WORDS.get(record.status, record.status)


async def read_head(visit: Visit, record: ConversationRecord) -> dict[str, Any]:
    """Return what the head of a conversation's screens shows. Counts the branches of its tree in one statement."""
    live = await visit.access.services.runs.live_among([record])
    branches = await count_conversations(ConversationQuery(root=record.root), visit.access)
    facts = [str(record.config.get("agent") or ""), count_of(record.head, "event")]
    if record.usage.cost_usd:
        facts.append(format_usd(record.usage.cost_usd))
    return {
        "id": str(record.id),
        "title": record.title or "Untitled",
        "word": read_word(record, live),
        "facts": [fact for fact in facts if fact],
        "tags": [f"{name}: {value}" if value else name for name, value in record.tags.items()],
        "branches": branches,
    }
