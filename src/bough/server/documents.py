"""Writing conversations as documents for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from bough.conversation.fork.compare import transcript as plain_transcript
from bough.events.record import ConversationRecord, StoredEvent
from bough.types import JsonObject

Transcript: TypeAlias = Callable[[ConversationRecord, Iterable[JsonObject]], Iterator[str]]
"""Returns a document of a conversation and its events, in pieces."""


def write_document(
    transcript: Transcript | None, record: ConversationRecord, events: Sequence[StoredEvent]
) -> Iterator[str]:
    """Return a document of a conversation in pieces; without `transcript`, its title and plain text."""
    if transcript is None:
        return iter([f"# {record.title or 'untitled'}\n\n{plain_transcript(events)}\n"])
    return transcript(record, (stored.as_json() for stored in events))
