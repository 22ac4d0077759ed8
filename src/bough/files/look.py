"""Compare a folder with what was seen of it last, and keep what changed as a tree.

Every name is opened relative to the descriptor of its folder, never through a link, and never across a mount.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from bough.errors import CorruptLog, NotFound, Unavailable
from bough.files.folder import recover
from bough.files.ignore import MAX_RULES_BYTES, RULES_NAME, IgnoreRules
from bough.files.index import FileState, FolderIndex, SeenFile, SeenFolder, SeenRules, state_of
from bough.files.materialise import NEVER
from bough.files.objects import EMPTY_TREE, EXECUTABLE_MODE, FILE_MODE, FOLDER_MODE, LINK_MODE, Objects, TreeEntry
from bough.files.pack import BLOB_KIND
from bough.files.store import FileStore
from bough.files.trees import FileChange, count_changes, diff, show_path
from bough.tree import FILE, FOLDER, open_beneath, open_descriptor

HEAVY: Final = frozenset(
    {"node_modules", ".venv", "__pycache__", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders that a tool can make again; they are left out whether or not a rule names them."""

_CLOCK_NS: Final = 20_000_000
"""Times of files advance in steps of 1 to 10 ms: within them a file may change without a new state."""

_COARSE_CLOCK_NS: Final = 2_000_000_000
_MAX_SKIPPED: Final = 1_000
_MAX_PATHS: Final = 50
_MAX_PATH_BYTES: Final = 4096
_MAX_DEPTH: Final = 64
_READS: Final = 3

SkippedFile: TypeAlias = tuple[str, str]
"""A path as text, and why it is not kept."""


