"""Objects of files and folders: read from the packs of a file store, and added to it as one pack.

Trees are encoded here, because libgit2 refuses names that are legal in a folder (`.GIT`, names that are not UTF-8).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from bough.errors import CorruptLog, NotFound
from bough.files.pack import (
    BLOB_KIND,
    MAX_PACK_BYTES,
    REPAIR_HINT,
    TREE_KIND,
    Pack,
    PackWriter,
    hash_object,
    pack_object,
    unpack_object,
)

FOLDER_MODE: Final = 0o40000
LINK_MODE: Final = 0o120000
FILE_MODE: Final = 0o100644
EXECUTABLE_MODE: Final = 0o100755
_MODES: Final = (FOLDER_MODE, LINK_MODE, FILE_MODE, EXECUTABLE_MODE)


EMPTY_TREE: Final = hash_object(TREE_KIND, b"")
"""The id of a tree without files."""


class TreeEntry(NamedTuple):
    """An entry of a folder in a tree: its mode, one of four, and the id of its object."""

    mode: int
    oid: bytes


class Packs:
    """The packs in a folder. Threads may share an object of this class."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: dict[str, CorruptLog] = {}
        self._packs: dict[str, Pack] = {}
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the list of packs again. Lists the folder once, and opens only new packs."""
        with self._lock:
            with os.scandir(self.folder) as entries:
                names = {
                    entry.name for entry in entries if entry.name.endswith(".idx") and entry.name.startswith("pack-")
                }
            packs = {name: pack for name, pack in self._packs.items() if name in names}
            self.damaged = {}
            for name in sorted(names - packs.keys()):
                try:
                    packs[name] = Pack(self.folder / name)
                except CorruptLog as error:
                    self.damaged[name] = error
                except FileNotFoundError:
                    continue  # joined with other packs after the folder was listed
            self._packs = packs

    def list_packs(self) -> tuple[Pack, ...]:
        """Return the packs, in any order."""
        return tuple(self._packs.values())

    @property
    def size_bytes(self) -> int:
        """The bytes of all packs."""
        return sum(pack.size_bytes for pack in self._packs.values())

    def __contains__(self, oid: bytes) -> bool:
        return any(oid in pack for pack in self._packs.values())

    def read_packed(self, oid: bytes) -> bytes | None:
        """Return the stored bytes of an object; None if no pack has them undamaged."""
        for pack in self.list_packs():
            packed = pack.read_packed(oid)
            if packed is not None:
                return packed
        return None

    def read_size(self, oid: bytes) -> int | None:
        """Return the size of an object; None if no pack has it."""
        for pack in self.list_packs():
            size = pack.read_size(oid)
            if size is not None:
                return size
        return None

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for pack in self._packs.values():
                pack.close()
            self._packs = {}


class Objects:
    """Reads the objects of a file store and adds new ones, which `flush` makes durable as one pack. Not thread-safe.

    While it is open, no collection removes an object. Close it only after the event that names a new tree is durable.

    Args:
        packs: The packs of the store.
        close: Called once, by `close`.
        check: Called before the first new object; raises if the store accepts no more.
        step: Called with the name of each step that changes the disk; for tests.
    """

    def __init__(
        self, packs: Packs, close: Callable[[], None], check: Callable[[], None], step: Callable[[str], None]
    ) -> None:
        self._packs = packs
        self._close = close
        self._check = check
        self._step = step
        self._writer: PackWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Discard new objects that were not flushed, and let collections run. Idempotent."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.discard()
        finally:
            close, self._close = self._close, lambda: None
            close()

    def __contains__(self, oid: bytes) -> bool:
        return (self._writer is not None and oid in self._writer.positions) or oid in self._packs

    def put(self, kind: int, data: bytes) -> bytes:
        """Add an object unless the store has it, and return its id.

        Raises:
            Unavailable: The store accepts no more objects.
            OSError: The object cannot be written.
        """
        oid = hash_object(kind, data)
        # An existing object is never replaced, even by other content with the same id.
        if oid not in self:
            self.put_packed(oid, pack_object(kind, data))
        return oid

    def put_packed(self, oid: bytes, packed: bytes) -> None:
        """Add the stored bytes of an object, whether or not a pack has it."""
        if self._writer is None:
            self._check()
            self._writer = PackWriter(self._packs.folder, self._step)
        self._writer.add(oid, packed)
        if self._writer.size_bytes >= MAX_PACK_BYTES:
            self.flush()

    def refresh(self) -> None:
        """Find the objects that other processes have added. Lists the folder once."""
        self._packs.refresh()

    def flush(self) -> None:
        """Make the new objects durable.

        Raises:
            OSError: The objects cannot be written; the store then has none of them.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.finish()
        finally:
            with suppress(OSError):
                writer.discard()
        self._packs.refresh()

    def get(self, oid: bytes, kind: int = BLOB_KIND) -> bytes:
        """Return the content of an object, checked against its id.

        Raises:
            NotFound: The object is not in this store.
            CorruptLog: The object is damaged.
        """
        packed = None if self._writer is None else self._writer.read_packed(oid)
        if packed is None and oid not in self._packs:
            self.refresh()
        if packed is None:
            packed = self._packs.read_packed(oid)
        stored = None if packed is None else unpack_object(oid, packed)
        if stored is not None and stored.kind == kind:
            return stored.data
        raise self._explain_missing(oid)

    def read_size(self, oid: bytes) -> int:
        """Return the size of a file without reading it.

        Raises:
            NotFound: The object is not in this store.
            CorruptLog: The object is damaged.
        """
        size = self._packs.read_size(oid)
        return len(self.get(oid)) if size is None else size

    def _explain_missing(self, oid: bytes) -> NotFound | CorruptLog:
        details = {"object": oid.hex()}
        if oid in self or self._packs.damaged:
            return CorruptLog(f"object {oid.hex()} is damaged", details=details, hint=REPAIR_HINT)
        return NotFound(
            f"object {oid.hex()} is not in {self._packs.folder.parents[1].name}",
            details=details,
            hint="its files were collected, are kept on another machine, or were left out of a bundle",
        )

    def read_tree(self, oid: bytes | None) -> dict[bytes, TreeEntry]:
        """Return the entries of a folder; empty for None.

        Raises:
            NotFound: The tree is not in this store.
            CorruptLog: The tree is damaged.
        """
        return {} if oid is None else parse_tree(self.get(oid, TREE_KIND), oid)

    def put_tree(self, entries: Mapping[bytes, TreeEntry]) -> bytes:
        """Add a folder and return its id."""
        return self.put(TREE_KIND, encode_tree(entries))

    def walk(self, tree: bytes, path: bytes = b"") -> Iterator[tuple[bytes, TreeEntry]]:
        """Yield path and entry of each file and link in a tree, in order. O(files).

        Raises:
            NotFound: A part of the tree is not in this store.
            CorruptLog: A part of the tree is damaged.
        """
        for name, entry in self.read_tree(tree).items():
            if entry.mode == FOLDER_MODE:
                yield from self.walk(entry.oid, path + name + b"/")
            else:
                yield path + name, entry


