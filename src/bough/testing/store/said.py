"""What the parts of the contract share: events to say, logs to read."""

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


async def log_of(store: StoreAdmin, cid: UUID) -> list[StoredEvent]:
    """Return the whole log."""
    return [stored async for stored in store.read(cid)]


async def texts_of(store: StoreAdmin, cid: UUID) -> list[str]:
    """Return what the messages of a log say."""
    return [text_of(stored) for stored in await log_of(store, cid)]


def text_of(stored: StoredEvent) -> str:
    """Return what a message says."""
    assert isinstance(stored.event, UserMessage)
    return stored.event.plain


async def take(store: StoreAdmin, cid: UUID, n: int, after: int = -1) -> list[StoredEvent]:
    """Return the first n events of a subscription."""
    found: list[StoredEvent] = []
    async with asyncio.timeout(SECONDS):
        async for stored in store.subscribe(cid, after):
            found.append(stored)
            if len(found) == n:
                break
    return found


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def portable(record: ConversationRecord) -> tuple[object, ...]:
    """Return what of a record a bundle carries."""
    places = (record.id, record.root, record.parent, record.base, record.head, record.forked_from, record.forked_at)
    config = {key: value for key, value in record.config.items() if key != "signed_by"}  # said by each import anew
    words = (record.fork_event, record.status, record.title, record.tags, config, record.lineage)
    return (*places, *words, record.created)


async def export_bundle(store: StoreAdmin, cid: UUID) -> bytes:
    """Return a bundle of the conversation."""
    file = io.BytesIO()
    await store.export(cid, file)
    return file.getvalue()


async def rest(tail: AsyncIterator[StoredEvent]) -> list[StoredEvent]:
    """Return what is left of a subscription, once it ends."""
    return [stored async for stored in tail]


async def nothing_left(store: StoreAdmin) -> bool:
    """Whether no row is left, tombstones included."""
    everything = await store.list(ConversationFilter(include_deleted=True))
    return everything.items == [] and (await store.census()).events == 0
