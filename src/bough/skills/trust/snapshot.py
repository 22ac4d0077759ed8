"""Content-addressed copies of skills, so that exactly the files that were checked are mounted and run.

A project folder can change between a check and a run. So the check copies the files, in the same walk and from the same
file descriptors, and every later step uses the copy. Equal skills share a copy; a changed skill is copied again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bough.errors import PermissionDenied, StoreError
from bough.skills.model import Diagnostic
from bough.skills.trust.tree import EXCLUDED, SkillTree, read_manifest, read_tree
from bough.tree import remove

KEPT_SECONDS: Final = 30 * 24 * 3600.0
KEPT_BYTES: Final = 2 << 30
_MAX_STAMPS = 20_000
_MAX_ATTEMPTS = 100
_STAGED, _REMOVED = ".new-", ".old-"
"""Prefixes of the folders of unfinished copies, and of copies that are being removed."""


@dataclass(frozen=True)
class SkillSnapshot:
    """A copy of a skill as it was when it was checked.

    Attributes:
        digest: Digest of the whole skill, including bytecode, which is not copied.
        folder: The copy, which is read-only.
        faults: Errors about entries of the skill's folder that were not copied.
    """

    digest: str
    folder: Path
    faults: tuple[Diagnostic, ...] = ()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Prevent every process from removing the copy during the `with` block."""
        try:
            lock = os.open(self.folder.parent / "manifest", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            # Shared, because several runs may use one copy; `collect` needs an exclusive lock to remove it.
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock)  # `collect` keeps a snapshot for 30 days after this time
            yield
        finally:
            os.close(lock)


class SnapshotStore:
    """The snapshots below one folder. Safe for any number of processes.

    Args:
        folder: For example `<home>/snapshots`; created with the first snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[str, tuple[_Stamps, str]] = {}

    def take(self, skill: Path, *, allow_faults: bool = False) -> SkillSnapshot:
        """Return a snapshot of a skill's folder in its current state. O(bytes); O(files) if nothing has changed.

        Args:
            allow_faults: Whether to copy the skill without faulty entries, such as links that leave it, instead of
                raising. For folders that the user named.

        Raises:
            PermissionDenied: The skill has faults; the message names them.
            StoreError: The copy cannot be written.
        """
        # Read before and after the copy: otherwise a file that changes meanwhile would be cached under a wrong digest.
        stamps = _read_stamps(skill)
        cached_stamps, digest = self._cache.get(str(skill), (None, ""))
        if stamps is not None and cached_stamps == stamps and (existing := self.find(digest)) is not None:
            return existing
        tree, snapshot = self._stage(skill, lambda folder: read_tree(skill, copy_to=folder), allow_faults=allow_faults)
        if stamps is not None and not tree.faults and _read_stamps(skill) == stamps:
            self._cache[str(skill)] = (stamps, snapshot.digest)
        return snapshot

    def find(self, digest: str) -> SkillSnapshot | None:
        """Return the snapshot with this digest; None if it does not exist."""
        snapshot_folder = self.folder / digest
        if not digest or not (snapshot_folder / "manifest").is_file():
            return None
        return SkillSnapshot(digest, snapshot_folder / "tree")

    def list_files(self, digest: str) -> dict[str, str]:
        """Return the digest of every file of a snapshot by path; empty if there is no such snapshot."""
        try:
            return read_manifest((self.folder / digest / "manifest").read_text("utf-8", "surrogateescape"))
        except OSError:
            return {}

    def collect(self, protected: Collection[str] = ()) -> int:
        """Remove snapshots unused for 30 days and, beyond 2 GiB in total, the least recently used; return their number.

        Args:
            protected: Digests of snapshots that are not removed, because they are trusted or locked.
        """
        removed = sum(_remove_unlocked(leftover) for leftover in self._list_leftovers())
        now = time.time()
        kept_bytes = 0
        # Most recently used first, so that the others are removed once the limit is reached.
        for last_used, size, snapshot_folder in sorted(self._list_snapshots(), reverse=True):
            kept_bytes += size
            if snapshot_folder.name in protected or (now - last_used < KEPT_SECONDS and kept_bytes <= KEPT_BYTES):
                continue
            kept_bytes -= size
            removed += _remove_unlocked(snapshot_folder)
        return removed

    def add(self, name: Path, copy: Callable[[Path], SkillTree], *, allow_faults: bool = False) -> SkillSnapshot:
        """Return a snapshot of the files that `copy` writes.

        Args:
            name: The original of the copy, for error messages.
            copy: Called with an empty folder; writes the files into it and returns their tree.

        Raises:
            PermissionDenied: The tree has faults.
            StoreError: The copy cannot be written.
        """
        return self._stage(name, copy, allow_faults=allow_faults)[1]

    def _stage(
        self, skill: Path, copy: Callable[[Path], SkillTree], *, allow_faults: bool
    ) -> tuple[SkillTree, SkillSnapshot]:
        """Copy a skill into a staging folder, check the copy and publish it; return its tree and snapshot."""
        try:
            staging, guard = make_locked_folder(self.folder, _STAGED)
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror}", hint="make it writable") from error
        try:
            (staging / "tree").mkdir()
            tree = copy(staging / "tree")
            check_faults(tree, skill, allow_faults=allow_faults)
            return tree, self._publish(tree, staging)
        except OSError as error:
            raise StoreError(f"cannot copy {skill}: {error.strerror}", hint="free disk space, then retry") from error
        finally:
            # A published folder has another name, so this removes only a failed copy. Unlocked afterwards: other
            # processes remove staging folders that are not locked.
            remove_tree(staging)
            os.close(guard)

    def _publish(self, tree: SkillTree, staging: Path) -> SkillSnapshot:
        """Rename a finished copy to its digest, unless an equal copy exists; return its snapshot."""
        # Written after the files and synced before the rename: `find` takes a manifest as proof of a complete copy.
        with open(staging / "manifest", "wb") as out:
            out.write(tree.manifest.encode("utf-8", "surrogateescape"))
            out.flush()
            os.fsync(out.fileno())
        snapshot_folder = self.folder / tree.digest
        os.chmod(staging, 0o755)  # noqa: S103 - a sandbox may run as another user
        os.chmod(staging / "tree", 0o555)  # noqa: S103 - a sandbox may run as another user
        try:
            os.rename(staging, snapshot_folder)
        except OSError:
            # The target exists if another process has published an equal copy first.
            if not (snapshot_folder / "manifest").is_file():
                raise
        return SkillSnapshot(tree.digest, snapshot_folder / "tree", tree.faults)

    def _list_snapshots(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use, bytes, folder) of every snapshot."""
        for snapshot_folder in self._list_folders():
            if not snapshot_folder.name.startswith((_STAGED, _REMOVED)):
                try:
                    yield (snapshot_folder / "manifest").stat().st_mtime, _sum_sizes(snapshot_folder), snapshot_folder
                except OSError:
                    continue

    def _list_leftovers(self) -> list[Path]:
        """Return the folders of unfinished copies and unfinished removals."""
        return [folder for folder in self._list_folders() if folder.name.startswith((_STAGED, _REMOVED))]

    def _list_folders(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def check_faults(tree: SkillTree, skill: Path, *, allow_faults: bool = False) -> None:
    """Check that a tree can be trusted and mounted.

    Raises:
        PermissionDenied: The tree has a fault; with `allow_faults`, only if it is too large to be copied completely.
    """
    faults = [fault for fault in tree.faults if not allow_faults or fault.code == "too-large-to-trust"]
    if faults:
        suffix = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise PermissionDenied(
            f"the skill in {skill} cannot be used: {faults[0].message}{suffix}",
            hint=faults[0].fix,
            details={"diagnostics": [fault.as_dict() for fault in faults[:20]]},
        )


def make_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder in `parent` and lock it, so that no cleanup removes it; return it and the lock's descriptor.

    Raises:
        OSError: It cannot be created.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            # Created in each attempt, because a cleanup removes `parent` when it is empty.
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, FileExistsError):  # a cleanup removed `parent` or the new folder meanwhile
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # a cleanup may have removed it before it was locked
            return folder, lock
        os.close(lock)
    raise NotADirectoryError(errno.ENOTDIR, "not a folder, or removed repeatedly", str(parent))


