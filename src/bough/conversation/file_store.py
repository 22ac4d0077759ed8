"""The kept files of a store's workspaces: where they are, their events, and their collection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from bough.events.check import every_record
from bough.events.model import FilesKept
from bough.events.store import EventStore, StoreAdmin
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.files import CollectedFiles, FileStore, FileStoreState, KeepBounds, Looked

_MAX_NAMED_EVENTS: Final = 20


def open_file_store(store: EventStore, settings: Settings) -> FileStore | None:
    """Return the kept files of a SQLite or Postgres store; None for any other store. Nothing is created.

    A SQLite store keeps them in a folder beside its file; the folder of a temporary store is removed with it. Postgres
    stores keep them below `Settings.files`.
    """
    from bough.files import FileStore

    path = _find_folder(store, settings)
    return None if path is None else FileStore(path, max_bytes=settings.keep_place_bytes)


def _find_folder(store: EventStore, settings: Settings) -> Path | None:
    from bough.files import name_postgres_files, name_sqlite_files

    key: tuple[str, ...] = getattr(store, "files_key", ())
    match key:
        case ("sqlite", path):
            return name_sqlite_files(Path(path))
        case ("postgres", host, port, database, schema):
            root = settings.files or settings.home / "files"
            return name_postgres_files(root, host=host, port=int(port), database=database, schema=schema)
        case _:
            return None


def read_bounds(settings: Settings) -> KeepBounds:
    """Return the settings' bounds for the kept files of a workspace."""
    from bough.files import KeepBounds

    return KeepBounds(
        max_files=settings.keep_max_files,
        file_bytes=settings.keep_file_bytes,
        total_bytes=settings.keep_total_bytes,
        ignored=settings.keep_ignored,
    )


def make_event(
    looked: Looked,
    file_store: FileStore,
    *,
    by: Literal["first", "outside", "tool", "restore", "apply", "fork"],
    tool_call_id: str | None = None,
    of: JsonObject | None = None,
    skipped: tuple[tuple[str, str], ...] = (),
) -> FilesKept:
    """Return the event that records a look at a folder.

    Args:
        skipped: The skipped paths, with reasons, that no event of the run has named yet.
    """
    return FilesKept(
        tree=looked.tree,
        before=looked.before,
        by=by,
        tool_call_id=tool_call_id,
        of=of or {},
        files=looked.files,
        bytes=looked.size_bytes,
        added=looked.added,
        changed=looked.changed,
        removed=looked.removed,
        paths=looked.paths,
        skipped=skipped,
        skipped_count=looked.skipped_count,
        unsettled=looked.unsettled,
        reason=looked.reason,
        place=file_store.read_store_id(),
        seconds=looked.seconds,
    )


async def collect_files(
    store: StoreAdmin, settings: Settings, *, dry_run: bool = False, thorough: bool = False
) -> CollectedFiles:
    """Remove the kept files that no event of a store names. O(events of the store, and bytes of what is rewritten).

    Args:
        store: The whole store. With the view of one tenant, the files of all other tenants would be removed.
        dry_run: Only return how much would be freed.
        thorough: Remove every file that no event names, also if that frees little.

    Raises:
        Conflict: Runs read or add files at the same time. Nothing was removed.
        CorruptLog: An event is damaged, so that its files are unknown. Nothing was removed.
        Unavailable: The disk has no room for the files that stay.
    """
    from bough.files import CollectedFiles, collect

    file_store = open_file_store(store, settings)
    if file_store is None or not file_store.exists:
        return CollectedFiles(packs=0, size_bytes=0, freed_bytes=0)
    loop = asyncio.get_running_loop()

    def read_roots() -> set[str]:
        return asyncio.run_coroutine_threadsafe(_list_trees(store), loop).result()

    collected = await asyncio.to_thread(collect, file_store, read_roots, dry_run=dry_run, thorough=thorough)
    # The files of imported events are missing, because a bundle has none.
    own = await _list_trees(store, place=file_store.read_store_id())
    return replace(collected, missing=tuple(tree for tree in collected.missing if tree in own))


async def _list_trees(store: StoreAdmin, *, place: str | None = None) -> set[str]:
    """Return every tree that an event names; with a `place`, only of files that were kept in that file store."""
    trees: set[str] = set()
    async for stored in store.every("FilesKept"):
        if isinstance(stored.event, FilesKept) and place in (None, stored.event.place):
            trees |= {tree for tree in (stored.event.tree, stored.event.before) if tree is not None}
    return trees


@dataclass(frozen=True)
class CheckedFiles:
    """What a check of the kept files of a store showed.

    Attributes:
        repairs: What was repaired, a sentence each.
        events: Events whose files are missing or damaged, as conversation and seq; at most 20.
    """

    state: FileStoreState
    repairs: tuple[str, ...]
    events: tuple[tuple[UUID, int], ...]


async def check_files(store: StoreAdmin, settings: Settings, *, repair: bool = False) -> CheckedFiles | None:
    """Check the kept files of a store; None if it never kept any. O(events, and bytes of the packs).

    Args:
        repair: First finish interrupted restores, and copy what is whole out of damaged packs.

    Raises:
        Conflict: With `repair`: runs read or add files at the same time.
        CorruptLog: An event is damaged, so that its files are unknown.
        Unavailable: The folder cannot be read, or not be repaired.
    """
    from bough.files import inspect_files, repair_files

    file_store = open_file_store(store, settings)
    if file_store is None or not file_store.exists:
        return None
    try:
        repairs = await asyncio.to_thread(repair_files, file_store) if repair else []
        # Imported events name files of another file store, which a bundle leaves out.
        trees = await _list_trees(store, place=file_store.read_store_id())
        state = await asyncio.to_thread(inspect_files, file_store, trees)
        if state.damaged:  # a pack that is damaged still lists the objects that it has lost
            state = await asyncio.to_thread(inspect_files, file_store, trees, full=True)
    finally:
        await asyncio.to_thread(file_store.close)
    events = await _find_events(store, set(state.missing)) if state.missing else []
    return CheckedFiles(state, tuple(repairs), tuple(events))


async def _find_events(store: StoreAdmin, trees: set[str]) -> list[tuple[UUID, int]]:
    """Return the events of living conversations that name some trees, the first ones. O(conversations)."""
    events: list[tuple[UUID, int]] = []
    async for record in every_record(store):
        if record.deleted:
            continue
        async for stored in store.read(record.id, kinds={"FilesKept"}):
            if isinstance(event := stored.event, FilesKept) and (event.tree in trees or event.before in trees):
                events.append((record.id, stored.seq))
            if len(events) == _MAX_NAMED_EVENTS:
                return events
    return events
