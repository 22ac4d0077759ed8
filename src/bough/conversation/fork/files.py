"""The files of a conversation at a cut of its log, and their restoration.

A restore takes back the changes of the conversation, step by step, and leaves the changes of others: for each step, it
merges the files before that step into the present folder.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from bough.conversation.fork.file_changes import FileChanges, FileTree, KeptEntry, PathChange
from bough.conversation.log.state import KeptFiles, State
from bough.errors import Conflict, CorruptLog, InvalidInput, NotFound, PermissionDenied
from bough.events.model import FilesKept, ToolCalled
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.execution.base import NO_GUARDS, Guards
from bough.files import (
    MAX_PATCH_FILE_BYTES,
    FileChange,
    FileStore,
    KeepBounds,
    KeptFile,
    Looked,
    Objects,
    count_changes,
    diff,
    entries,
    leave_out,
    look,
    make_patch,
    make_short_patch,
    merge,
    read,
    select,
    show_path,
    write,
)
from bough.tree import open_beneath, open_descriptor

T = TypeVar("T")

Conflicts: TypeAlias = Literal["refuse", "leave", "force"]
"""What to do with files that somebody else changed: `refuse` writes nothing, `leave` skips them, `force` overwrites."""

STEPS: Final = ("tool", "restore", "apply")
"""The values of `FilesKept.by` for changes that the conversation itself made."""

LOOK_SECONDS: Final = 600.0
MAX_PATCH_CHARS: Final = 8 << 20
MAX_PATHS: Final = 50


class FileStep(NamedTuple):
    """One change of a conversation to its files: the trees before and after it, and the seq of its event."""

    before: str | None
    after: str | None
    seq: int


@dataclass(frozen=True)
class FolderTarget:
    """The tree that a folder is to have.

    Attributes:
        tree: The tree.
        conflicts: Paths that both sides of a merge changed; `tree` has the content of one side.
    """

    tree: str
    conflicts: tuple[str, ...] = ()


MakeTarget: TypeAlias = Callable[[Objects, str], FolderTarget]
"""Returns the tree that a folder is to have, given its present tree."""


@dataclass(frozen=True)
class Changed:
    """The result of a change of a folder.

    Attributes:
        looked: The folder before the change.
        tree: The folder's tree after it.
        changes: The files that were written or removed.
        skipped: Paths that were left unchanged.
        added_bytes: The growth of the folder in bytes; negative if it shrank.
    """

    looked: Looked
    tree: str
    changes: tuple[FileChange, ...]
    skipped: tuple[str, ...]
    added_bytes: int

    def describe(self) -> Looked:
        """Return what a look at the folder after the change would return."""
        counts, before = count_changes(self.changes), self.looked
        return Looked(
            tree=self.tree,
            before=before.tree,
            files=before.files + counts["added"] - counts["removed"],
            size_bytes=before.size_bytes + self.added_bytes,
            added=counts["added"],
            changed=counts["changed"] + counts["mode"],
            removed=counts["removed"],
            paths=tuple(show_path(change.path) for change in self.changes[:MAX_PATHS]),
        )

    def summarize(self) -> FileChanges:
        """Return the changes for the caller."""
        skipped = tuple(show_path(path) for path in self.skipped)
        return FileChanges(changes=describe_changes(self.changes), skipped=skipped)


class KeptTree(NamedTuple):
    """The tree of a workspace's files, and the seq of the event that names it; None for the present files."""

    tree: str
    seq: int | None = None


async def find_tree(store: EventStore, cid: UUID, state: State, head: int) -> KeptTree | None:
    """Return the tree of the files at a cut; None if they cannot have changed since: they are the present files.

    Reads the events after the cut if no files were kept before it.

    Args:
        state: The state at the cut.
        head: How many events the log has.

    Raises:
        NotFound: The files were not kept.
    """
    if state.files is not None:
        return require_tree(state.files, state.head)
    async for stored in store.read(cid, state.head, head):
        # A call that writes no file leaves the files of the cut as they were, whether or not it may run again.
        if stored.kind == "ToolCalled" and isinstance(call := stored.event, ToolCalled) and _may_have_written(call):
            raise make_not_kept_error(state.head, "no files were kept before the calls that follow it")
        if stored.kind == "FilesKept" and isinstance(event := stored.event, FilesKept):
            if event.tree is None:
                raise make_not_kept_error(state.head, event.reason)
            # The same files as at the cut: no call that may have written is between the cut and this event.
            return KeptTree(event.tree, stored.seq)
    return None


