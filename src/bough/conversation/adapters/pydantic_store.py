"""PydanticAI's `ConversationStore` in an event store. Needs a version that has this class; see `pydantic_messages`."""

# Checked against the oldest version that is supported, in which these names are unknown.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pydantic_core
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from bough.conversation.adapters.message_log import KeptMessage, MessageLog, entry_id
from bough.errors import Conflict, NotFound
from bough.events.store import StoreAdmin
from bough.types import JsonObject

_RECORD: TypeAdapter[Any] = TypeAdapter(ConversationRecord)


class LogConversationStore(ConversationStore):
    """Conversations of PydanticAI in an event store. The caller closes the store.

    `save` appends to the conversation's log in one transaction. `fork` writes three rows, whatever the length of the
    history. `load` returns the bytes that were saved. `delete` removes the messages that no fork shares; shared ones
    are removed with the last fork that has them.

    Source: PydanticAI's `ConversationStore`.
    """

    def __init__(self, store: StoreAdmin) -> None:
        self._log = MessageLog(store)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if it does not exist. O(1)."""
        record = await self._log.get(conversation_id)
        return None if record is None else _load_record(record)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, most recently saved first. O(conversations in the store)."""
        return [_load_record(record) for record in await self._log.list(scope=scope, limit=limit)]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries, all or nothing.

        Raises:
            ConversationConflict: Another revision is stored; the record or an entry refers to an entry that is not
                stored; or a fork gets the name of a deleted conversation that still has forks.
        """
        with _convert_conflicts(record.conversation_id):
            entries = _dump_entries(new_entries)
            await self._log.save(_RECORD.dump_python(record, mode="json"), entries, expected=expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation.

        Raises:
            ConversationConflict: Another revision is stored.
        """
        with _convert_conflicts(conversation_id):
            await self._log.delete(conversation_id, expected=expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one entry. O(1). Raises `KeyError` if it does not exist."""
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, oldest first. Raises `KeyError` if that entry does not exist."""
        try:
            entries = await self._log.history(None if head_id is None else entry_id(head_id), limit=limit)
        except NotFound as error:
            raise KeyError(head_id) from error
        messages = ModelMessagesTypeAdapter.validate_json(pydantic_core.to_json([entry.message for entry in entries]))
        return [
            ConversationEntry(id=str(entry.id), parent_id=entry.parent and str(entry.parent), message=message)
            for entry, message in zip(entries, messages, strict=True)
        ]


def _load_record(record: JsonObject) -> ConversationRecord:
    return _RECORD.validate_json(pydantic_core.to_json(record))


def _dump_entries(entries: Sequence[ConversationEntry]) -> list[KeptMessage]:
    messages = ModelMessagesTypeAdapter.dump_python([entry.message for entry in entries], mode="json")
    return [
        KeptMessage(id=entry_id(entry.id), parent=entry.parent_id and entry_id(entry.parent_id), message=message)
        for entry, message in zip(entries, messages, strict=True)
    ]


@contextmanager
def _convert_conflicts(name: str) -> Generator[None]:
    """Raise `ConversationConflict` for a `Conflict` in the block."""
    try:
        yield
    except Conflict as error:
        raise ConversationConflict(name) from error
