"""The files of one event store: its packs, indexes of folders, journals and locks."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from bough.errors import Unavailable
from bough.files.index import FolderIndex
from bough.files.lock import hold_lock, try_lock
from bough.files.objects import Objects, Packs
from bough.files.pack import TEMPORARY, Pack, write_durably

MAX_SMALL_PACKS: Final = 50
"""More packs than this below `SMALL_PACK_BYTES` are joined."""

SMALL_PACK_BYTES: Final = 64 << 20
_MAX_JOINED_BYTES: Final = 1 << 30
_MAX_INDEXES: Final = 8
_MIN_FREE_BYTES: Final = 512 << 20
_MIN_FREE_SHARE: Final = 0.05
_FOLDERS: Final = ("objects.git/objects/pack", "objects.git/refs", "index", "journal", "locks")
_GIT_CONFIG: Final = (
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\texcludesFile = /dev/null\n"
    "[gc]\n\tauto = 0\n"
)


def name_sqlite_files(database: Path) -> Path:
    """Return the folder of the files of a SQLite store."""
    return database.with_name(f"{database.name}.files")


def name_postgres_files(files_root: Path, *, host: str, port: int, database: str, schema: str) -> Path:
    """Return the folder of the files of a PostgreSQL store, below the setting `files`."""
    parts = "\0".join((host, str(port), database, schema))
    return files_root / hashlib.sha256(parts.encode()).hexdigest()[:16]


def key_folder(folder: Path) -> str:
    """Return the name under which a file store knows a folder: a digest of its real path."""
    return hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()


class FileStore:
    """The folder in which the files of one store are kept. Threads may share it.

    It is created at the first `objects()`, with access for this user only. `git --git-dir=PLACE/objects.git` reads it.

    Args:
        path: The folder.
        max_bytes: With this many bytes in packs, it takes no more objects.
        step: Called with the name of each step that lasts beyond the process; for tests.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = 10 << 30, step: Callable[[str], None] = lambda name: None
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.step = step
        self.packs = Packs(path / "objects.git/objects/pack")
        self._indexes: dict[str, FolderIndex] = {}
        self._lock = threading.Lock()
        self._is_open = False

    @property
    def exists(self) -> bool:
        """Whether anything was ever kept here."""
        return (self.path / "id").is_file()

    def read_store_id(self) -> str:
        """Return the UUID by which events name this store; empty if nothing was ever kept here."""
        try:
            return str(UUID((self.path / "id").read_text("ascii").strip()))
        except (OSError, ValueError):
            return ""

    def objects(self, *, wait_seconds: float = 5.0, join: bool = True) -> Objects:
        """Open the objects, to read and to add. The caller closes them when the event that names new ones is durable.

        Args:
            wait_seconds: How long to wait for a collection.
            join: Join small packs at the end, if there are many.

        Raises:
            Unavailable: The store cannot be created or read, or is being collected for longer than `wait_seconds`.
        """
        stack = ExitStack()
        try:
            self.open()
            fd = try_lock(self._objects_lock, exclusive=False, wait_seconds=wait_seconds)
            if fd is None:
                raise Unavailable(
                    "the folder of kept files is being collected", hint="try again later", details={"reason": "busy"}
                )
            # Called in the opposite order: the lock is released first, since joining needs it for itself.
            if join:
                stack.callback(self._join_if_many)
            stack.callback(os.close, fd)
            self.packs.refresh()
        except OSError as error:
            stack.close()
            raise self.explain(error) from error
        return Objects(self.packs, stack.close, self._check_room, self.step)

    def hold_folder(self, folder: Path, *, exclusive: bool, wait_seconds: float = 0.0) -> AbstractContextManager[None]:
        """Hold a folder: shared by runs that may write there, exclusive to restore, apply and recover.

        Raises:
            Conflict: It is not free within `wait_seconds`.
            Unavailable: The store cannot be created.
        """
        return self._hold(folder, "run", "is in use by a run", exclusive=exclusive, wait_seconds=wait_seconds)

    def hold_look(self, folder: Path, *, wait_seconds: float = 60.0) -> AbstractContextManager[None]:
        """Hold a folder while it is looked at or written; one at a time.

        Raises:
            Conflict: It is not free within `wait_seconds`.
            Unavailable: The store cannot be created.
        """
        return self._hold(folder, "look", "is being looked at", exclusive=True, wait_seconds=wait_seconds)

    @contextmanager
    def _hold(self, folder: Path, kind: str, reason: str, *, exclusive: bool, wait_seconds: float) -> Generator[None]:
        path = self.path / "locks" / f"{key_folder(folder)}.{kind}"
        with ExitStack() as stack:
            # On a read-only disk, the file of the lock cannot be opened either.
            try:
                self.open()
                lock = hold_lock(path, f"{folder} {reason}", exclusive=exclusive, wait_seconds=wait_seconds)
                stack.enter_context(lock)
            except OSError as error:
                raise self.explain(error) from error
            yield

    def index(self, folder: Path) -> FolderIndex:
        """Return what is remembered of a folder; the same object for every caller of this store."""
        key = key_folder(folder)
        with self._lock:
            index = self._indexes.pop(key, None) or FolderIndex(self.path / "index" / key)
            self._indexes[key] = index
            while len(self._indexes) > _MAX_INDEXES:
                self._indexes.pop(next(iter(self._indexes))).save()
        return index

    def save_indexes(self) -> None:
        """Write the indexes that changed; without them, the next process hashes every file again."""
        with self._lock:
            for index in self._indexes.values():
                index.save()

    def journal_of(self, folder: Path) -> Path:
        """Return the file that exists while a folder is written, and after a crash in the middle of it."""
        return self.journals / key_folder(folder)

    @property
    def journals(self) -> Path:
        """The folder of the journals."""
        return self.path / "journal"

    def close(self) -> None:
        """Write the indexes and close the packs."""
        self.save_indexes()
        self.packs.close()

    def open(self) -> None:
        """Create the folders if they are missing, and remove what killed processes left. Idempotent.

        Raises:
            OSError: They cannot be created.
        """
        with self._lock:
            if self._is_open and self.path.is_dir():
                return
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _FOLDERS:
                (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            git = self.path / "objects.git"
            if not (git / "HEAD").exists():
                write_durably(git / "config", _GIT_CONFIG.encode(), self.step)
                write_durably(git / "HEAD", b"ref: refs/heads/main\n", self.step)
            if not self.read_store_id():
                write_durably(self.path / "id", f"{uuid4()}\n".encode(), self.step)
            # Only while nobody else has the objects open: a living process writes such files, too.
            self.remove_leftovers()
            self._is_open = True

    @property
    def _objects_lock(self) -> Path:
        return self.path / "locks" / "objects"

    def try_exclusive(self, *, wait_seconds: float = 0.0) -> int | None:
        """Return the descriptor of a lock that nobody shares while it is open; None if others read or add objects."""
        return try_lock(self._objects_lock, exclusive=True, wait_seconds=wait_seconds)

    def list_leftovers(self) -> list[Path]:
        """Return the files that were not completed. Those of living processes are among them."""
        names = set(os.listdir(self.packs.folder))
        orphans = [name for name in names if name.endswith(".pack") and f"{name[:-5]}.idx" not in names]
        temporary = [
            path for folder in (self.packs.folder, self.journals, self.path) for path in folder.glob(f"{TEMPORARY}*")
        ]
        return sorted([*(self.packs.folder / name for name in orphans), *temporary])

    def remove_leftovers(self) -> int:
        """Remove what killed processes left; nothing while another process reads or adds objects.

        Returns:
            How many files were removed.
        """
        if not self.list_leftovers():
            return 0
        fd = self.try_exclusive()
        if fd is None:
            return 0
        try:
            leftovers = self.list_leftovers()
            for path in leftovers:
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)
        return len(leftovers)

    def _join_if_many(self) -> None:
        """Join small packs if there are many, unless somebody reads; the objects are copied as they are."""
        if sum(pack.size_bytes < SMALL_PACK_BYTES for pack in self.packs.list_packs()) <= MAX_SMALL_PACKS:
            return
        fd = self.try_exclusive()
        if fd is None:
            return
        try:
            self.packs.refresh()
            self._join()
        finally:
            os.close(fd)

    def _join(self) -> None:
        # The caller holds the lock for itself, so nobody reads a pack that is removed here.
        small = [pack for pack in self.packs.list_packs() if pack.size_bytes < SMALL_PACK_BYTES]
        chosen = choose_joined(small)
        with Objects(self.packs, lambda: None, lambda: None, self.step) as objects:
            for pack in chosen:
                for oid, _ in pack.list_ids():
                    packed = pack.read_packed(oid)
                    if packed is None:
                        return  # a damaged pack stays as it is
                    objects.put_packed(oid, packed)
            objects.flush()
        for pack in chosen:
            if pack.path not in {other.path for other in self.packs.list_packs() if other not in chosen}:
                pack.remove()
                self.step("pack removed")
        self.packs.refresh()

    def _check_room(self) -> None:
        """Raise `Unavailable` if the store or the disk is full."""
        if self.packs.size_bytes >= self.max_bytes:
            raise Unavailable(
                f"the folder of kept files is full: {self.packs.size_bytes} bytes",
                hint="remove conversations, then run `bough conv collect`",
                details={"reason": "place full"},
            )
        free = shutil.disk_usage(self.path)
        if free.free < _MIN_FREE_BYTES or free.free < _MIN_FREE_SHARE * free.total:
            raise Unavailable(
                f"the disk is nearly full: {free.free} bytes are free",
                hint="free some space",
                details={"reason": "disk nearly full"},
            )

    def explain(self, error: OSError) -> Unavailable:
        """Return the error of a file store that cannot be read or written."""
        return Unavailable(
            f"{self.path}: {error.strerror}",
            hint="the folder of kept files must be readable and writable",
            details={"reason": f"the folder of kept files: {error.strerror}", "path": str(self.path)},
        )


def choose_joined(packs: Iterable[Pack]) -> list[Pack]:
    """Return the packs to join, so that each pack that remains is at least twice as large as all smaller ones.

    A large pack is copied only when the smaller ones have grown to half its size. Otherwise a workspace of many files
    would be written again at every joining, however little changed in between.
    """
    ordered = sorted(packs, key=lambda pack: pack.size_bytes)
    count = len(ordered)
    while count > 1 and ordered[count - 1].size_bytes >= 2 * ordered[count - 2].size_bytes:
        count -= 1
    if count < 2:
        return []
    size = sum(pack.size_bytes for pack in ordered[:count])
    while count < len(ordered) and ordered[count].size_bytes < 2 * size:
        size += ordered[count].size_bytes
        count += 1
    while size > _MAX_JOINED_BYTES:
        count -= 1
        size -= ordered[count].size_bytes
    return ordered[:count]
