"""The list of conversations: what waits for the reader, what runs, and the others, the latest first."""

from __future__ import annotations

from typing import Any

from bough.server.bodies.conversations import ConversationPage
from bough.server.routes.conversations import list_records
from bough.web.screen import Visit, WebScreen


async def _read(visit: Visit) -> dict[str, Any]:
    page, live = await list_records(ConversationPage(limit=50, sort_order="UPDATED_AT_DESC"), visit.access)
    rows = [
        {"id": str(record.id), "title": record.title or "Untitled", "running": record.id in live}
        for record in page.items
    ]
    return {"title": "Conversations", "rows": rows}


SCREEN = WebScreen(path="/", template="conversations.html", data=_read, place="conversations")
