"""Exporting conversations to files for other stores and for readers, and importing them in quarantine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import IO, Any, Literal, TypeAlias, cast
from uuid import UUID

from bough.conversation import State
from bough.conversation.log.journal import Journal
from bough.conversation.quarantine import quarantine
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.bundle.bundle import Bundle, parse_bundle, store_bundle
from bough.events.bundle.keys import own_signing_key
from bough.events.draft import ImportPiece
from bough.events.model import Event, StateChanged
from bough.events.record import ConversationFilter, ConversationRecord, StoredEvent
from bough.events.store import StoreAdmin
from bough.server.access import Access
from bough.server.auth.owned import OwnedStore
from bough.server.bodies.info import build_info
from bough.server.documents import write_document
from bough.types import JsonObject

FileFormat: TypeAlias = Literal["bundle", "jsonl", "md"]

SPOOLED_BYTES = 1 << 20
"""Files larger than this are stored on disk while they are received or sent."""

_CHUNK_BYTES = 1 << 16
_FOLD_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


async def write_file(access: Access, record: ConversationRecord, kind: FileFormat) -> IO[bytes]:
    """Write a conversation to a temporary file, and return the file at position 0. O(events).

    The caller closes the file.

    Raises:
        CorruptLog: An event cannot be read.
        StoreError: The key that signs bundles cannot be stored.
    """
    file = cast("IO[bytes]", tempfile.SpooledTemporaryFile(SPOOLED_BYTES))  # noqa: SIM115 - the caller closes it
    try:
        match kind:
            case "bundle":
                key = own_signing_key(access.services.settings.home)
                # From the whole store: the caller owns the conversation, but not always its ancestors.
                await access.services.store.export(record.id, file, key=key)
            case "jsonl":
                async for stored in access.store.read(record.id, 0, record.head):
                    file.write(json.dumps(stored.as_json(), ensure_ascii=False).encode() + b"\n")
            case "md":
                events = [stored async for stored in access.store.read(record.id, 0, record.head)]
                for piece in write_document(access.services.transcript, record, events):
                    file.write(piece.encode("utf-8", "surrogatepass"))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def iterate_file(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the contents of a file in chunks, and close the file."""
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


async def import_file(
    access: Access, file: IO[bytes], *, trusted: Collection[bytes] | None, workspace: str | None
) -> tuple[ConversationRecord, bool]:
    """Import a conversation for the caller's tenant, in quarantine.

    The file cannot widen the tenant's rights: workspace tools are narrowed to the tenant's, paths of the
    server are removed, secrets of other conversations are not available. The model's address is not used until a
    caller who may set it adopts the conversation.

    Args:
        trusted: Public keys, one of which must have signed the file; None accepts any file.
        workspace: The working folder, as for a new conversation.

    Returns:
        The row, and whether the import created or extended the conversation.

    Raises:
        InvalidInput: The file is not a bundle, or contains no conversation.
        PermissionDenied: No key in `trusted` signed it, or the workspace lies outside of the tenant's folder.
        Conflict: An id in it belongs to another tenant, or the conversation exists with other events. Nothing is
            written.
    """
    services, caller = access.services, access.caller
    bundle = await asyncio.to_thread(_parse, file, trusted, caller.owner)
    store = ImportStore(services.store, caller.owner)
    try:
        existing = await store.peek(bundle.record.id)
    except NotFound:
        existing = None
    folder = services.workspaces.folder_for(caller, bundle.record.id, workspace)
    config = {**bundle.record.config, "workspace": str(folder)}
    with services.workspaces.creating(folder):
        record = await store_bundle(store, replace(bundle, record=replace(bundle.record, config=config)))
        is_new = existing is None or existing.deleted or existing.head != record.head
        if is_new:
            journal = Journal(access.store, record.id)
            await journal.catch_up()
            await quarantine(journal, record, services.settings, folder)
            events = _narrowing_events(access, journal.state)
            if events:
                await journal.append(*events)
    return await access.store.get(record.id), is_new


