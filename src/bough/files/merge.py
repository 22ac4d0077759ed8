"""Merge the changes that two sides made to a tree, path by path, and texts line by line with libgit2."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Literal

from bough.errors import Unavailable
from bough.files.objects import LINK_MODE, Objects, TreeEntry
from bough.files.pack import BLOB_KIND
from bough.files.trees import TreeChanges, diff_trees, graft, list_parents, parse_optional, read_tree_id

_MAX_MERGED_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        tree: `ours` with the changes of `theirs`.
        conflicts: Paths that both sides changed; for each, `tree` has the version of the preferred side.
    """

    tree: str
    conflicts: tuple[str, ...]


def merge(
    objects: Objects, base: str | None, ours: str, theirs: str | None, *, prefer: Literal["ours", "theirs"] = "ours"
) -> Merged:
    """Apply the changes from `base` to `theirs` to `ours`. A text that both changed is merged by lines, up to 4 MiB.

    Nothing is durable until `objects.flush()`.

    Args:
        prefer: The side whose version of a conflicting path is taken.

    Raises:
        NotFound: A tree is not in this store.
        CorruptLog: An object is damaged.
        Unavailable: Texts must be merged, and libgit2 is missing.
    """
    base_id, ours_id = parse_optional(base), read_tree_id(ours)
    our_changes = diff_trees(objects, base_id, ours_id)
    our_paths = {path for path, (_, now) in our_changes.items() if now is not None}
    our_folders = {parent for path in our_paths for parent in list_parents(path)}
    chosen: TreeChanges = {}
    conflicts: list[bytes] = []
    for path, (old, to) in diff_trees(objects, base_id, parse_optional(theirs)).items():
        now = our_changes[path][1] if path in our_changes else old
        # One side has a file where the other has a folder: only a person can decide.
        blocks = to is not None and (path in our_folders or not our_paths.isdisjoint(list_parents(path)))
        if now == to:
            continue
        merged = None if blocks else _merge_entry(objects, old, now, to)
        if merged is not None:
            chosen[path] = (now, merged[0])
        else:
            conflicts.append(path)
            if prefer == "theirs":
                chosen[path] = (now, to)
                chosen |= _clear_way(path, our_paths) if blocks else {}
    tree = graft(objects, ours_id, chosen)
    return Merged(tree.hex(), tuple(os.fsdecode(path) for path in sorted(conflicts)))


def _merge_entry(
    objects: Objects, old: TreeEntry | None, now: TreeEntry | None, to: TreeEntry | None
) -> tuple[TreeEntry | None] | None:
    """Return the merged entry in a tuple; None if both sides changed it."""
    if now == old:
        return (to,)
    if old is None or now is None or to is None or LINK_MODE in (old.mode, now.mode, to.mode):
        return None
    mode = to.mode if now.mode == old.mode else now.mode
    if now.oid == to.oid or to.oid == old.oid:
        return (TreeEntry(mode, now.oid),)
    if now.oid == old.oid:
        return (TreeEntry(mode, to.oid),)
    if any(objects.read_size(entry.oid) > _MAX_MERGED_BYTES for entry in (old, now, to)):
        return None
    text = merge_texts(objects.get(old.oid), objects.get(now.oid), objects.get(to.oid))
    return None if text is None else (TreeEntry(mode, objects.put(BLOB_KIND, text)),)


def _clear_way(path: bytes, our_paths: Iterable[bytes]) -> TreeChanges:
    """Return the removals of our files that block a path: files where a folder above it must be, and files below it."""
    above = set(list_parents(path))
    return {ours: (None, None) for ours in our_paths if ours in above or ours.startswith(path + b"/")}


def merge_texts(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the merged text; None if both sides changed the same lines, or one is not UTF-8 or has a NUL.

    Raises:
        Unavailable: libgit2 is missing, or cannot work here.
    """
    if not all(_is_text(version) for version in (base, ours, theirs)):
        return None
    library = _load()
    with tempfile.TemporaryDirectory(prefix="bough-merge-") as name:
        try:
            repository = library.init_repository(name, bare=True)
            versions = [
                library.IndexEntry("file", repository.create_blob(version), library.enums.FileMode.BLOB)
                for version in (base, ours, theirs)
            ]
            merged = repository.merge_file_from_index(*versions, use_deprecated=False)
        except library.GitError as error:
            raise _explain(error) from error
    return merged.contents.encode() if merged.automergeable else None


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _load() -> ModuleType:
    try:
        import pygit2
    except ImportError as error:
        raise Unavailable(
            "merging texts needs the package pygit2",
            hint="pip install pygit2",
            details={"reason": "the package pygit2 is not installed"},
        ) from error
    return pygit2


def _explain(error: Exception) -> Unavailable:
    return Unavailable(
        f"libgit2 cannot work here: {error}",
        hint="check git's configuration and the free space for temporary files",
        details={"reason": f"libgit2: {error}"},
    )
