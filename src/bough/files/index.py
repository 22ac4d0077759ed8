"""What is remembered of a folder's files, so that an unchanged file is not read again."""

from __future__ import annotations

import hashlib
import marshal
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

FileState: TypeAlias = tuple[int, int, int, int, int, int]
"""Device, inode, size, mtime, ctime and mode of a file: new after every change, since no program sets the ctime."""

_VERSION: Final = 1
_SAVE_SECONDS: Final = 30.0


class SeenFile(NamedTuple):
    """A file, link or folder as it was seen last.

    Attributes:
        state: None for a folder, and for a file that must be read again: it may have changed without a new state.
        mode: One of the modes of trees.
        oid: The id of its object.
        size: The bytes of a file.
    """

    state: FileState | None
    mode: int
    oid: bytes
    size: int


class SeenRules(NamedTuple):
    """A `.gitignore` as it was seen last: its state (None if it must be read again), and its content."""

    state: FileState | None
    content: bytes


@dataclass(slots=True)
class SeenFolder:
    """A folder as it was seen last.

    Attributes:
        files: What of it is in its tree, by name.
        ignored: Names that the rules leave out, those of folders with a slash.
        passed: Names that the rules do not leave out, but something else, such as a size.
        tree: The id of its tree; None if it holds no file.
        rules: Its own `.gitignore`, if there is one.
        size_bytes: The bytes of its own files.
    """

    files: dict[str, SeenFile] = field(default_factory=dict[str, SeenFile])
    ignored: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    tree: bytes | None = None
    rules: SeenRules | None = None
    size_bytes: int = 0


class FolderIndex:
    """The folders below one folder, by path, as they were seen last. The caller holds the lock of the look.

    Losing the file costs one reading of all files, nothing else: every entry is compared with the folder.

    Args:
        path: Its file; another file beside it, `<path>.tree`, holds the tree of the last look by any process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folders: dict[str, SeenFolder] = {}
        self.collected = ""
        self._is_loaded = False
        self._is_saved = True
        self._saved_at = time.monotonic()

    def load(self) -> None:
        """Read the file, if that was not done; a missing or damaged one is as if nothing was seen."""
        if self._is_loaded:
            return
        self._is_loaded = True
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        # Before `marshal` reads it, which must not be given bytes that it did not write.
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            return
        with suppress(ValueError, TypeError, EOFError):
            self._decode(marshal.loads(data[32:]))  # noqa: S302 - the digest fits: this class wrote it

    def _decode(self, data: Any) -> None:
        version, collected, rows = data
        if version != _VERSION:
            return
        self.folders = {
            path: SeenFolder(
                {name: SeenFile(*row) for name, row in files.items()},
                ignored,
                passed,
                tree,
                None if rules is None else SeenRules(*rules),
                size,
            )
            for path, (files, ignored, passed, tree, rules, size) in rows.items()
        }
        self.collected = collected

    def replace(self, folders: dict[str, SeenFolder], collected: str) -> None:
        """Remember a new look, and write the file if the last time was a while ago.

        Args:
            folders: All folders.
            collected: The mark of the last collection; after another one, the objects must be looked up again.
        """
        self.folders, self.collected, self._is_saved = folders, collected, False
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file, if there is something new. A failure is not an error, since the file only saves time."""
        if self._is_saved:
            return
        self._is_saved, self._saved_at = True, time.monotonic()
        rows = {
            path: (
                {name: tuple(file) for name, file in folder.files.items()},
                folder.ignored,
                folder.passed,
                folder.tree,
                None if folder.rules is None else tuple(folder.rules),
                folder.size_bytes,
            )
            for path, folder in self.folders.items()
        }
        data = marshal.dumps((_VERSION, self.collected, rows))
        self._write(self._path, hashlib.sha256(data).digest() + data)

    def read_last_tree(self) -> str | None:
        """Return the tree of the last look by any process; None if there was none."""
        try:
            text = self._path.with_suffix(".tree").read_text("ascii")
            return text if len(bytes.fromhex(text)) == 20 else None
        except (OSError, ValueError):
            return None

    def write_last_tree(self, tree: str) -> None:
        """Record the tree of a look."""
        self._write(self._path.with_suffix(".tree"), tree.encode())

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".new-{secrets.token_hex(8)}")
        with suppress(OSError):
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


def state_of(state: os.stat_result) -> FileState:
    """Return what tells whether a file changed."""
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode)
