"""What changed between two moments of a workspace, as data and as a patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Literal, TypeAlias

from bough.types import JsonObject

MAX_PATCH_FILE_BYTES = 1 << 20
"""Of a larger file, a patch only says that it differs."""

ChangeKind: TypeAlias = Literal["added", "changed", "removed", "mode"]


@dataclass(frozen=True, kw_only=True)
class PathChange:
    r"""A file that differs between two moments.

    Attributes:
        path: Relative to the workspace; bytes that are not UTF-8 and control characters are escaped as `\xNN`.
        change: `mode` if only the permission to execute it, or its kind, changed.
    """

    path: str
    change: ChangeKind


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """The files that differ between two moments, or that a restore wrote.

    Attributes:
        changes: By path.
        skipped: Paths that stayed as they are, because somebody else changed them or because they are protected.
        patch: The changes as a unified diff; empty unless it was asked for.
    """

    changes: tuple[PathChange, ...] = ()
    skipped: tuple[str, ...] = ()
    patch: str = ""

    @property
    def stat(self) -> dict[ChangeKind, int]:
        """The number of files for each kind of change."""
        return dict(Counter(change.change for change in self.changes))

    def to_json(self) -> JsonObject:
        """Return the changes as JSON, without the patch."""
        files = [{"path": change.path, "change": change.change} for change in self.changes]
        return {"files": files, "left": list(self.skipped)}

    @classmethod
    def from_json(cls, document: JsonObject) -> FileChanges:
        """Return the changes that `to_json` describes."""
        changes = tuple(PathChange(path=item["path"], change=item["change"]) for item in document["files"])
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


def make_patch(path: str, before: bytes | None, after: bytes | None, *, context: int = 3) -> str:
    """Return the part of a patch for one file; `before` or `after` is None if the file did not exist then."""
    old_name, new_name = (
        ("/dev/null" if before is None else f"a/{path}"),
        ("/dev/null" if after is None else f"b/{path}"),
    )
    old, new = _read_lines(before), _read_lines(after)
    if old is None or new is None:
        return f"Binary files {old_name} and {new_name} differ\n"
    lines = list(unified_diff(old, new, old_name, new_name, n=context))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _read_lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text; None for other content and for a text that is too long."""
    if content is None:
        return []
    if len(content) > MAX_PATCH_FILE_BYTES or b"\0" in content:
        return None
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
