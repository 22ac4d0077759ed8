"""Content-addressed copies of skills: what was checked is what is mounted and run.

A project folder can change between a check and a run. So the check makes a copy, in the same walk and from the same
file descriptors, and everything later uses that copy. Equal skills share a copy; a changed skill gets a new one.
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


@dataclass(frozen=True)
class SkillSnapshot:
    """A copy of a skill as it was when it was checked.

    Attributes:
        digest: Of the whole skill, including bytecode, which is not copied.
        folder: The copy, which is read-only.
        faults: Entries of the live folder that could not be copied.
    """

    digest: str
    folder: Path
    faults: tuple[Diagnostic, ...] = ()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Protect the copy from garbage collection, in any process, while it is in use."""
        try:
            handle = os.open(self.folder.parent / "manifest", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            # Shared, because several runs may use one copy; removing it takes an exclusive lock.
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle)  # `collect` keeps a snapshot for 30 days after this time
            yield
        finally:
            os.close(handle)


class SnapshotStore:
    """The snapshots below one folder. Safe for any number of processes.

    Args:
        folder: For example `<home>/snapshots`; created with the first snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[str, tuple[_Stamps, str]] = {}

    def take(self, skill: Path, *, allow_faults: bool = False) -> SkillSnapshot:
        """Return a snapshot of a skill's folder in its present state. O(bytes); O(files) if nothing has changed.

        Args:
            allow_faults: Whether to copy the skill without its faulty entries, such as links that leave it; for
                folders that the user named.

        Raises:
            PermissionDenied: The skill has faults; the message names them.
            StoreError: The copy cannot be written.
        """
        # Compared before and after the copy: a file that changes meanwhile would be cached under a wrong digest.
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
        place = self.folder / digest
        return SkillSnapshot(digest, place / "tree") if digest and (place / "manifest").is_file() else None

    def list_files(self, digest: str) -> dict[str, str]:
        """Return the digest of every file of a snapshot by path; empty if there is no such snapshot."""
        try:
            return read_manifest((self.folder / digest / "manifest").read_text("utf-8", "surrogateescape"))
        except OSError:
            return {}

    def collect(self, protected: Collection[str] = ()) -> int:
        """Remove snapshots unused for 30 days, then the least recently used beyond 2 GiB; return how many.

        Args:
            protected: Digests that are trusted or locked, which are never removed.
        """
        removed = sum(_remove_unlocked(leftover) for leftover in self._leftovers())
        now, total = time.time(), 0
        # Most recently used first: `total` is the size of the snapshots that stay.
        for used, size, place in sorted(self._snapshots(), reverse=True):
            total += size
            if place.name in protected or (now - used < KEPT_SECONDS and total <= KEPT_BYTES):
                continue
            total -= size
            removed += _remove_unlocked(place)
        return removed

    def add(self, name: Path, copy: Callable[[Path], SkillTree], *, allow_faults: bool = False) -> SkillSnapshot:
        """Return a new snapshot whose files `copy` writes into the empty folder that it is called with.

        Args:
            name: The original, for error messages.

        Raises: see `take`.
        """
        return self._stage(name, copy, allow_faults=allow_faults)[1]

    def _stage(
        self, skill: Path, copy: Callable[[Path], SkillTree], *, allow_faults: bool
    ) -> tuple[SkillTree, SkillSnapshot]:
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
            # Once published, the folder has another name, and nothing is removed here. Unlocked last: another process
            # may remove a staging folder that is not locked.
            remove_tree(staging)
            os.close(guard)

    def _publish(self, tree: SkillTree, staging: Path) -> SkillSnapshot:
        """Move a finished copy to its place, unless an equal copy exists."""
        # Written after the files and synced before the rename: `find` takes a manifest as proof of a complete copy.
        with open(staging / "manifest", "wb") as out:
            out.write(tree.manifest.encode("utf-8", "surrogateescape"))
            out.flush()
            os.fsync(out.fileno())
        place = self.folder / tree.digest
        os.chmod(staging, 0o755)  # noqa: S103 - a run's own user reads the copy
        os.chmod(staging / "tree", 0o555)  # noqa: S103 - likewise
        try:
            os.rename(staging, place)
        except OSError:
            # A rename onto a folder with files fails: another process has made the same copy first.
            if not (place / "manifest").is_file():
                raise
        return SkillSnapshot(tree.digest, place / "tree", tree.faults)

    def _snapshots(self) -> Iterator[tuple[float, int, Path]]:
        for place in self._places():
            if not place.name.startswith((_STAGED, _REMOVED)):
                try:
                    yield (place / "manifest").stat().st_mtime, _sum_sizes(place), place
                except OSError:
                    continue

    def _leftovers(self) -> list[Path]:
        return [place for place in self._places() if place.name.startswith((_STAGED, _REMOVED))]

    def _places(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def check_faults(tree: SkillTree, skill: Path, *, allow_faults: bool = False) -> None:
    """Check that a tree can be trusted and mounted.

    Raises:
        PermissionDenied: It has a fault; with `allow_faults`, only if it is too large to be copied completely.
    """
    faults = [fault for fault in tree.faults if not allow_faults or fault.code == "too-large-to-trust"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise PermissionDenied(
            f"the skill in {skill} cannot be used: {faults[0].message}{more}",
            hint=faults[0].fix,
            details={"diagnostics": [fault.as_dict() for fault in faults[:20]]},
        )


def make_locked_folder(place: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder below `place` that no cleanup removes; return it and the descriptor that holds its lock.

    Raises:
        OSError: It cannot be created.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            # Created again in each attempt: a cleanup also removes `place` once it is empty.
            place.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
            guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, FileExistsError):  # a cleanup removed `place` or the new folder meanwhile
            continue
        fcntl.flock(guard, fcntl.LOCK_EX)
        if folder.exists():  # a cleanup may have removed it before it was locked
            return folder, guard
        os.close(guard)
    raise NotADirectoryError(errno.ENOTDIR, "not a folder, or removed again and again", str(place))


def remove_tree(folder: Path) -> None:
    """Remove a folder, including read-only subfolders, as far as possible; does nothing if it does not exist."""
    with suppress(OSError):
        remove(folder)


def _remove_unlocked(place: Path) -> bool:
    """Remove a snapshot or a leftover unless it is in use; return whether it was removed."""
    # A snapshot in use is locked by its manifest (`hold`), an unfinished one by its folder.
    lock = place / "manifest" if (place / "manifest").is_file() else place
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old = place if place.name.startswith(_REMOVED) else place.with_name(f"{_REMOVED}{os.urandom(6).hex()}")
        # Renamed before it is removed, so that no process can find a half-removed copy.
        os.rename(place, old)
        remove_tree(old)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _sum_sizes(folder: Path) -> int:
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names)


_Stamps = tuple[tuple[str, int, int, int, int], ...]
"""Path, device, inode, mtime and ctime of every entry of a folder; ctime cannot be forged."""


def _read_stamps(folder: Path) -> _Stamps | None:
    """Return the stamps of a folder's entries without reading them; None if there are too many."""
    stamps: list[tuple[str, int, int, int, int]] = []
    waiting = [""]
    try:
        while waiting:
            inside = waiting.pop()
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    if not inside and entry.name in EXCLUDED:
                        continue
                    info = entry.stat(follow_symlinks=False)
                    path = f"{inside}/{entry.name}" if inside else entry.name
                    stamps.append((path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns))
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(path)
            if len(stamps) > _MAX_STAMPS:
                return None
    except OSError:
        return None
    return tuple(sorted(stamps))
