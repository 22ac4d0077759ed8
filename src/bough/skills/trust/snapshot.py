"""Copies of skills by the digest of what they hold: what was checked is what is shown and run.

A folder of a project can be changed between a check and a run. So the check makes a copy, by the same walk and from the
same descriptors, and everything later reads that copy. It is content-addressed: equal skills share one, and a changed
skill gets another.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bough.errors import PermissionDenied, StoreError
from bough.skills.model import Diagnostic
from bough.skills.trust.tree import LEFT_OUT, SkillTree, read_manifest, read_tree

KEPT_SECONDS: Final = 30 * 24 * 3600.0
KEPT_BYTES: Final = 2 << 30
_MAX_LOOKED_AT = 20_000
_STAGED, _REMOVED = ".new-", ".old-"


@dataclass(frozen=True)
class SkillSnapshot:
    """A skill as it was when it was checked.

    Attributes:
        digest: Of everything in it, byte code that was left out of the copy included.
        folder: The copy, which nobody writes to.
        faults: What the live folder had that cannot be shown.
    """

    digest: str
    folder: Path
    faults: tuple[Diagnostic, ...] = ()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep the copy from being collected while it is used, in whichever process."""
        try:
            handle = os.open(self.folder.parent / "manifest", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle)
            yield
        finally:
            os.close(handle)


class SnapshotStore:
    """The snapshots below one folder. Safe for any number of processes.

    Args:
        folder: For example `<home>/snapshots`; made when the first snapshot is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[_Look, str]] = {}

    def take(self, skill: Path, *, allow_faults: bool = False) -> SkillSnapshot:
        """Return a snapshot of a skill's folder as it is now. O(bytes), O(files) when nothing of it was touched since.

        Args:
            allow_faults: Whether a copy is made without what cannot be shown, such as links out; for folders that a
                person named.

        Raises:
            PermissionDenied: The skill holds what cannot be trusted or shown; the message names it.
            StoreError: The copy cannot be written.
        """
        before = _look_at(skill)
        seen, digest = self._known.get(str(skill), (None, ""))
        if before is not None and seen == before and (found := self.find(digest)) is not None:
            return found
        tree, snapshot = self._copy(skill, allow_faults=allow_faults)
        if before is not None and not tree.faults and _look_at(skill) == before:
            self._known[str(skill)] = (before, snapshot.digest)
        return snapshot

    def find(self, digest: str) -> SkillSnapshot | None:
        """Return the snapshot of this digest; None when it is not there (any more)."""
        place = self.folder / digest
        return SkillSnapshot(digest, place / "tree") if digest and (place / "manifest").is_file() else None

    def files_of(self, digest: str) -> dict[str, str]:
        """Return path to digest of every file of a snapshot; nothing when it is not there."""
        try:
            return read_manifest((self.folder / digest / "manifest").read_text("utf-8", "surrogateescape"))
        except OSError:
            return {}

    def collect(self, kept: Collection[str] = ()) -> int:
        """Remove snapshots unused for 30 days, then the longest unused beyond 2 GiB; return how many went.

        Args:
            kept: Digests that are trusted or locked; these stay.
        """
        removed = sum(_remove_unlocked(each) for each in self._leftovers())
        now, total = time.time(), 0
        for used, size, place in sorted(self._snapshots(), reverse=True):
            total += size
            if place.name in kept or (now - used < KEPT_SECONDS and total <= KEPT_BYTES):
                continue
            total -= size
            removed += _remove_unlocked(place)
        return removed

    def _copy(self, skill: Path, *, allow_faults: bool) -> tuple[SkillTree, SkillSnapshot]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(dir=self.folder, prefix=_STAGED))
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be written: {error.strerror}", hint="free or unlock it") from error
        guard = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)  # whoever collects takes leftovers only
            (staging / "tree").mkdir()
            tree = read_tree(skill, copy_to=staging / "tree")
            refuse_faults(tree, skill, allow_faults=allow_faults)
            return tree, self._settle(tree, staging)
        except OSError as error:
            raise StoreError(f"the copy of {skill} cannot be written: {error.strerror}", hint="free space") from error
        finally:
            remove_tree(staging)
            os.close(guard)

    def _settle(self, tree: SkillTree, staging: Path) -> SkillSnapshot:
        """Give a finished copy its name; one that already exists is the same."""
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
            if not (place / "manifest").is_file():
                raise
        return SkillSnapshot(tree.digest, place / "tree", tree.faults)

    def _snapshots(self) -> Iterator[tuple[float, int, Path]]:
        for place in self._places():
            if not place.name.startswith((_STAGED, _REMOVED)):
                try:
                    yield (place / "manifest").stat().st_mtime, _size_of(place), place
                except OSError:
                    continue

    def _leftovers(self) -> list[Path]:
        return [place for place in self._places() if place.name.startswith((_STAGED, _REMOVED))]

    def _places(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def refuse_faults(tree: SkillTree, skill: Path, *, allow_faults: bool = False) -> None:
    """Check that a tree can be trusted and shown.

    Raises:
        PermissionDenied: It has a fault, or with `allow_faults` so much in it that the copy is not whole.
    """
    faults = [each for each in tree.faults if not allow_faults or each.code == "too-large-to-trust"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise PermissionDenied(
            f"the skill in {skill} cannot be used as it is: {faults[0].message}{more}",
            hint=faults[0].fix,
            details={"diagnostics": [each.as_dict() for each in faults[:20]]},
        )


def remove_tree(folder: Path) -> None:
    """Remove a folder that may hold read-only ones; nothing when it is not there."""
    for place, names, _ in os.walk(folder):
        for name in ("", *names):
            path = os.path.join(place, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(place: Path) -> bool:
    """Remove a snapshot or a leftover that nobody uses; return whether it went."""
    lock = place / "manifest" if (place / "manifest").is_file() else place
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old = place if place.name.startswith(_REMOVED) else place.with_name(f"{_REMOVED}{os.urandom(6).hex()}")
        os.rename(place, old)
        remove_tree(old)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _size_of(folder: Path) -> int:
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names)


_Look = tuple[tuple[str, int, int, int, int], ...]
"""Path, device, inode, mtime and ctime of everything in a folder; ctime cannot be set back."""


def _look_at(folder: Path) -> _Look | None:
    """Return the stamps of a folder's entries without reading them; None when there are too many of them."""
    found: list[tuple[str, int, int, int, int]] = []
    waiting = [""]
    try:
        while waiting:
            inside = waiting.pop()
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    if not inside and entry.name in LEFT_OUT:
                        continue
                    info = entry.stat(follow_symlinks=False)
                    path = f"{inside}/{entry.name}" if inside else entry.name
                    found.append((path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns))
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(path)
            if len(found) > _MAX_LOOKED_AT:
                return None
    except OSError:
        return None
    return tuple(sorted(found))
