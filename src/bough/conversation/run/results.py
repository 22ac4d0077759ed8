"""Whole results of a conversation, for the tool that reads on in what the model was shown the ends of."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from bough.conversation.log.tool_result import text_of
from bough.errors import NotFound
from bough.events.model import ToolFailed, ToolReturned
from bough.events.store import EventStore


async def find_result(store: EventStore, cid: UUID, result: str) -> str:
    """Return the text of a result that a conversation has, shared ones of a fork included. Reads one row.

    Args:
        result: The id of its event, in hexadecimal.

    Raises:
        NotFound: The conversation has no such result.
    """
    unknown = NotFound(
        f"this conversation has no result {result[:64]!r}", hint="give the id in the line of what was left out"
    )
    try:
        _, seq = await store.locate(UUID(hex=result), cid=cid)
    except (ValueError, NotFound) as error:
        raise unknown from error
    async for stored in store.read(cid, seq, seq + 1):
        match stored.event:
            case ToolReturned(result=whole):
                return text_of(whole)
            case ToolFailed(error=whole):
                return whole
            case _:
                break
    raise unknown


def result_chars(result_tokens: int, model: Any) -> int:
    """Return how many characters of a result the model is shown: never more than an eighth of its window."""
    window = model.profile.get("context_window")
    return 4 * (result_tokens if window is None else min(result_tokens, window // 8))
