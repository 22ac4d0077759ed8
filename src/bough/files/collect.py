"""Remove objects that no event names, and check and repair what is kept."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bough.errors import Conflict, CorruptLog, NotFound, Unavailable
from bough.files.folder import recover
from bough.files.objects import FOLDER_MODE, Objects
from bough.files.pack import TEMPORARY, Pack, unpack_object, write_durably
from bough.files.store import SMALL_PACK_BYTES, FileStore
from bough.files.trees import read_tree_id

_MIN_LIVE_SHARE: Final = 0.75
"""A large pack is not rewritten if at least this share of its bytes is live."""


@dataclass(frozen=True, kw_only=True)
class CollectedFiles:
    """The result of a collection, or what one would do.

    Attributes:
        packs: Number of packs after the collection; `size_bytes` is their size.
        freed_bytes: How many bytes the collection frees.
        missing: Trees that events name and that this store does not have, or has only in part.
    """

    packs: int
    size_bytes: int
    freed_bytes: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileStoreState:
    """The result of a check of a file store.

    Attributes:
        packs: Number of packs; `size_bytes` is their size.
        free_bytes: The free space of the disk.
        damaged: The files of packs that are damaged.
        missing: Trees that events name and of which a part is missing or damaged.
        journals: Folders in which a crash interrupted a restore or an apply.
        leftovers: Files of packs that were not completed.
    """

    packs: int
    size_bytes: int
    free_bytes: int
    damaged: tuple[str, ...]
    missing: tuple[str, ...]
    journals: tuple[str, ...]
    leftovers: int


def collect(
    file_store: FileStore,
    read_roots: Callable[[], Iterable[str]],
    *,
    dry_run: bool = False,
    thorough: bool = False,
    wait_seconds: float = 2.0,
) -> CollectedFiles:
    """Remove the objects that no tree of `read_roots` needs. O(objects), and the bytes of packs that are rewritten.

    A process that is killed at any moment loses no object that a tree needs.

    Args:
        file_store: The caller must not have its objects open.
        read_roots: Returns `tree` and `before` of every event of the event store; called twice.
        dry_run: Only return what a collection would free.
        thorough: Also rewrite large packs that contain only few unneeded objects, so that no unneeded object remains.
        wait_seconds: How long to wait until nobody reads or adds objects.

    Raises:
        Conflict: Other processes read or added objects for longer than `wait_seconds`. Nothing was removed.
        Unavailable: The disk has no room for the objects that are copied, or the store cannot be written.
    """
    if not file_store.exists:
        return CollectedFiles(packs=0, size_bytes=0, freed_bytes=0)
    packs = file_store.packs
    try:
        with file_store.objects(join=False) as objects:
            old = packs.list_packs()
            size = packs.size_bytes
            live, missing = _mark(file_store, objects, read_roots())
            sparse = _find_sparse(old, live, min_live_share=1.0 if thorough else _MIN_LIVE_SHARE)
            freed = sum(length for pack in sparse for oid, length in pack.list_ids() if oid not in live)
            if dry_run or not freed:
                freed = freed if dry_run else 0
                return CollectedFiles(
                    packs=len(old), size_bytes=size - freed, freed_bytes=freed, missing=tuple(sorted(missing))
                )
            _check_free(file_store, sum(pack.size_bytes for pack in sparse) - freed)
            _copy(file_store, sparse, live)
        _sweep(file_store, sparse, read_roots, wait_seconds)
    except OSError as error:
        raise file_store.explain(error) from error
    packs.refresh()
    return CollectedFiles(
        packs=len(packs.list_packs()),
        size_bytes=packs.size_bytes,
        freed_bytes=size - packs.size_bytes,
        missing=tuple(sorted(missing)),
    )


def _find_sparse(packs: Iterable[Pack], live: set[bytes], *, min_live_share: float) -> list[Pack]:
    """Return the packs to rewrite: all small ones, and large ones whose share of live bytes is too small."""
    sparse: list[Pack] = []
    for pack in packs:
        lengths = [(length, oid in live) for oid, length in pack.list_ids()]
        live_bytes = sum(length for length, is_live in lengths if is_live)
        if pack.size_bytes < SMALL_PACK_BYTES or live_bytes < min_live_share * sum(length for length, _ in lengths):
            sparse.append(pack)
    return sparse


def _check_free(file_store: FileStore, size: int) -> None:
    free = shutil.disk_usage(file_store.path).free
    if size > free:
        raise Unavailable(
            f"a collection needs {size} bytes for the files that stay, and {free} are free", hint="free some space"
        )


def _open_writer(file_store: FileStore) -> Objects:
    """Return `Objects` without a lock and without a limit of size. The caller holds the lock."""
    return Objects(file_store.packs, lambda: None, lambda: None, file_store.step)


def _copy(file_store: FileStore, packs: Iterable[Pack], live: set[bytes]) -> None:
    """Copy the live objects of some packs into new packs. Durable on return."""
    with _open_writer(file_store) as writer:
        for pack in packs:
            for oid, _ in pack.list_ids():
                packed = pack.read_packed(oid) if oid in live else None
                if packed is not None:
                    writer.put_packed(oid, packed)
        writer.flush()


def _sweep(file_store: FileStore, old: Iterable[Pack], read_roots: Callable[[], Iterable[str]], wait: float) -> None:
    """Remove the old packs after everything that the roots need is in other packs."""
    fd = file_store.try_exclusive(wait_seconds=wait)
    if fd is None:
        raise Conflict("kept files are being read or added", hint="try again later")
    try:
        file_store.packs.refresh()
        removed = {pack.path: pack for pack in old}
        remaining = [pack for pack in file_store.packs.list_packs() if pack.path not in removed]
        with _open_writer(file_store) as writer:
            # Read the roots again: a tree that an event has named since then may be in an old pack only.
            live, _ = _mark(file_store, writer, read_roots())
            for pack in removed.values():
                for oid, _ in pack.list_ids():
                    packed = pack.read_packed(oid) if oid in live else None
                    if packed is not None and not any(oid in other for other in remaining):
                        writer.put_packed(oid, packed)
            writer.flush()
        # The name of a pack is a hash of its objects, so a new pack may have the name of an old one.
        new_names = {pack.path for pack in remaining}
        # Before the first removal: with the old mark, an index would believe that removed objects still exist.
        write_durably(file_store.path / "collected", secrets.token_hex(16).encode(), file_store.step)
        for path, pack in removed.items():
            if path not in new_names and not _is_needed(file_store, pack, live, set(removed)):
                pack.remove()
                file_store.step("pack removed")
    finally:
        os.close(fd)


def _is_needed(file_store: FileStore, pack: Pack, live: set[bytes], removed: set[Path]) -> bool:
    """Whether a pack has a live object that no remaining pack has, because its copy failed or has this pack's name."""
    others = [other for other in file_store.packs.list_packs() if other.path not in removed]
    return any(oid in live and not any(oid in other for other in others) for oid, _ in pack.list_ids())