def _narrowing_events(access: Access, state: State) -> list[Event]:
    """Return the events that reduce the agent and rules of an imported log to what its new owner may set."""
    agent = access.services.agents.narrow_recorded(access.caller, state.agent)
    changes: JsonObject = {} if agent == state.agent else {"agent": agent}
    if state.policies.get("sealed") or state.policies.get("secrets"):
        changes["policies"] = {"sealed": {}, "secrets": []}
    return [StateChanged(changes=changes)] if changes else []


def _parse(file: IO[bytes], trusted: Collection[bytes] | None, owner: str | None) -> Bundle:
    """Parse a bundle, check that its events fold to a conversation, and strip what a server adds to its records."""
    bundle = parse_bundle(file, trusted=trusted, owner=owner)
    record = _clean(bundle.record)
    _require_folds(record, bundle.events)
    return replace(bundle, record=record, ancestors=[_clean(ancestor) for ancestor in bundle.ancestors])


def _require_folds(record: ConversationRecord, events: Collection[StoredEvent]) -> None:
    """Check that events fold to a conversation with an agent.

    Raises:
        InvalidInput: They do not.
    """
    state = State()
    try:
        for stored in events:
            state.apply(stored.seq, stored.event)
        build_info(record, state)
    except _FOLD_ERRORS as error:
        raise InvalidInput("the bundle's events are not a conversation", hint="export it again with bough") from error
    if not state.agent:
        raise InvalidInput("the bundle's conversation records no agent", hint="import it with the command line")


def _clean(record: ConversationRecord) -> ConversationRecord:
    """Return the row without what a server adds to it: form, digest of the request, posted agent."""
    config = {name: record.config[name] for name in ("agent", "model", "signed_by") if _is_text(record.config, name)}
    names = ("reason", "actor", "pending", "workspace")
    lineage: JsonObject = {name: record.lineage[name] for name in names if _is_text(record.lineage, name)}
    overrides: Any = record.lineage.get("overrides")
    if isinstance(overrides, list) and all(isinstance(item, str) for item in cast("list[Any]", overrides)):
        lineage["overrides"] = overrides
    return replace(record, config=config | {"form": "ours"}, lineage=lineage)


def _is_text(values: JsonObject, name: str) -> bool:
    return isinstance(values.get(name), str)


class ImportStore(OwnedStore):
    """The store that `store_bundle` imports into, restricted to one owner.

    A row of another owner raises `Conflict` and not `NotFound`, because `store_bundle` would insert a missing row.
    """

    def __init__(self, store: StoreAdmin, owner: str | None) -> None:
        super().__init__(store, owner)
        self._store_admin = store

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation of the owner, even if it is deleted.

        Raises:
            NotFound: No conversation has this id.
            Conflict: The conversation belongs to another owner.
        """
        record = await self._store_admin.peek(cid)
        is_own = await self._is_in_own_tree(record) if record.deleted else record.owner == self.owner
        if not is_own:
            raise _make_conflict()
        return record

    async def _is_in_own_tree(self, tombstone: ConversationRecord) -> bool:
        """Whether the owner has a conversation in the tombstone's tree. A tombstone does not record its owner."""
        page = await self.list(ConversationFilter(root=tombstone.root), limit=1)
        return bool(page.items)

    async def span(self, owner: UUID, lo: int, hi: int) -> list[StoredEvent]:
        """Return a range of events of a conversation of the owner, even if it is deleted."""
        await self.peek(owner)
        return await self._store_admin.span(owner, lo, hi)

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing rows in one transaction.

        Raises:
            Conflict: An event's id is used elsewhere.
        """
        try:
            await self._store_admin.restore(pieces)
        except Conflict as error:
            raise _make_conflict() from error  # the message must not reveal the owner


def _make_conflict() -> Conflict:
    return Conflict("an id in the bundle is taken", hint="it cannot be imported here: ask its owner for a fork")
