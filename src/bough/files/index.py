"""An index of a folder: state and object of each file at the last look, so that unchanged files are not read again."""

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
"""Device, inode, size, mtime, ctime and mode of a file. Every change alters it, since no program can set the ctime."""

_VERSION: Final = 1
_SAVE_SECONDS: Final = 30.0


class SeenFile(NamedTuple):
    """A file, link or folder at the last look.

    Attributes:
        state: None for a folder, and for a file that must be read again: it may have changed without a new state.
        mode: A mode of an entry of a tree.
        oid: The id of its object.
        size: The bytes of a file.
    """

    state: FileState | None
    mode: int
    oid: bytes
    size: int


class SeenRules(NamedTuple):
    """A `.gitignore` at the last look: its state (None if it must be read again), and its content."""

    state: FileState | None
    content: bytes


@dataclass(slots=True)
class SeenFolder:
    """A folder at the last look.

    Attributes:
        files: The entries of its tree, by name.
        ignored: Names that the rules exclude; names of folders end with a slash.
        passed: Names that no rule excludes, but another reason, such as the size.
        tree: The id of its tree; None if the folder contains no file.
        rules: The `.gitignore` in this folder; None without one.
        size_bytes: The bytes of the files directly in this folder.
    """

    files: dict[str, SeenFile] = field(default_factory=dict[str, SeenFile])
    ignored: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    tree: bytes | None = None
    rules: SeenRules | None = None
    size_bytes: int = 0


class FolderIndex:
    """A folder and all folders below it at the last look, by path. The caller holds the lock of the look.

    If the file of the index is lost, the next look reads all files again. Nothing else depends on it.

    Args:
        path: The file of the index. The file `<path>.tree` has the tree of the last look by any process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folders: dict[str, SeenFolder] = {}
        self.collected = ""
        self._is_loaded = False
        self._is_saved = True
        self._saved_at = time.monotonic()

    def load(self) -> None:
        """Read the file unless it was read before. A missing or damaged file is an empty index."""
        if self._is_loaded:
            return
        self._is_loaded = True
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        # Before `marshal` reads them: it is safe only for bytes that it wrote itself.
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
        """Replace the index after a look, and write the file if it was not written recently.

        Args:
            folders: All folders.
            collected: The mark of the last collection. After a later collection, the objects may be gone.
        """
        self.folders, self.collected, self._is_saved = folders, collected, False
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file if the index has changed. A failure is ignored, because the file only saves time."""
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
    """Return the state that shows whether a file has changed."""
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode)
