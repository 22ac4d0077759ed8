"""The conversations of a store or a server: list, delete, erase, export and import them by id, without their agents."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple
from uuid import UUID

from bough.conversation.search import make_query, search_store
from bough.errors import BoughError, Conflict, InvalidInput, NotFound, PermissionDenied, StoreError
from bough.events.check import every_record
from bough.events.draft import parse_id
from bough.events.erasure.receipt import KEPT_FILES, ErasureReceipt
from bough.events.lease import hold_lease
from bough.events.open import StoreT, use_store
from bough.events.record import ConversationFilter, ConversationRecord, DeleteMode, Order, Page, SearchPage
from bough.events.store import EventStore, StoreAdmin
from bough.settings import Settings

_INTERRUPT_SECONDS = 30
"""Time limit for an interrupted run to end; it may wait for blocking functions or for the end of its lease."""

_POLL_SECONDS = 0.1
_PAGE = 500


class ConversationCollection:
    """Class methods of `AsyncConversation` that need no open conversation."""

    @classmethod
    async def list(
        cls,
        store: EventStore | str | None = None,
        *,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> Page:
        """Return a page of the store's or of a server's conversations, by default the most recently updated first."""
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, settings=settings)
            connection: Any = {"server": server, "api_key": api_key}
            return await RemoteConversation.list(filter=filter, cursor=cursor, limit=limit, order=order, **connection)
        async with _use_store(store, settings or Settings.load()) as opened:
            return await opened.list(filter, cursor, limit, order)

    @classmethod
    async def search(
        cls,
        text: str,
        *,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> SearchPage:
        """Return messages and answers that match, the newest first, from all conversations of a store or server.

        It searches the messages of users and the texts of the model's answers, but not tool calls and their output. A
        message that forks share is one hit, in the conversation in which it was written. Deleted conversations have no
        hits. An `OwnedStore` finds only the conversations of its owner.

        The first search of a store indexes all its messages, about a thousand a second; later ones index what is new.

        Args:
            text: Words, all of which are required, in any order. Quotes make a phrase, `-word` excludes, `word*` is a
                prefix; everything else is text. Case and accents do not matter. In scripts without spaces, such as
                Chinese and Japanese, any part of a text is found. A message of more than 4,000 words is searched in
                parts of 4,000.
            tags: Tags that the conversation has.
            since: Only messages at this time or later.
            project: Only conversations of this project, as in `ConversationFilter`.
            limit: Maximum number of hits, from 1 to 100.
            cursor: `next_cursor` of the page before.
            store: As in `list`, like `settings`, `server` and `api_key`.

        Raises:
            InvalidInput: The text has no words or more than 100, or another argument is invalid.
            Unavailable: The store was never searched and is read-only, or SQLite was built without FTS5.
            StoreError: The store is read-only and has messages that are not indexed.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, settings=settings)
            criteria: Any = {"tags": tags, "since": since, "project": project}
            connection: Any = {"server": server, "api_key": api_key}
            return await RemoteConversation.search(text, limit=limit, cursor=cursor, **criteria, **connection)
        query = make_query(text, tags=tags, since=since, project=project, limit=limit, cursor=cursor)
        return await search_store(query, store, settings)

    @classmethod
    async def delete(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """Delete a conversation, and the folder that was made for it.

        Forks stay complete: events that they share are deleted with the last of them.

        Args:
            id: As in `open`. A server needs the complete id.
            store: A store or its URL; None for the store of the settings.
            server: The address of an agent server that stores the conversation, with `api_key` as in `create`.

        Raises:
            Conflict: The conversation is running. Nothing was deleted.
            NotFound: The conversation does not exist.
            PermissionDenied: The server's key may not delete.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, settings=settings)
            return await RemoteConversation.delete(id, server=server, api_key=api_key)
        settings = settings or Settings.load()
        async with _use_store(store, settings) as opened:
            affected = await find_affected(opened, str(id), "tombstone")
            await delete_conversations(opened, settings.home, affected, "tombstone")

    @classmethod
    async def erase(
        cls,
        id: UUID | str,
        *,
        forks: bool = False,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ErasureReceipt:
        """Delete a conversation so that no byte of its content remains in the store, also if it was deleted before.

        The conversations of its sub-agents are erased with it, and those of their sub-agents. In forks, the events that
        they share with it stay as events without content. O(store): the store is rewritten, and other writers wait.

        Args:
            id: As in `open`. A server needs the complete id, and a key with the role `admin`.
            forks: Whether to erase all its forks too, and the forks of its sub-agents' conversations.
            store: As in `delete`, like `settings`, `server` and `api_key`.

        Returns:
            What was removed, and what is not covered. Erasing twice returns the same receipt.

        Raises:
            Conflict: One of the conversations is running, or was forked meanwhile. Nothing was erased.
            NotFound: The conversation does not exist, or was deleted and left no row.
            PermissionDenied: The server's key may not erase.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, settings=settings)
            return await RemoteConversation.erase(id, forks=forks, server=server, api_key=api_key)
        settings = settings or Settings.load()
        async with _use_store(store, settings) as opened:
            affected = await find_affected(opened, str(id), "erase", forks=forks)
            whole_store = opened if isinstance(opened, StoreAdmin) else None  # not for a tenant's view
            return await erase_conversation(opened, settings, affected, whole_store=whole_store)

    @classmethod
    async def export(
        cls,
        id: UUID | str,
        path: str | Path,
        *,
        exist_ok: bool = False,
        salvage: bool = False,
        store: EventStore | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ConversationRecord:
        """Write a conversation with the events that it shares to a bundle, which `import_` reads. O(events).

        The bundle is signed with the key of the settings' home, or by the server. `path` exists once it is complete.

        Args:
            id: As in `open`. A server needs the complete id.
            exist_ok: Whether an existing file is replaced.
            salvage: Whether to skip events that a damaged store has lost.
            store: As in `delete`; the same holds for `server`.

        Returns:
            The record of the exported conversation.

        Raises:
            Conflict: `path` exists, and `exist_ok` is False.
            NotFound: The conversation does not exist.
            StoreError: The file cannot be written.
            CorruptLog: An event is damaged, and `salvage` is False.
        """
        with replace_file(Path(path), exist_ok=exist_ok) as file:
            if server is not None:
                from bough.conversation.remote.remote import RemoteConversation, require_absent

                require_absent(store=store, settings=settings, salvage=salvage or None)
                async with await RemoteConversation.open(id, server=server, api_key=api_key) as remote:
                    await remote.export(file)
                    return (await remote.lineage())[-1]
            settings = settings or Settings.load()
            async with _use_store(store, settings, create=False) as opened:
                record = await opened.get(await _resolve(opened, str(id)))
                await export_bundle(opened, record.id, file, settings.home, salvage=salvage)
                return record

    @classmethod
    async def import_(
        cls,
        path: str | Path,
        *,
        signed_by: Collection[str] = (),
        accept_unknown: bool = False,
        store: StoreAdmin | str | None = None,
        settings: Settings | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> ConversationRecord:
        """Import a conversation from a bundle. It is in quarantine until it is opened and adopted (`adopt`).

        Importing a bundle again adds nothing.

        Args:
            signed_by: Public keys in hexadecimal. The bundle must be signed with one of them. By default, they are the
                key of the settings' home folder and the keys in that folder's file `keys/trusted`.
            accept_unknown: Whether to accept any signer.
            store: As in `delete`; the same holds for `server`.

        Raises:
            InvalidInput: The file cannot be read, is not a bundle, or is damaged. Nothing was imported.
            PermissionDenied: The signer is unknown; `details["public_key"]` names it.
            Conflict: The store has other events with the same ids.
        """
        if signed_by and accept_unknown:
            raise InvalidInput("signed_by and accept_unknown cannot be combined", hint="give one of them")
        with _open_bundle(Path(path)) as file:
            if server is not None:
                from bough.conversation.remote.remote import RemoteConversation, require_absent

                require_absent(store=store, settings=settings, signed_by=signed_by or None)
                connection: Any = {"server": server, "api_key": api_key}
                async with await RemoteConversation.import_(
                    file, accept_unknown=accept_unknown, **connection
                ) as imported:
                    return (await imported.lineage())[-1]
            settings = settings or Settings.load()
            async with _use_store(store, settings) as opened:
                keys = list_trusted_keys(settings.home, signed_by=signed_by, accept_unknown=accept_unknown)
                return await import_bundle(opened, file, keys)


def _use_store(
    store: StoreT | str | None, settings: Settings, *, create: bool = True
) -> AbstractAsyncContextManager[StoreT | StoreAdmin]:
    return use_store(settings.store if store is None else store, create=create, keep_copy=settings.copy_before_upgrade)


class Affected(NamedTuple):
    """The conversations that a deletion affects.

    Attributes:
        id: The conversation that was named.
        records: Its record, unless it was deleted before, and those of the conversations that are deleted with it.
        forks: Whether its forks are among them.
    """

    id: UUID
    records: Sequence[ConversationRecord]
    forks: bool = False


async def find_affected(store: EventStore, name: str, mode: DeleteMode, *, forks: bool = False) -> Affected:
    """Return the conversations that a deletion affects. With `mode` "erase", the named one may have been deleted.

    Args:
        forks: Whether an erasure includes the forks; with `cascade`, a deletion always does.

    Raises:
        NotFound: No conversation has the id.
    """
    try:
        record = await store.get(await _resolve(store, name))
    except NotFound:
        if mode != "erase":
            raise
        cid, records = await _resolve_deleted(store, name), list[ConversationRecord]()
    else:
        cid, records = record.id, [record]
    if mode == "cascade":
        return Affected(cid, [*records, *await _list_descendants(store, cid)], forks=True)
    if mode == "erase":
        records = await _list_erased(store, cid, records, forks=forks)
    return Affected(cid, records, forks=forks)


async def _list_erased(
    store: EventStore, cid: UUID, records: Sequence[ConversationRecord], *, forks: bool
) -> list[ConversationRecord]:
    """Return the conversations to erase: `records`, their sub-agents' at any depth, and with `forks` all forks."""
    erased = {record.id: record for record in records}
    if forks:
        erased |= {fork.id: fork for fork in await _list_descendants(store, cid)}
    pending = list(erased.values())
    if not records:
        with suppress(NotFound):  # it was deleted and left no row
            pending.append(await store.peek(cid))
    while pending:
        for sub_agent in await _list_sub_agents(store, pending.pop()):
            for record in [sub_agent, *(await _list_descendants(store, sub_agent.id) if forks else ())]:
                if record.id not in erased:
                    erased[record.id] = record
                    pending.append(record)
    return list(erased.values())


async def _list_sub_agents(store: EventStore, record: ConversationRecord) -> list[ConversationRecord]:
    """Return the conversations of the tasks that a conversation itself started, without deleted ones."""
    from bough.events.model import TaskLinked  # loads pydantic, which commands that only read must not

    # A deleted conversation is read through its living forks, which share what is left of it.
    readers = await _list_descendants(store, record.id) if record.deleted else [record]
    records: dict[UUID, ConversationRecord] = {}
    for reader in readers:
        # Imported events are skipped: they may name any conversation, also an unrelated one.
        imported = await store.count_imported(reader.id)
        own_ranges = [(start, stop) for owner, start, stop in await store.lineage(reader.id) if owner == record.id]
        for start, stop in own_ranges:
            async for stored in store.read(reader.id, max(start, imported), stop, kinds={"TaskLinked"}):
                linked = stored.event
                if isinstance(linked, TaskLinked) and linked.conversation is not None:
                    with suppress(NotFound):  # deleted, or of another owner
                        records[linked.conversation] = await store.get(linked.conversation)
    return list(records.values())


async def delete_conversations(
    store: EventStore,
    home: Path,
    affected: Affected,
    mode: Literal["tombstone", "cascade"],
    *,
    interrupt: bool = False,
) -> None:
    """Delete conversations, and the folders made for them that no other conversation uses.

    Args:
        interrupt: Whether to interrupt their runs first.

    Raises:
        Conflict: One of them is running; with `interrupt`, it did not end within 30 s. Nothing was deleted.
    """
    async with _hold_leases(store, affected.records, interrupt=interrupt):
        await store.delete(affected.id, mode)
        await _remove_folders(store, home, affected)


async def erase_conversation(
    store: EventStore,
    settings: Settings,
    affected: Affected,
    *,
    whole_store: StoreAdmin | None,
    interrupt: bool = False,
) -> ErasureReceipt:
    """Erase conversations, their kept files, and the folders that were made for them.

    Args:
        whole_store: The store with the conversations of every tenant. None for a tenant, who must not collect the kept
            files: the runs of all tenants would wait.

    Raises:
        Conflict: One of them is running, or a conversation was added to them meanwhile. Nothing was erased.
    """
    async with _hold_leases(store, affected.records, interrupt=interrupt):
        # Again, now that none of them can run: a conversation added since `find_affected` may be running.
        records = await _list_erased(store, affected.id, affected.records, forks=affected.forks)
        if {record.id for record in records} != {record.id for record in affected.records}:
            raise Conflict(
                f"{affected.id.hex[-8:]} was forked or started a task meanwhile, so nothing was erased",
                hint="erase it again",
            )
        receipt = await store.erase(affected.id, others=[record.id for record in records])
        await _remove_folders(store, settings.home, affected)
    # Outside the leases: it waits for other processes that read or add kept files.
    problem = await _collect_unused_files(whole_store, settings)
    return receipt if problem is None else replace(receipt, not_covered=(problem, *receipt.not_covered))


async def _collect_unused_files(whole_store: StoreAdmin | None, settings: Settings) -> str | None:
    """Remove the kept files that no event names any more. Return None, or why they remain."""
    from bough.conversation.file_store import collect_files

    if whole_store is None:
        return f"{KEPT_FILES}: the operator removes them, with `bough conv collect`"
    try:
        await collect_files(whole_store, settings, thorough=True)
    except BoughError as error:
        return f"{KEPT_FILES}: {error.message}; `bough conv collect` removes them"
    return None


async def _remove_folders(store: EventStore, home: Path, affected: Affected) -> None:
    # Called last: a crash before this line leaves only folders, which `bough doctor` reports.
    from bough.conversation.fork.orphans import remove_made

    await remove_made(store, home, affected.records)


@asynccontextmanager
async def _hold_leases(
    store: EventStore, records: Sequence[ConversationRecord], *, interrupt: bool
) -> AsyncGenerator[None]:
    """Hold the leases of conversations that are to be deleted, so that none of them starts to run meanwhile.

    All leases are taken before anything is deleted. Raises: see `delete_conversations`.
    """
    async with AsyncExitStack() as leases:
        for record in records:
            try:
                await leases.enter_async_context(hold_lease(store, record.id))
            except Conflict as conflict:
                if interrupt and await _interrupt(store, record.id, leases):
                    continue
                raise Conflict(
                    f"{record.id.hex[-8:]} is running, so nothing was deleted",
                    hint="wait until that run has ended" if interrupt else "interrupt it first",
                    details=conflict.details,
                ) from conflict
        yield


async def export_bundle(store: EventStore, cid: UUID, file: IO[bytes], home: Path, *, salvage: bool = False) -> None:
    """Write a bundle that is signed with the key of a home folder. See `bundle.write_bundle`."""
    from bough.events.bundle.keys import own_signing_key

    await store.export(cid, file, key=own_signing_key(home), salvage=salvage)


async def import_bundle(store: StoreAdmin, file: IO[bytes], trusted: Collection[bytes] | None) -> ConversationRecord:
    """Import a bundle from an open file.

    Args:
        trusted: Public keys of accepted signers; None accepts every signer.

    Raises:
        PermissionDenied: The signer is not trusted.
    """
    try:
        return await store.import_(file, trusted=trusted)
    except PermissionDenied as error:
        signer = error.details.get("public_key")
        hint = "accept_unknown=True imports it; a line in keys/trusted makes the signer known"
        raise PermissionDenied(f"unknown signer {signer}", hint=hint, details=error.details) from error


def list_trusted_keys(home: Path, *, signed_by: Collection[str], accept_unknown: bool) -> Collection[bytes] | None:
    """Return the public keys of accepted signers; None for every signer.

    Raises:
        InvalidInput: A text is not a public key.
    """
    from bough.events.bundle.keys import parse_public_key, read_known_keys

    if accept_unknown:
        return None
    return [parse_public_key(text) for text in signed_by] or read_known_keys(home)


@contextmanager
def replace_file(path: Path, *, exist_ok: bool) -> Generator[IO[bytes]]:
    """Yield a file that replaces `path` if the block succeeds and is removed if it fails.

    Raises:
        Conflict: `path` already exists.
        StoreError: The file cannot be written.
    """
    if path.exists() and not exist_ok:
        raise Conflict(f"{path} already exists", hint="choose another name, or pass exist_ok=True to replace it")
    # In the same folder, because a rename is atomic only in one file system.
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _make_write_error(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException as error:  # also Ctrl+C, so that no temporary file remains in the folder
        os.unlink(name)
        if isinstance(error, OSError) and not isinstance(error, BoughError):
            raise _make_write_error(path, error) from error
        raise


def _make_write_error(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be written: {error.strerror or error}", hint="choose another path")


def _open_bundle(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint="give a bundle") from error


async def _resolve(store: EventStore, name: str) -> UUID:
    """Return the id that a name denotes. A tenant's view of the store needs the complete id."""
    try:
        return parse_id(name)
    except InvalidInput:
        return await store.resolve(name)


async def _resolve_deleted(store: EventStore, name: str) -> UUID:
    """Return the id of a deleted conversation by its id, or by the first or last digits of a tombstone's.

    Raises:
        NotFound: No tombstone has such an id.
        InvalidInput: The name is not an id, or several tombstones match.
    """
    with suppress(InvalidInput):
        return parse_id(name)
    digits = name.replace("-", "").lower()
    matches = [
        record.id
        async for record in every_record(store)
        if record.deleted and digits and (record.id.hex.startswith(digits) or record.id.hex.endswith(digits))
    ]
    if len(matches) > 1:
        names = ", ".join(map(str, matches[:5]))
        raise InvalidInput(f"several deleted conversations match {name!r:.80}", hint=f"give a whole id: {names}")
    if not matches:
        raise NotFound(
            f"there is no conversation {name!r:.80}, and no deleted one",
            hint="give the whole id of one that was erased before",
        )
    return matches[0]


async def _list_descendants(store: EventStore, cid: UUID) -> list[ConversationRecord]:
    """Return all forks below a conversation, also those below deleted forks, without the deleted ones. O(tree)."""
    try:
        root = (await store.peek(cid)).root
    except NotFound:
        return []  # it was deleted, and had no fork that needed its row
    descendants: list[ConversationRecord] = []
    cursor, has_more = None, True
    while has_more:
        page = await store.list(ConversationFilter(root=root), cursor, _PAGE)
        for record in page.items:
            if record.id != cid and any(ancestor.id == cid for ancestor in await store.ancestry(record.id)):
                descendants.append(record)
        cursor, has_more = page.next_cursor, page.next_cursor is not None
    return descendants


async def _interrupt(store: EventStore, cid: UUID, leases: AsyncExitStack) -> bool:
    """Interrupt a run through its log and take its lease. Return False if the run does not end in time."""
    from bough.events.model import PauseRequested

    await store.append(cid, [PauseRequested(reason="it is to be deleted", now=True)])
    with suppress(TimeoutError):
        async with asyncio.timeout(_INTERRUPT_SECONDS):
            while True:  # polled, because a store does not announce released leases
                with suppress(Conflict):
                    await leases.enter_async_context(hold_lease(store, cid))
                    return True
                await asyncio.sleep(_POLL_SECONDS)
    return False
