"""The store as an import sees it: every id in a bundle must be new or its owner's."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from bough.errors import Conflict
from bough.events.draft import ImportPiece
from bough.events.record import ConversationFilter, ConversationRecord, StoredEvent
from bough.events.store import StoreAdmin
from bough.server.auth.owned import OwnedStore


class ImportStore(OwnedStore):
    """The store as `store_bundle` uses it for one owner.

    A row of another owner is a conflict and not `NotFound`, because a missing row would be inserted.
    """

    def __init__(self, store: StoreAdmin, owner: str | None) -> None:
        super().__init__(store, owner)
        self._whole = store

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation of the owner, even of a deleted one.

        Raises:
            NotFound: No conversation has that id.
            Conflict: It belongs to another owner.
        """
        record = await self._whole.peek(cid)
        if not (await self._is_in_own_tree(record) if record.deleted else record.owner == self.owner):
            raise _make_conflict()
        return record

    async def _is_in_own_tree(self, tombstone: ConversationRecord) -> bool:
        """Whether the owner has another conversation of its tree, since a tombstone does not record its owner."""
        page = await self.list(ConversationFilter(root=tombstone.root), limit=1)
        return bool(page.items)

    async def span(self, owner: UUID, lo: int, hi: int) -> list[StoredEvent]:
        """Return events of a conversation of the owner, deleted ones included."""
        await self.peek(owner)
        return await self._whole.span(owner, lo, hi)

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing rows in one transaction.

        Raises:
            Conflict: An event's id is used elsewhere.
        """
        try:
            await self._whole.restore(pieces)
        except Conflict as error:
            raise _make_conflict() from error  # the message must not tell who the owner is


def _make_conflict() -> Conflict:
    return Conflict("an id in the bundle is taken", hint="it cannot be imported here: ask who has it for a fork")