def encode_tree(entries: Mapping[bytes, TreeEntry]) -> bytes:
    """Return a folder in git's form: sorted by name, folders as if their names ended with a slash."""
    order = sorted(entries, key=lambda name: name + b"/" if entries[name].mode == FOLDER_MODE else name)
    return b"".join(b"%o %s\0%s" % (entries[name].mode, name, entries[name].oid) for name in order)


def parse_tree(data: bytes, oid: bytes) -> dict[bytes, TreeEntry]:
    """Return the entries of an encoded folder.

    Raises:
        CorruptLog: It has a name or a mode that no folder here has.
    """
    entries: dict[bytes, TreeEntry] = {}
    offset = 0
    try:
        while offset < len(data):
            space = data.index(b" ", offset)
            end = data.index(b"\0", space)
            name = data[space + 1 : end]
            entry = TreeEntry(int(data[offset:space], 8), data[end + 1 : end + 21])
            if entry.mode not in _MODES or len(entry.oid) != 20 or name in entries or not _is_name(name):
                raise ValueError(name)  # noqa: TRY301 - one handler for all that is wrong
            entries[name] = entry
            offset = end + 21
    except ValueError as error:
        raise CorruptLog(f"tree {oid.hex()} is damaged", details={"object": oid.hex()}, hint=REPAIR_HINT) from error
    return entries


def _is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..", b".git") and b"/" not in name