def remove_tree(folder: Path) -> None:
    """Remove a folder with its read-only subfolders; errors are ignored, so some of its files may remain."""
    with suppress(OSError):
        remove(folder)


def _remove_unlocked(snapshot_folder: Path) -> bool:
    """Remove the folder of a snapshot or a leftover unless it is locked; return whether it was removed."""
    # Users of a snapshot lock its manifest (`hold`); the process that makes a copy locks the folder.
    lock_path = snapshot_folder / "manifest" if (snapshot_folder / "manifest").is_file() else snapshot_folder
    try:
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed_folder = (
            snapshot_folder
            if snapshot_folder.name.startswith(_REMOVED)
            else snapshot_folder.with_name(f"{_REMOVED}{os.urandom(6).hex()}")
        )
        # Renamed first, so that no process can find a partly removed copy.
        os.rename(snapshot_folder, removed_folder)
        remove_tree(removed_folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _sum_sizes(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(parent, name)).st_size for parent, _, file_names in os.walk(folder) for name in file_names
    )


_Stamps = tuple[tuple[str, int, int, int, int], ...]
"""Path, device, inode, mtime and ctime of every entry of a folder; unlike mtime, ctime cannot be set."""


def _read_stamps(folder: Path) -> _Stamps | None:
    """Return the stamps of all entries below a folder; None if there are too many. Opens no file."""
    stamps: list[tuple[str, int, int, int, int]] = []
    pending = [""]
    try:
        while pending:
            subfolder = pending.pop()
            with os.scandir(folder / subfolder) as entries:
                for entry in entries:
                    if not subfolder and entry.name in EXCLUDED:
                        continue
                    info = entry.stat(follow_symlinks=False)
                    path = f"{subfolder}/{entry.name}" if subfolder else entry.name
                    stamps.append((path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns))
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(path)
            if len(stamps) > _MAX_STAMPS:
                return None
    except OSError:
        return None
    return tuple(sorted(stamps))
