"""Compare trees, and change paths in them. Folders with equal ids are not read: O(changes)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bough.errors import NotFound
from bough.files.objects import EXECUTABLE_MODE, FOLDER_MODE, LINK_MODE, Objects, TreeEntry

ChangeKind: TypeAlias = Literal["added", "changed", "removed", "mode"]
FileKind: TypeAlias = Literal["file", "executable", "link"]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file or link in a tree.

    Attributes:
        path: Its path; bytes that are not UTF-8 are surrogates, as `os.fsdecode` returns them.
        kind: The content of a link is its target.
        oid: The id of its content, 40 hexadecimal digits.
    """

    path: str
    kind: FileKind
    oid: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """A path that differs between two trees.

    Attributes:
        change: `mode` if only the kind of the file differs.
        before: The file in the first tree; None if it was added.
        after: The file in the second tree; None if it was removed.
    """

    path: str
    change: ChangeKind
    before: KeptFile | None
    after: KeptFile | None


TreeChanges: TypeAlias = dict[bytes, tuple[TreeEntry | None, TreeEntry | None]]
"""The entries of each differing file before and after the change, by path."""


def show_path(path: str) -> str:
    r"""Return a path as text for people and logs; bytes that are not UTF-8, and control characters, as `\xNN`."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def read_tree_id(tree: str) -> bytes:
    """Return the 20 bytes of a tree's id.

    Raises:
        NotFound: It is not an id.
    """
    try:
        oid = bytes.fromhex(tree)
    except ValueError:
        oid = b""
    if len(oid) != 20:
        raise NotFound(f"{tree!r} is not the id of a tree", hint="an id has 40 hexadecimal digits")
    return oid


def diff(objects: Objects, before: str | None, after: str | None) -> list[FileChange]:
    """Return the differences between two trees, sorted by path. None is a tree without files.

    Raises:
        NotFound: A tree is not in this store.
        CorruptLog: A tree is damaged.
    """
    changes = diff_trees(objects, parse_optional(before), parse_optional(after))
    return [_describe(path, old, new) for path, (old, new) in sorted(changes.items())]


def count_changes(changes: Iterable[FileChange]) -> Counter[ChangeKind]:
    """Count changes by kind."""
    return Counter(change.change for change in changes)


def entries(objects: Objects, tree: str) -> Iterator[KeptFile]:
    """Yield the files and links of a tree, by path. O(files).

    Raises:
        NotFound: A part of the tree is not in this store.
        CorruptLog: A part of the tree is damaged.
    """
    for path, entry in objects.walk(read_tree_id(tree)):
        yield _describe_file(path, entry)


def find_file(objects: Objects, tree: str, path: str) -> KeptFile:
    """Return a file or link of a tree.

    Raises:
        NotFound: The tree is not in this store, or has no file at this path.
        CorruptLog: A part of the tree is damaged.
    """
    entry = _find(objects, read_tree_id(tree), os.fsencode(path))
    if entry is None or entry.mode == FOLDER_MODE:
        raise NotFound(f"no file was kept at {show_path(path)}", hint="list the files to see their paths")
    return _describe_file(os.fsencode(path), entry)


def read(objects: Objects, tree: str, path: str) -> bytes:
    """Return the content of a file of a tree, or the target of a link.

    Raises:
        NotFound: The tree is not in this store, or has no file at this path.
        CorruptLog: The file or a part of the tree is damaged.
    """
    return objects.get(bytes.fromhex(find_file(objects, tree, path).oid))


def select(objects: Objects, now: str, to: str, paths: Iterable[str]) -> str:
    """Return the tree `now` with some paths taken from `to`. The path of a folder selects everything below it.

    Raises:
        NotFound: A tree is not in this store, or neither tree has one of the paths.
        CorruptLog: A part of a tree is damaged.
    """
    old_tree, new_tree = read_tree_id(now), read_tree_id(to)
    changes: TreeChanges = {}
    for text in paths:
        path = os.fsencode(os.path.normpath(text))
        old, new = _find(objects, old_tree, path), _find(objects, new_tree, path)
        if old is None and new is None:
            raise NotFound(f"no file was kept at {show_path(text)}", hint="list the files to see their paths")
        changes |= _diff_entries(objects, path, old, new)
    return graft(objects, old_tree, changes).hex()


def leave_out(objects: Objects, now: str, to: str, paths: Iterable[str]) -> str:
    """Return the tree `to` with some paths taken from `now`. Unlike in `select`, each path must be a file.

    Raises:
        NotFound: A tree is not in this store.
        CorruptLog: A part of a tree is damaged.
    """
    old_tree, new_tree = read_tree_id(now), read_tree_id(to)
    changes: TreeChanges = {}
    for text in paths:
        path = os.fsencode(text)
        changes[path] = (_find(objects, new_tree, path), _find(objects, old_tree, path))
    return graft(objects, new_tree, changes).hex()


def graft(
    objects: Objects, tree: bytes | None, changes: Mapping[bytes, tuple[TreeEntry | None, TreeEntry | None]]
) -> bytes:
    """Return a tree with changed paths. Removals are made first, and folders that become empty are removed.

    Args:
        objects: Receives the new folders.
        tree: None is a tree without files.
        changes: The old and the new entry of each file, by path.
    """
    here: dict[bytes, TreeEntry | None] = {}
    below: dict[bytes, TreeChanges] = {}
    for path, change in changes.items():
        name, _, inner_path = path.partition(b"/")
        if inner_path:
            below.setdefault(name, {})[inner_path] = change
        else:
            here[name] = change[1]
    folder = objects.read_tree(tree)
    for name, entry in here.items():
        if entry is None and not (name in below and name in folder and folder[name].mode == FOLDER_MODE):
            folder.pop(name, None)
    # After the removals, because a folder may replace a file.
    for name, inner in below.items():
        old = folder.get(name)
        child = graft(objects, old.oid if old is not None and old.mode == FOLDER_MODE else None, inner)
        if objects.read_tree(child):
            folder[name] = TreeEntry(FOLDER_MODE, child)
        elif old is not None and old.mode == FOLDER_MODE:
            del folder[name]
    folder |= {name: entry for name, entry in here.items() if entry is not None}
    return objects.put_tree(folder)


def parse_optional(tree: str | None) -> bytes | None:
    """Return the bytes of a tree's id; None for None."""
    return None if tree is None else read_tree_id(tree)


