"""The changes of a workspace's files between two moments, as data and as a patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bough.events.model import CheckRan
from bough.types import JsonObject

ChangeKind: TypeAlias = Literal["added", "changed", "removed", "mode"]


@dataclass(frozen=True, kw_only=True)
class PathChange:
    r"""A file that differs between two moments.

    Attributes:
        path: Relative to the workspace; bytes that are not UTF-8 and control characters are escaped as `\xNN`.
        change: `mode` if only its kind or its permission to be executed changed.
        lines_added: None if the lines were not compared, for example because the file is binary.
        lines_removed: None in the same cases.
    """

    path: str
    change: ChangeKind
    lines_added: int | None = None
    lines_removed: int | None = None

    def to_json(self) -> JsonObject:
        """Return the change as JSON, without the numbers of lines if the lines were not compared."""
        counts = {"lines_added": self.lines_added, "lines_removed": self.lines_removed}
        known_counts = {name: count for name, count in counts.items() if count is not None}
        return {"path": self.path, "change": self.change, **known_counts}

    @classmethod
    def from_json(cls, document: JsonObject) -> PathChange:
        """Return the change that `to_json` describes."""
        added, removed = document.get("lines_added"), document.get("lines_removed")
        return cls(path=document["path"], change=document["change"], lines_added=added, lines_removed=removed)


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """The files that differ between two moments, or that a restore wrote.

    Attributes:
        changes: By path.
        skipped: Paths that were left unchanged, because somebody else changed them or because they are protected.
        patch: The changes as a unified diff; empty unless it was requested. It only names binary files, files of more
            than 1 MiB, and all files after the first 8 MiB of the patch.
        check: The result of the check of `apply`; None without a check. If it failed, the changes were taken back.
    """

    changes: tuple[PathChange, ...] = ()
    skipped: tuple[str, ...] = ()
    patch: str = ""
    check: CheckRan | None = None

    @property
    def stat(self) -> dict[ChangeKind, int]:
        """The number of files for each kind of change."""
        return dict(Counter(change.change for change in self.changes))

    def to_json(self) -> JsonObject:
        """Return the changes as JSON, without the patch."""
        document: JsonObject = {"files": [change.to_json() for change in self.changes], "left": list(self.skipped)}
        if self.check is not None:
            names = {"command", "passed", "exit_code", "timed_out", "killed_by", "stdout", "stderr", "seconds"}
            document["check"] = self.check.model_dump(mode="json", include=names)
        return document

    @classmethod
    def from_json(cls, document: JsonObject) -> FileChanges:
        """Return the changes that `to_json` describes."""
        changes = tuple(PathChange.from_json(item) for item in document["files"])
        return cls(changes=changes, skipped=tuple(document["left"]), patch=document.get("patch") or "")


@dataclass(frozen=True, kw_only=True)
class KeptEntry:
    """A file of a workspace at a past moment."""

    path: str
    kind: Literal["file", "executable", "link"]
    size: int


@dataclass(frozen=True, kw_only=True)
class FileTree:
    """The files of a workspace at a past moment.

    Attributes:
        tree: The digest of the tree, which `git` can read too.
        entries: By path.
    """

    tree: str
    entries: tuple[KeptEntry, ...]
    _read: Callable[[str], bytes] = field(repr=False, compare=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        return tuple(entry.path for entry in self.entries)

    def read(self, path: str) -> bytes:
        """Return the content of a file, or the target of a link. Blocks.

        Raises:
            NotFound: There was no file at this path.
            CorruptLog: The kept file is damaged.
        """
        return self._read(path)