def _mark(file_store: FileStore, objects: Objects, roots: Iterable[str]) -> tuple[set[bytes], set[str]]:
    """Return the ids of all objects that the trees need, and the roots that are not trees or have missing objects."""
    live: set[bytes] = set()
    incomplete_folders: set[bytes] = set()
    incomplete_roots: set[str] = set()
    for root in {*roots, *_list_journal_trees(file_store)}:
        try:
            tree = read_tree_id(root)
        except NotFound:
            incomplete_roots.add(root)  # not an id: an imported event may contain any text
            continue
        if not _mark_tree(objects, tree, live, incomplete_folders):
            incomplete_roots.add(root)
    return live, incomplete_roots


def _mark_tree(objects: Objects, tree: bytes, live: set[bytes], incomplete: set[bytes]) -> bool:
    """Add the objects of a tree; return False if a folder of it is missing or damaged. Shared folders are read once."""
    if tree in live:
        return tree not in incomplete
    try:
        folder = objects.read_tree(tree)
    except (NotFound, CorruptLog):
        return False
    is_whole = True
    for entry in folder.values():
        if entry.mode == FOLDER_MODE:
            is_whole = _mark_tree(objects, entry.oid, live, incomplete) and is_whole
        else:
            live.add(entry.oid)
            is_whole = is_whole and entry.oid in objects
    live.add(tree)
    if not is_whole:
        incomplete.add(tree)
    return is_whole