def list_parents(path: bytes) -> Iterator[bytes]:
    """Yield the folders above a path, the innermost first."""
    while path := path.rpartition(b"/")[0]:
        yield path


def _find(objects: Objects, tree: bytes, path: bytes) -> TreeEntry | None:
    entry = TreeEntry(FOLDER_MODE, tree)
    for name in path.split(b"/") if path != b"." else ():
        if entry.mode != FOLDER_MODE:
            return None
        inner = objects.read_tree(entry.oid).get(name)
        if inner is None:
            return None
        entry = inner
    return entry


def diff_trees(objects: Objects, before: bytes | None, after: bytes | None, path: bytes = b"") -> TreeChanges:
    """Return the differences between two trees; `path` is the prefix of their paths."""
    changes: TreeChanges = {}
    if before == after:
        return changes
    old_tree, new_tree = objects.read_tree(before), objects.read_tree(after)
    for name in old_tree.keys() | new_tree.keys():
        old, new = old_tree.get(name), new_tree.get(name)
        if old != new:
            changes |= _diff_entries(objects, path + name, old, new)
    return changes


def _diff_entries(objects: Objects, path: bytes, old: TreeEntry | None, new: TreeEntry | None) -> TreeChanges:
    """Return the differences between two trees at one path, where each has a file, a link, a folder or nothing."""
    old_folder = old.oid if old is not None and old.mode == FOLDER_MODE else None
    new_folder = new.oid if new is not None and new.mode == FOLDER_MODE else None
    changes = diff_trees(objects, old_folder, new_folder, b"" if path == b"." else path + b"/")
    old_file, new_file = None if old_folder is not None else old, None if new_folder is not None else new
    if old_file != new_file:
        changes[path] = (old_file, new_file)
    return changes


def _describe(path: bytes, old: TreeEntry | None, new: TreeEntry | None) -> FileChange:
    if old is None:
        change: ChangeKind = "added"
    elif new is None:
        change = "removed"
    elif old.oid == new.oid and LINK_MODE not in (old.mode, new.mode):
        change = "mode"
    else:
        change = "changed"
    before = None if old is None else _describe_file(path, old)
    return FileChange(os.fsdecode(path), change, before, None if new is None else _describe_file(path, new))


def _describe_file(path: bytes, entry: TreeEntry) -> KeptFile:
    kinds: Mapping[int, FileKind] = {LINK_MODE: "link", EXECUTABLE_MODE: "executable"}
    return KeptFile(os.fsdecode(path), kinds.get(entry.mode, "file"), entry.oid.hex())
