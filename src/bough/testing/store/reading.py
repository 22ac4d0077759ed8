"""Functions that the parts of the contract share: they create events and read logs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

from bough.events.model import Event, UserMessage
from bough.events.record import ConversationFilter, ConversationRecord, StoredEvent
from bough.events.store import StoreAdmin

SECONDS = 20


def make_messages(*texts: object) -> list[Event]:
    """Return a user message for each text."""
    return [UserMessage.text(str(text)) for text in texts]


async def read_log(store: StoreAdmin, cid: UUID) -> list[StoredEvent]:
    """Return all events of a conversation."""
    return [stored async for stored in store.read(cid)]


async def read_texts(store: StoreAdmin, cid: UUID) -> list[str]:
    """Return the texts of the messages of a log."""
    return [message_text(stored) for stored in await read_log(store, cid)]


def message_text(stored: StoredEvent) -> str:
    """Return the text of a message."""
    assert isinstance(stored.event, UserMessage)
    return stored.event.plain


async def take(store: StoreAdmin, cid: UUID, n: int, after: int = -1) -> list[StoredEvent]:
    """Return the first n events of a subscription."""
    events: list[StoredEvent] = []
    # With a timeout, so that a missing event fails the test instead of blocking it.
    async with asyncio.timeout(SECONDS):
        async for stored in store.subscribe(cid, after):
            events.append(stored)
            if len(events) == n:
                break
    return events


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def portable(record: ConversationRecord) -> tuple[object, ...]:
    """Return the fields of a record that a bundle contains."""
    position = (record.id, record.root, record.parent, record.base, record.head, record.forked_from, record.forked_at)
    config = {key: value for key, value in record.config.items() if key != "signed_by"}  # each import sets it again
    content = (record.fork_event, record.status, record.title, record.tags, config, record.lineage)
    return (*position, *content, record.created)


async def export_bundle(store: StoreAdmin, cid: UUID) -> bytes:
    """Return a bundle of the conversation."""
    file = io.BytesIO()
    await store.export(cid, file)
    return file.getvalue()


async def read_remaining(tail: AsyncIterator[StoredEvent]) -> list[StoredEvent]:
    """Return the remaining events of a subscription, after it has ended."""
    return [stored async for stored in tail]


async def is_store_empty(store: StoreAdmin) -> bool:
    """Return whether the store has no conversations, including tombstones, and no events."""
    page = await store.list(ConversationFilter(include_deleted=True))
    return page.items == [] and (await store.census()).events == 0