@dataclass(frozen=True, kw_only=True)
class KeepBounds:
    """What of a folder is kept at most.

    Attributes:
        max_files: With more files, nothing is kept.
        file_bytes: A larger file is left out.
        total_bytes: With more bytes, nothing is kept.
        ignored: Keep what `.gitignore` names, too.
    """

    max_files: int = 50_000
    file_bytes: int = 16 << 20
    total_bytes: int = 1 << 30
    ignored: bool = False


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The result of a look.

    Attributes:
        tree: The tree of the folder; None if nothing was kept, and `reason` says why.
        before: The tree that any process saw there last; None if nobody did.
        files: Files and links in the tree; `size_bytes` are theirs.
        added: Files that `before` lacks; `changed` and `removed` likewise.
        paths: The first 50 of those, as text.
        skipped: What is left out and why, ignored names last, at most 1,000 of `skipped_count`.
        unsettled: Files that changed while they were read; the next look reads them again.
        stat_count: Names whose state was read.
        hashed: Files whose content was read.
    """

    tree: str | None
    before: str | None = None
    files: int = 0
    size_bytes: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    paths: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    skipped_count: int = 0
    unsettled: int = 0
    reason: str = ""
    stat_count: int = 0
    hashed: int = 0
    seconds: float = 0.0


class _NotKept(Exception):
    """Nothing is kept, for this reason."""


class _NeedsLook(Exception):
    """The files that were named are not enough: the whole folder must be looked at."""


def look(
    file_store: FileStore,
    objects: Objects,
    folder: Path,
    *,
    paths: Sequence[str] | None = None,
    bounds: KeepBounds | None = None,
    seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Looked:
    """Return the tree of a folder, durable. O(files), and the bytes of those that changed.

    A folder that cannot be kept is a result with a reason, not an error. A journal that a crash left is finished first.

    Args:
        objects: Open until the event that names the tree is durable.
        paths: Look at these only, relative to the folder: O(paths) and the folders above them. The whole folder is
            looked at if nobody saw it before.
        bounds: What is kept at most.
        seconds: Give up after this time; files that were read are not read again by the next look.
        should_stop: Called between files; True gives up.

    Raises:
        Conflict: Another look or a restore of this folder does not end.
        CorruptLog: A damaged object was needed.
        Unavailable: The store cannot be used, or libgit2 is missing.
    """
    started = time.monotonic()
    deadline = None if seconds is None else started + seconds
    with file_store.hold_look(folder):
        index = file_store.index(folder)
        index.load()
        work = _Look(file_store, objects, index, bounds or KeepBounds(), lambda: should_stop() or _is_over(deadline))
        try:
            recover(file_store, objects, folder)
            looked = work.run(folder, paths)
        except _NotKept as error:
            looked = Looked(tree=None, reason=str(error), stat_count=work.stat_count)
        except OSError as error:
            looked = Looked(tree=None, reason=error.strerror or str(error))
        except Unavailable as error:
            if "reason" not in error.details:
                raise
            looked = Looked(tree=None, reason=error.details["reason"])
    return replace(looked, seconds=round(time.monotonic() - started, 6))


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


@dataclass
class _Look:
    """One look at a folder."""

    file_store: FileStore
    objects: Objects
    index: FolderIndex
    bounds: KeepBounds
    should_stop: Callable[[], bool]
    files: int = 0
    size_bytes: int = 0
    stat_count: int = 0
    hashed: int = 0
    unsettled: int = 0
    device: int = 0
    is_passed: bool = False
    skipped: list[SkippedFile] = field(default_factory=list[SkippedFile])
    ignored: list[str] = field(default_factory=list[str])
    fresh: dict[str, SeenFolder] = field(default_factory=dict[str, SeenFolder])
    rules: IgnoreRules = field(default_factory=IgnoreRules)

    def run(self, folder: Path, paths: Sequence[str] | None) -> Looked:
        """Look at the folder, or at some paths of it, and remember it."""
        self._check_folder(folder)
        # After `objects` was opened: from then on no collection removes anything.
        collected = read_collected(self.file_store)
        if self.index.collected != collected:
            self._forget_collected()
        with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root_fd:
            self.device = os.fstat(root_fd).st_dev
            tree = self._find_tree(root_fd, paths)
        before = self._read_before()
        # Before the index names the objects, and before the caller's event names the tree.
        self.objects.flush()
        self.index.replace(self.fresh, collected)
        changes: list[FileChange] = []
        if before is not None:
            try:
                changes = diff(self.objects, before, tree)
            except (NotFound, CorruptLog):
                before = None  # damaged, as `inspect_place` reports; the files of now are kept all the same
        if before != tree:
            self.index.write_last_tree(tree)
        counts = count_changes(changes)
        return Looked(
            tree=tree,
            before=before,
            files=self.files,
            size_bytes=self.size_bytes,
            added=counts["added"] if before is not None else self.files,
            changed=counts["changed"] + counts["mode"],
            removed=counts["removed"],
            paths=tuple(show_path(change.path) for change in changes[:_MAX_PATHS]),
            skipped=tuple([*self.skipped, *((show_path(path), "ignored") for path in self.ignored)][:_MAX_SKIPPED]),
            skipped_count=len(self.skipped) + len(self.ignored),
            unsettled=self.unsettled,
            stat_count=self.stat_count,
            hashed=self.hashed,
        )

    def _check_folder(self, folder: Path) -> None:
        real = Path(os.path.realpath(folder))
        home = Path(os.path.realpath(os.path.expanduser("~")))
        if real in (Path("/"), home) or self.file_store.path.resolve().is_relative_to(real):
            raise _NotKept("not a workspace")

    def _read_before(self) -> str | None:
        last = self.index.read_last_tree()
        if last is None:
            return None
        if bytes.fromhex(last) not in self.objects:
            self.objects.refresh()  # another process may have added it meanwhile
        return last if bytes.fromhex(last) in self.objects else None

    def _forget_collected(self) -> None:
        """Forget what a collection removed: nobody named those objects, so the files are read again."""
        for folder in self.index.folders.values():
            folder.files = {name: file for name, file in folder.files.items() if file.oid in self.objects}
            if folder.tree is not None and folder.tree not in self.objects:
                folder.tree = None

    def _find_tree(self, root_fd: int, paths: Sequence[str] | None) -> str:
        tree: bytes | None = None
        if paths is not None and self._is_last():
            with suppress(_NeedsLook):
                tree = self._look_at(root_fd, paths)
                return self._name_root(tree)
        self.fresh = {}
        self.files = self.size_bytes = 0
        self.skipped.clear()
        self.ignored.clear()
        try:
            tree = self._look_below(root_fd, "", 0, trust_ignored=True)
        except _NotKept:
            self._remember_part()
            raise
        return self._name_root(tree)

    def _is_last(self) -> bool:
        """Whether the index is of the last look by any process, so that other paths are as it says."""
        top = self.index.folders.get("")
        return top is not None and self.index.read_last_tree() == (top.tree or EMPTY_TREE).hex()

    def _name_root(self, tree: bytes | None) -> str:
        return (self.objects.put_tree({}) if tree is None else tree).hex()

    def _remember_part(self) -> None:
        """Remember the folders that were read, so that the next look need not read them."""
        if "" in self.index.folders:
            return
        self.objects.flush()
        self.index.replace({**self.index.folders, **self.fresh}, read_collected(self.file_store))

    def _look_below(self, fd: int, path: str, depth: int, *, trust_ignored: bool) -> bytes | None:
        """Look at a folder and those below it; return its tree, None for a folder without files.

        Args:
            fd: Its descriptor.
            path: Its path, empty for the top.
            depth: How many folders are above it.
            trust_ignored: Whether no `.gitignore` above it changed.
        """
        if self.should_stop():
            raise _NotKept("it took too long")
        prefix = f"{path}/" if path else ""
        old = self.index.folders.get(path) or SeenFolder()
        new = SeenFolder()
        with os.scandir(fd) as listing:
            entries = list(listing)
        names = {entry.name for entry in entries}
        # Before any name of the folder is asked for, since its own rules hold for them.
        trust_ignored = self._read_rules(fd, path, old, new, exists=RULES_NAME in names) and trust_ignored
        ignored: list[str] = []
        passed: list[str] = []
        changed = old.tree is None
        for entry in entries:
            name = entry.name
            if name == NEVER:
                continue
            previous = old.files.get(name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if previous is None and trust_ignored and _name_ignored(name, is_folder=is_folder) in old.ignored:
                ignored.append(_name_ignored(name, is_folder=is_folder))
                continue
            if is_folder:
                file = self._look_at_folder(
                    fd, prefix + name, name, depth, previous, ignored, trust_ignored=trust_ignored
                )
            else:
                self.is_passed = trust_ignored and name in old.passed
                file = self._look_at_file(fd, prefix + name, name, previous, ignored, entry)
            if file is None:
                if not is_folder and (not ignored or ignored[-1] != name):
                    passed.append(name)
                continue
            new.files[name] = file
            if file.mode != FOLDER_MODE:
                new.size_bytes += file.size
            changed = changed or previous is None or previous.oid != file.oid or previous.mode != file.mode
        new.ignored, new.passed = frozenset(ignored), frozenset(passed)
        self.ignored.extend(prefix + name for name in ignored)
        new.tree = self._put(new) if changed or len(new.files) != len(old.files) else old.tree
        self.fresh[path] = new
        return new.tree

    def _put(self, folder: SeenFolder) -> bytes | None:
        entries = {os.fsencode(name): TreeEntry(file.mode, file.oid) for name, file in folder.files.items()}
        return self.objects.put_tree(entries) if entries else None

    def _look_at_folder(
        self,
        fd: int,
        path: str,
        name: str,
        depth: int,
        previous: SeenFile | None,
        ignored: list[str],
        *,
        trust_ignored: bool,
    ) -> SeenFile | None:
        if not self.bounds.ignored or name in HEAVY:
            is_left_out = name in HEAVY or (
                (previous is None or previous.mode != FOLDER_MODE) and self.rules.covers(path, is_folder=True)
            )
            if is_left_out:
                ignored.append(_name_ignored(name, is_folder=True))
                return None
        if depth + 1 >= _MAX_DEPTH or len(os.fsencode(path)) > _MAX_PATH_BYTES:
            return self._skip(path, "too deep")
        # Relative to the open folder, and never through a link: a script may replace a name at any moment.
        try:
            inner = os.open(name, FOLDER, dir_fd=fd)
        except OSError as error:
            return self._skip(path, error.strerror)
        try:
            if os.fstat(inner).st_dev != self.device:
                return self._skip(path, "another file system")
            tree = self._look_below(inner, path, depth + 1, trust_ignored=trust_ignored)
        except OSError as error:
            return self._skip(path, error.strerror)
        finally:
            os.close(inner)
        return None if tree is None else SeenFile(None, FOLDER_MODE, tree, 0)

    def _look_at_file(
        self,
        fd: int,
        path: str,
        name: str,
        previous: SeenFile | None,
        ignored: list[str],
        entry: os.DirEntry[str] | None,
    ) -> SeenFile | None:
        self.stat_count += 1
        try:
            if entry is None:
                state = os.stat(name, dir_fd=fd, follow_symlinks=False)
            else:
                state = entry.stat(follow_symlinks=False)
        except OSError as error:
            return self._skip(path, error.strerror)
        if previous is not None and previous.state is not None and previous.state == state_of(state):
            file = previous
        elif (
            (previous is None or previous.mode == FOLDER_MODE)
            and not self.bounds.ignored
            and not self.is_passed
            and self.rules.covers(path, is_folder=False)
        ):
            ignored.append(name)
            return None
        else:
            file = self._read(fd, name, path, state)
            if file is None:
                return None
        self.files += 1
        self.size_bytes += file.size
        if self.files > self.bounds.max_files:
            raise _NotKept(f"more than {self.bounds.max_files:,} files")
        if self.size_bytes > self.bounds.total_bytes:
            raise _NotKept(f"more than {self.bounds.total_bytes:,} bytes")
        return file

    def _read(self, fd: int, name: str, path: str, state: os.stat_result) -> SeenFile | None:
        """Read a file or link that changed, and add it; None if it cannot be kept."""
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            return self._skip(path, "its path is too long")
        if self.should_stop():
            raise _NotKept("it took too long")
        # Before the file is read: a change after this moment must not pass for what was read.
        clock = time.time_ns()
        try:
            if stat.S_ISLNK(state.st_mode):
                target = os.fsencode(os.readlink(name, dir_fd=fd))
                self.hashed += 1
                return self._add(state, clock, LINK_MODE, target)
            if not stat.S_ISREG(state.st_mode):
                return self._skip(path, "not a regular file")
            return self._read_file(fd, name, path, state)
        except OSError as error:
            return self._skip(path, error.strerror)

    def _read_file(self, fd: int, name: str, path: str, state: os.stat_result) -> SeenFile | None:
        is_settled = False
        clock, data = time.time_ns(), b""
        for _ in range(_READS):
            # By its size, not its blocks: a sparse file would be read to its end.
            if state.st_size > self.bounds.file_bytes:
                return self._skip(path, f"larger than {self.bounds.file_bytes:,} bytes")
            clock = time.time_ns()
            # Never through a link, and without waiting for the writer of a pipe that took the file's place.
            with open(os.open(name, FILE, dir_fd=fd), "rb", buffering=0) as file:
                opened = os.fstat(file.fileno())
                if not stat.S_ISREG(opened.st_mode) or opened.st_dev != self.device:
                    return self._skip(path, "not a regular file")
                data = _read_up_to(file.fileno(), self.bounds.file_bytes + 1)
                after = os.fstat(file.fileno())
            is_settled = state_of(after) == state_of(state) and len(data) == after.st_size
            state = after
            if is_settled:
                break
        if len(data) > self.bounds.file_bytes:
            return self._skip(path, f"larger than {self.bounds.file_bytes:,} bytes")
        self.hashed += 1
        self.unsettled += not is_settled
        mode = EXECUTABLE_MODE if state.st_mode & 0o100 else FILE_MODE
        return self._add(state, clock if is_settled else 0, mode, data)

    def _add(self, state: os.stat_result, clock: int, mode: int, data: bytes) -> SeenFile:
        return SeenFile(_make_settled_state(state, clock), mode, self.objects.put(BLOB_KIND, data), len(data))

    def _read_rules(self, fd: int, path: str, old: SeenFolder, new: SeenFolder, *, exists: bool) -> bool:
        """Read the `.gitignore` of a folder, if it changed; return whether it is as it was."""
        if self.bounds.ignored:
            return False
        if not exists:
            return old.rules is None
        new.rules = self._read_changed_rules(fd, old.rules)
        if new.rules is not None:
            self.rules.add(path, new.rules.content)
        return new.rules is not None and old.rules is not None and new.rules.content == old.rules.content

    def _read_changed_rules(self, fd: int, old: SeenRules | None) -> SeenRules | None:
        try:
            state = os.stat(RULES_NAME, dir_fd=fd, follow_symlinks=False)
            if old is not None and old.state is not None and old.state == state_of(state):
                return old
            if not stat.S_ISREG(state.st_mode):
                return None
            clock = time.time_ns()
            with open_descriptor(RULES_NAME, FILE, dir_fd=fd) as file_fd:
                return SeenRules(_make_settled_state(state, clock), _read_up_to(file_fd, MAX_RULES_BYTES))
        except OSError:
            return None  # the look at the file itself names it as skipped

    def _skip(self, path: str, reason: str | None) -> None:
        self.skipped.append((show_path(path), reason or "cannot be read"))

    def _look_at(self, root_fd: int, paths: Sequence[str]) -> bytes | None:
        """Look at some paths, and give the folders above them new trees."""
        self.fresh = dict(self.index.folders)
        for path in paths:
            parts = os.path.normpath(path).split("/")
            if ".." in parts or parts[0] in ("", "."):
                continue  # it is outside, or the folder itself
            if NEVER in parts or HEAVY.intersection(parts[:-1]):
                continue
            if RULES_NAME in parts:
                raise _NeedsLook
            self._look_at_path(root_fd, parts)
        self.files = sum(
            previous.mode != FOLDER_MODE for folder in self.fresh.values() for previous in folder.files.values()
        )
        self.size_bytes = sum(folder.size_bytes for folder in self.fresh.values())
        if self.files > self.bounds.max_files or self.size_bytes > self.bounds.total_bytes:
            raise _NeedsLook
        return self.fresh[""].tree

    def _look_at_path(self, root_fd: int, parts: Sequence[str]) -> None:
        depth = self._count_seen_folders(parts)
        for level in range(depth + 1):
            folder = self.fresh["/".join(parts[:level])]
            if folder.rules is not None and not self.bounds.ignored:
                self.rules.add("/".join(parts[:level]), folder.rules.content)
        path, name = "/".join(parts[:depth]), parts[depth]
        old = self.fresh[path]
        ignored: list[str] = []
        try:
            with open_beneath(root_fd, parts[:depth]) as fd:
                file = self._look_at_name(fd, parts[: depth + 1], old.files.get(name), ignored)
        except OSError as error:
            raise _NeedsLook from error
        files = {**old.files, name: file} if file is not None else {k: v for k, v in old.files.items() if k != name}
        self._replace(path, replace(old, files=files, ignored=old.ignored.union(ignored)))
        while path:
            child = self.fresh[path].tree
            path, _, name = path.rpartition("/")
            files = dict(self.fresh[path].files)
            files.pop(name, None)
            if child is not None:
                files[name] = SeenFile(None, FOLDER_MODE, child, 0)
            self._replace(path, replace(self.fresh[path], files=files))

    def _look_at_name(
        self, fd: int, parts: Sequence[str], previous: SeenFile | None, ignored: list[str]
    ) -> SeenFile | None:
        """Look at a name whose folder was seen before: a file, or a folder that is new."""
        path, name = "/".join(parts), parts[-1]
        try:
            state = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            if previous is not None and previous.mode == FOLDER_MODE:
                raise _NeedsLook from None
            self.stat_count += 1
            return None
        if previous is not None and (previous.mode == FOLDER_MODE or stat.S_ISDIR(state.st_mode)):
            raise _NeedsLook  # a folder became a file, or the other way round
        if stat.S_ISDIR(state.st_mode):
            return self._look_at_folder(fd, path, name, len(parts) - 1, None, ignored, trust_ignored=False)
        return self._look_at_file(fd, path, name, previous, ignored, None)

    def _count_seen_folders(self, parts: Sequence[str]) -> int:
        """Return how many of the folders above a path were seen before."""
        depth = 0
        while depth < len(parts) - 1 and "/".join(parts[: depth + 1]) in self.fresh:
            depth += 1
        return depth

    def _replace(self, path: str, folder: SeenFolder) -> None:
        size = sum(previous.size for previous in folder.files.values())
        folder = replace(folder, size_bytes=size)
        self.fresh[path] = replace(folder, tree=self._put(folder))


def _name_ignored(name: str, *, is_folder: bool) -> str:
    """Return a name as a rule sees it: one for a folder does not hold for a file."""
    return f"{name}/" if is_folder else name


def _make_settled_state(state: os.stat_result, clock: int) -> FileState | None:
    """Return the state of a file by which it will be known; None if it may change without getting another one.

    Args:
        clock: The time before the file was read.
    """
    step = _CLOCK_NS if state.st_ctime_ns % 1_000_000_000 else _COARSE_CLOCK_NS
    return state_of(state) if state.st_ctime_ns + step < clock else None


def _read_up_to(fd: int, size: int) -> bytes:
    chunks: list[bytes] = []
    while size > 0 and (chunk := os.read(fd, size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def read_collected(file_store: FileStore) -> str:
    """Return the mark of the last collection of a file store; empty if there was none."""
    try:
        return (file_store.path / "collected").read_text("ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
