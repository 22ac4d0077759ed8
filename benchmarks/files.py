"""Files of workspaces: looks, told paths, first trees and forks, for workspaces of 2,000 and 10,000 files of 2 KB.

The floor of a look is a listing and an `lstat` of each file, in the same run. That of a first tree is `git add` and
`git write-tree` in a new repository, and that of a fork is `git worktree add`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bough.files import FileStore, Looked, look, materialise, write
from harness import CannotMeasure, Figure, compare

SIZES = (2_000, 10_000)
FILE_BYTES = 2_048
FILES_IN_FOLDER = 50
STEPS = 300


def main() -> None:
    git = shutil.which("git")
    if git is None:
        raise CannotMeasure("git is not installed")
    for size in SIZES:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
            measure(Path(name), size, git)


def measure(home: Path, size: int, git: str) -> None:
    folder = home / "workspace"
    make_workspace(folder, size)
    file_store = FileStore(home / "log.db.files")
    numbers = count()

    def keep(*paths: str) -> Looked:
        with file_store.objects() as objects:
            looked = look(file_store, objects, folder, paths=paths or None)
        if looked.tree is None:
            raise CannotMeasure(looked.reason)
        return looked

    def change() -> None:
        (folder / "0/0").write_bytes(next(numbers).to_bytes(4, "big") * (FILE_BYTES // 4))

    def keep_changed(*paths: str) -> None:
        change()
        keep(*paths)

    keep()
    wait_for_clock(folder)
    keep()

    def floor() -> None:
        scan(folder)

    compare(f"look at {size} files, nothing changed, to lstat of each", keep, floor)
    compare(f"look at {size} files, one changed, to lstat of each", keep_changed, floor)
    compare(f"told path among {size} files, to lstat of each", lambda: keep_changed("0/0"), floor)
    measure_restore(file_store, folder, keep, change, size)
    measure_first(home, folder, size, git)
    measure_fork(home, folder, file_store, keep(), size, git)
    measure_growth(file_store, keep_changed, size)
    file_store.close()


def make_workspace(folder: Path, size: int) -> None:
    for number in range(size):
        path = folder / f"{number // FILES_IN_FOLDER}" / f"{number % FILES_IN_FOLDER}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"line {number} of a file\n".encode() * (FILE_BYTES // 20))


def wait_for_clock(folder: Path) -> None:
    """Wait until every file is older than the step of the file system's clock."""
    newest = max(entry.stat().st_ctime_ns for entry in folder.rglob("*"))
    marker = folder.parent / "clock"
    while True:
        marker.write_bytes(b"")
        if marker.stat().st_ctime_ns > newest + 30_000_000:
            return


def scan(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                scan(Path(entry.path))
            else:
                entry.stat(follow_symlinks=False)


def measure_restore(
    file_store: FileStore, folder: Path, keep: Callable[[], Looked], change: Callable[[], None], size: int
) -> None:
    """Bring one file back, look included; the floor is the look."""
    first = keep().tree

    def restore() -> None:
        change()
        with file_store.objects() as objects:
            now = look(file_store, objects, folder).tree
            if now is None or first is None:
                raise CannotMeasure("nothing was kept")
            write(file_store, objects, folder, now, first)

    compare(f"restore of one file among {size}, to a look", restore, keep)


def measure_first(home: Path, folder: Path, size: int, git: str) -> None:
    numbers = count()

    def first() -> None:
        file_store = FileStore(home / f"first-{next(numbers)}.files")
        with file_store.objects() as objects:
            look(file_store, objects, folder)
        file_store.close()

    def add() -> None:
        repository = home / f"repository-{next(numbers)}"
        subprocess.run([git, "init", "--quiet", "--bare", str(repository)], check=True)
        run_git(git, folder, repository, "add", "--all", ".")
        run_git(git, folder, repository, "write-tree")

    compare(f"first tree of {size} files, to git add", first, add)


def measure_fork(home: Path, folder: Path, file_store: FileStore, looked: Looked, size: int, git: str) -> None:
    numbers = count()
    repository = home / "repository"
    subprocess.run([git, "init", "--quiet", "--bare", str(repository)], check=True)
    run_git(git, folder, repository, "add", "--all", ".")
    author = ("-c", "user.name=bough", "-c", "user.email=bough@localhost")
    run_git(git, folder, repository, *author, "commit", "--quiet", "--message", "files")

    def fork() -> None:
        with file_store.objects() as objects:
            materialise(objects, str(looked.tree), home / f"fork-{next(numbers)}")

    def add_worktree() -> None:
        run_git(git, folder, repository, "worktree", "add", "--quiet", "--detach", str(home / f"tree-{next(numbers)}"))

    compare(f"fork with {size} files, to git worktree add", fork, add_worktree)


def measure_growth(file_store: FileStore, step: Callable[[str], None], size: int) -> None:
    """Print how many bytes a step that changes one file adds, before a collection."""
    before = file_store.packs.size_bytes
    for _ in range(STEPS):
        step("0/0")
    growth = round((file_store.packs.size_bytes - before) / STEPS, 1)
    Figure(f"bytes of a step of one file among {size}", growth, "bytes", None, None, STEPS).report()


def run_git(git: str, folder: Path, repository: Path, *arguments: str) -> None:
    environment = {"GIT_DIR": str(repository), "GIT_WORK_TREE": str(folder), "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run([git, *arguments], env={**os.environ, **environment}, cwd=folder, check=True, capture_output=True)


if __name__ == "__main__":
    main()