def _may_have_written(call: ToolCalled) -> bool:
    return call.may_write and not call.idempotent


def require_tree(files: KeptFiles, seq: int) -> KeptTree:
    """Return the tree of kept files. Raises `NotFound` if the files were not kept."""
    if files.tree is None:
        raise make_not_kept_error(seq, files.reason)
    return KeptTree(files.tree, files.seq)


def make_not_kept_error(seq: int, reason: str) -> NotFound:
    """Return the error for files that were not kept."""
    return NotFound(
        f"the files of event {seq} were not kept: {reason}",
        hint="fork with moment=now to get the present files",
        details={"seq": seq, "reason": reason},
    )


async def list_steps(store: EventStore, cid: UUID, start: int, stop: int) -> list[FileStep]:
    """Return the changes that the conversation made in a part of its log, oldest first. O(events of the part).

    Raises:
        NotFound: The files of a step were not kept.
    """
    steps: list[FileStep] = []
    async for event, stored in _read_kept(store, cid, start, stop):
        if event.tree is None:
            raise make_not_kept_error(stored.seq, event.reason)
        if event.by in STEPS:
            steps.append(FileStep(event.before, event.tree, stored.seq))
    return steps


async def find_restore(store: EventStore, cid: UUID, start: int, stop: int) -> FileStep | None:
    """Return the last step in a part of a log if it is a restore, else None."""
    latest: tuple[FilesKept, StoredEvent] | None = None
    async for event, stored in _read_kept(store, cid, start, stop):
        if event.by in STEPS:
            latest = (event, stored)
    if latest is None or latest[0].by != "restore":
        return None
    return FileStep(latest[0].before, latest[0].tree, latest[1].seq)


async def _read_kept(
    store: EventStore, cid: UUID, start: int, stop: int
) -> AsyncIterator[tuple[FilesKept, StoredEvent]]:
    """Yield each `FilesKept` event with its row."""
    async for stored in store.read(cid, start, stop):
        if stored.kind == "FilesKept" and isinstance(event := stored.event, FilesKept):
            yield event, stored


def revert_steps(steps: Sequence[FileStep], conflicts: Conflicts) -> MakeTarget:
    """Return a function that takes back steps, the latest first."""

    def make_target(objects: Objects, now: str) -> FolderTarget:
        tree, paths = now, dict[str, None]()
        # The latest first: each merge starts from the tree in which the later steps are taken back.
        for step in reversed(steps):
            merged = merge(objects, step.after, tree, step.before, prefer=_choose_side(conflicts))
            tree, paths = merged.tree, paths | dict.fromkeys(merged.conflicts)
        return FolderTarget(tree, tuple(paths))

    return make_target


def apply_difference(before: str | None, after: str | None, conflicts: Conflicts) -> MakeTarget:
    """Return a function that applies the difference of two trees to the present tree."""

    def make_target(objects: Objects, now: str) -> FolderTarget:
        merged = merge(objects, before, now, after, prefer=_choose_side(conflicts))
        return FolderTarget(merged.tree, merged.conflicts)

    return make_target


def replace_by(tree: str) -> MakeTarget:
    """Return a function that replaces the present tree by `tree`."""
    return lambda objects, now: FolderTarget(tree)


def _choose_side(conflicts: Conflicts) -> Literal["ours", "theirs"]:
    return "theirs" if conflicts == "force" else "ours"


def check_conflicts_argument(conflicts: str) -> None:
    """Raise `InvalidInput` if `conflicts` is not one of `Conflicts`."""
    if conflicts not in ("refuse", "leave", "force"):
        raise InvalidInput(f"invalid value of conflicts: {conflicts!r}", hint="give refuse, leave or force")