def _read_journal(path: Path) -> dict[str, Any]:
    """Return the content of a journal; empty if it is damaged or missing."""
    with suppress(OSError, ValueError):
        data: Any = json.loads(path.read_bytes())
        if isinstance(data, dict):
            return data  # pyright: ignore[reportUnknownVariableType] - JSON
    return {}


def _list_journals(file_store: FileStore) -> list[Path]:
    paths = file_store.journals.iterdir() if file_store.journals.is_dir() else ()
    return sorted(path for path in paths if not path.name.startswith(TEMPORARY))


def _list_journal_trees(file_store: FileStore) -> Iterable[str]:
    """Yield the trees that are needed to finish interrupted writes."""
    for path in _list_journals(file_store):
        journal = _read_journal(path)
        yield from (str(journal[key]) for key in ("now", "to") if key in journal)


def inspect_files(file_store: FileStore, roots: Iterable[str], *, full: bool = False) -> FileStoreState:
    """Check a file store without changing it. O(objects of the trees); with `full`, O(bytes).

    Args:
        file_store: Its folder need not exist.
        roots: The trees that events of living conversations name.
        full: Also read every object.

    Raises:
        Unavailable: The store cannot be read, or a collection is running.
    """
    if not file_store.exists:
        return FileStoreState(
            packs=0, size_bytes=0, free_bytes=0, damaged=(), missing=tuple(sorted(set(roots))), journals=(), leftovers=0
        )
    with file_store.objects() as objects:
        packs = file_store.packs.list_packs()
        damaged = sorted(file_store.packs.damaged)
        damaged += sorted(pack.path.name for pack in packs if not pack.is_intact())
        missing = sorted(root for root in set(roots) if not _is_whole(objects, root, full=full))
        return FileStoreState(
            packs=len(packs),
            size_bytes=file_store.packs.size_bytes,
            free_bytes=shutil.disk_usage(file_store.path).free,
            damaged=tuple(damaged),
            missing=tuple(missing),
            journals=tuple(str(_read_journal(path).get("folder", path)) for path in _list_journals(file_store)),
            leftovers=len(file_store.list_leftovers()),
        )


def _is_whole(objects: Objects, root: str, *, full: bool) -> bool:
    try:
        for _, entry in objects.walk(read_tree_id(root)):
            if entry.oid not in objects:
                return False
            if full:
                objects.get(entry.oid)
    except (NotFound, CorruptLog):
        return False
    return True


def repair_files(file_store: FileStore) -> list[str]:
    """Finish interrupted writes, remove leftovers, and copy the good objects out of damaged packs.

    Returns:
        One sentence for each thing that was done.

    Raises:
        Conflict: Other processes read or add objects, or a folder is in use.
        CorruptLog: A journal is damaged, or needs an object that is damaged.
        Unavailable: A folder or the store cannot be written.
    """
    done: list[str] = []
    if not file_store.exists:
        return done
    for path in _list_journals(file_store):
        folder = _read_journal(path).get("folder")
        if folder is not None and Path(folder).is_dir():
            with file_store.objects() as objects, file_store.hold_look(Path(folder)):
                recover(file_store, objects, Path(folder))
            done.append(f"finished writing {folder}")
    if count := file_store.remove_leftovers():
        done.append(f"removed {count} incomplete files")
    try:
        done += _repair_packs(file_store)
    except OSError as error:
        raise file_store.explain(error) from error
    return done


def _repair_packs(file_store: FileStore) -> list[str]:
    fd = file_store.try_exclusive(wait_seconds=2.0)
    if fd is None:
        raise Conflict("kept files are being read or added", hint="try again later")
    try:
        file_store.packs.refresh()
        damaged = [pack for pack in file_store.packs.list_packs() if not pack.is_intact()]
        done: list[str] = []
        for pack in damaged:
            count = 0
            with _open_writer(file_store) as writer:
                for oid, _ in pack.list_ids():
                    packed = pack.read_packed(oid)
                    if packed is not None and unpack_object(oid, packed) is not None:
                        writer.put_packed(oid, packed)
                        count += 1
                writer.flush()
            # Only now: the undamaged objects are durable in another pack.
            pack.remove()
            done.append(f"copied {count} of {pack.count} objects out of {pack.path.name}")
        if damaged:
            write_durably(file_store.path / "collected", secrets.token_hex(16).encode(), file_store.step)
        file_store.packs.refresh()
    finally:
        os.close(fd)
    return done