@dataclass(frozen=True)
class WorkspaceFolder:
    """A workspace and the store of its kept files. All methods block.

    Attributes:
        guards: The names that only a person may change.
        look_seconds: How long a look at the folder may take.
    """

    file_store: FileStore
    folder: Path
    bounds: KeepBounds
    guards: Guards
    look_seconds: float = LOOK_SECONDS

    def look(self, objects: Objects) -> Looked:
        """Look at the present files. Raises `NotFound` if they cannot be kept."""
        if not self.folder.is_dir():
            raise NotFound(f"the workspace {self.folder} is not a folder", hint="create it, or name two events")
        looked = look(self.file_store, objects, self.folder, bounds=self.bounds, seconds=self.look_seconds)
        if looked.tree is None:
            raise NotFound(
                f"the files of {self.folder} cannot be kept: {looked.reason}",
                hint="a .gitignore narrows them; see keep_max_files and keep_total_bytes in bough.yaml",
                details={"reason": looked.reason},
            )
        return looked

    def look_at_idle(self) -> KeptTree:
        """Return the tree of the present files. Raises `Conflict` if a run uses the folder."""
        with self.file_store.hold_folder(self.folder, exclusive=True), self.file_store.objects() as objects:
            return KeptTree(str(self.look(objects).tree))

    def with_objects(self, function: Callable[[Objects], T]) -> T:
        """Call a function with the kept objects, which are open while it runs."""
        with self.file_store.objects() as objects:
            return function(objects)

    def read_tree(self, tree: str) -> FileTree:
        """Return the files of a tree with their sizes."""
        with self.file_store.objects() as objects:
            files = tuple(
                KeptEntry(path=show_path(file.path), kind=file.kind, size=_read_size(objects, file))
                for file in entries(objects, tree)
            )
        return FileTree(tree=tree, entries=files, _read=partial(self.read_file, tree))

    def read_file(self, tree: str, path: str) -> bytes:
        """Return the content of a file of a tree, by the path that `FileTree` shows."""
        with self.file_store.objects() as objects:
            try:
                return read(objects, tree, path)
            except NotFound:
                # In a shown path, bytes that are not text are escaped; only the tree has the real name.
                names = [file.path for file in entries(objects, tree) if show_path(file.path) == path]
                if "\\" not in path or not names:
                    raise
                return read(objects, tree, names[0])

    def compare(self, before: str, after: str, paths: Sequence[str]) -> FileChanges:
        """Return the difference of two trees with its patch."""
        with self.file_store.objects() as objects:
            return self.compare_trees(objects, before, after, paths)

    def compare_trees(self, objects: Objects, before: str, after: str, paths: Sequence[str]) -> FileChanges:
        """Return the difference of two trees with its patch. O(changes): no other file is read."""
        if paths:
            after = select(objects, before, after, paths)
        changes: list[PathChange] = []
        patch: list[str] = []
        patch_size = 0
        for change in diff(objects, before, after):
            path, sides = show_path(change.path), (change.before, change.after)
            is_long = patch_size > MAX_PATCH_CHARS or any(
                _read_size(objects, side) > MAX_PATCH_FILE_BYTES for side in sides
            )
            if is_long:
                file_patch = make_short_patch(path, change.before is not None, change.after is not None)
            else:
                file_patch = make_patch(path, *(_read_side(objects, side) for side in sides))
            patch_size += len(file_patch.text)
            patch.append(file_patch.text)
            counts = {"lines_added": file_patch.lines_added, "lines_removed": file_patch.lines_removed}
            changes.append(PathChange(path=path, change=change.change, **counts))
        return FileChanges(changes=tuple(changes), patch="".join(patch))

    def change(
        self,
        objects: Objects,
        make_target: MakeTarget,
        *,
        conflicts: Conflicts,
        paths: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Changed:
        """Give the folder the files of a target, all of them or none.

        Args:
            objects: Kept objects. The caller keeps them open until the event that names the new tree is durable.
            paths: Change only these paths, relative to the folder; a folder includes everything below it.
            dry_run: Write nothing.

        Raises:
            Conflict: A run holds the folder, or somebody changed a file that would be written (`details["paths"]`).
            PermissionDenied: `paths` names a protected file.
            NotFound: The files cannot be kept, or a tree is missing.
            CorruptLog: A kept file is damaged.
        """
        for path in paths:
            if self._is_guarded(os.path.normpath(path)):
                raise PermissionDenied(f"{path} is protected", hint="change it yourself")
        with ExitStack() as stack:
            # Without waiting: a run holds the folder until it ends.
            stack.enter_context(self.file_store.hold_folder(self.folder, exclusive=True))
            looked = self.look(objects)
            present = str(looked.tree)
            target = make_target(objects, present)
            tree, conflicting = target.tree, target.conflicts
            if paths:
                tree = select(objects, present, tree, paths)
                conflicting = tuple(path for path in conflicting if _is_below(path, paths))
            if conflicting and conflicts == "refuse":
                raise make_conflict_error(conflicting)
            skipped = conflicting if conflicts == "leave" else ()
            guarded = [change.path for change in diff(objects, present, tree) if self._is_guarded(change.path)]
            if guarded:
                tree = leave_out(objects, present, tree, guarded)
            # Durable before the folder is touched: after a crash in the middle, the change is finished from them.
            objects.flush()
            changes = tuple(diff(objects, present, tree))
            if changes and not dry_run:
                written = write(self.file_store, objects, self.folder, present, tree, is_guarded=self._is_guarded)
                skipped = (*skipped, *written.skipped)
            added_bytes = sum(
                _read_size(objects, change.after) - _read_size(objects, change.before) for change in changes
            )
            return Changed(looked, tree, changes, (*skipped, *guarded), added_bytes)

    def _is_guarded(self, path: str) -> bool:
        return self.guards.covers(path.split("/"))


@dataclass(frozen=True)
class PastFiles:
    """Files of a past event, for a new folder."""

    file_store: FileStore
    bounds: KeepBounds
    kept_tree: KeptTree

    def write(self, folder: Path) -> Looked:
        """Write these files into a copy of the present folder, and return them. Files that are not kept stay. Blocks.

        Raises:
            NotFound: A part of the tree is missing.
            CorruptLog: A part of the tree is damaged.
        """
        copy = WorkspaceFolder(self.file_store, folder, self.bounds, NO_GUARDS)

        def make_target(objects: Objects, now: str) -> FolderTarget:
            # First remove ignored files at paths that the past tree has: they are not in the tree of the copy.
            with open_descriptor(folder) as root:
                for change in diff(objects, now, self.kept_tree.tree):
                    if change.before is None:
                        _remove_file(root, change.path)
            return FolderTarget(self.kept_tree.tree)

        with self.file_store.objects() as objects, describe_damage(self.kept_tree):
            return copy.change(objects, make_target, conflicts="force").describe()


def _remove_file(root: int, path: str) -> None:
    """Remove a file of a copy, if it exists."""
    *parents, name = path.split("/")
    with suppress(OSError), open_beneath(root, parents) as folder:
        os.unlink(name, dir_fd=folder)


def make_conflict_error(paths: Sequence[str]) -> Conflict:
    """Return the error for files that somebody else changed after the conversation."""
    names = [show_path(path) for path in paths]
    return Conflict(
        f"{len(names)} files were changed by somebody else: {', '.join(names[:5])}",
        hint="conflicts=leave skips these files, conflicts=force overwrites them",
        details={"paths": names},
    )


def describe_changes(changes: Sequence[FileChange]) -> tuple[PathChange, ...]:
    """Return changes of trees for callers."""
    return tuple(PathChange(path=show_path(change.path), change=change.change) for change in changes)


@contextmanager
def describe_damage(*kept_trees: KeptTree) -> Generator[None]:
    """If the block raises an error about damaged or missing files, add the events that name these files to it."""
    try:
        yield
    except (CorruptLog, NotFound) as error:
        recorded = [kept_tree for kept_tree in kept_trees if kept_tree.seq is not None]
        # A path that was in no tree is not found either, and has nothing to do with the events.
        if not recorded or "object" not in error.details:
            raise
        events = " or ".join(dict.fromkeys(str(kept_tree.seq) for kept_tree in recorded))
        details = {**error.details, "seq": recorded[-1].seq, "tree": recorded[-1].tree}
        state = "damaged" if isinstance(error, CorruptLog) else "not here"
        message = f"the files of event {events} are {state}: {error.message}"
        raise type(error)(message, hint=error.hint, details=details) from error


def _read_side(objects: Objects, file: KeptFile | None) -> bytes | None:
    return None if file is None else objects.get(bytes.fromhex(file.oid))


def _read_size(objects: Objects, file: KeptFile | None) -> int:
    return 0 if file is None else objects.read_size(bytes.fromhex(file.oid))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    names = [os.path.normpath(folder) for folder in folders]
    return any(name in (path, ".") or path.startswith(f"{name}/") for name in names)
