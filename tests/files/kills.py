"""A program that kills itself at each step of an operation on files, and checks what is left each time.

`python kills.py OPERATION FOLDER` prints how often it was killed. It forks, and so has a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bough.files import FileStore, collect, entries, inspect_files, look, read, write


def fill(folder: Path, version: int) -> None:
    """Make one of two states of a folder, which differ by additions, changes, removals, a mode and a link."""
    for number in range(4):
        (folder / f"{number}").write_text(f"{number} in {version if number < 2 else 'both'}")
    (folder / "run").write_text("run")
    (folder / "run").chmod(0o755 if version else 0o644)
    (folder / "link").unlink(missing_ok=True)
    (folder / "link").symlink_to(f"{version}")
    added, gone = (folder / "new" / "file", folder / "old") if version else (folder / "old" / "file", folder / "new")
    if gone.is_dir():
        (gone / "file").unlink()
        gone.rmdir()
    added.parent.mkdir(exist_ok=True)
    added.write_text("only here")


def read_folder(folder: Path) -> dict[str, str]:
    """Return the content or target of each file and link, with its mode."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else f"{path.stat().st_mode} {path.read_text()}"
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def keep(file_store: FileStore, folder: Path) -> str:
    """Look at a folder and return its tree."""
    with file_store.objects() as objects:
        looked = look(file_store, objects, folder)
    assert looked.tree is not None, looked.reason
    return looked.tree


def do(operation: str, file_store: FileStore, folder: Path, first: str, second: str) -> None:
    """Do what is killed."""
    if operation == "checkpoint":
        (folder / "more").write_text("more")
        keep(file_store, folder)
    elif operation == "restore":
        with file_store.objects() as objects, file_store.hold_folder(folder, exclusive=True):
            write(file_store, objects, folder, second, first)
    elif operation == "collect":
        collect(file_store, lambda: [second])


def check(operation: str, path: Path, folder: Path, states: dict[str, dict[str, str]], second: str) -> None:
    """Check that the folder is in one of its states, and that every tree is whole."""
    file_store = FileStore(path)
    tree = keep(file_store, folder)
    if operation == "checkpoint":
        with file_store.objects() as objects:
            kept = {file.path: read(objects, tree, file.path) for file in entries(objects, tree)}
        assert kept["more"] == b"more"
    else:
        assert read_folder(folder) == states[tree], "neither as before nor as after"
    roots = [second] if operation == "collect" else [*states, tree]
    state = inspect_files(file_store, roots, full=True)
    assert (state.missing, state.damaged, state.journals, state.leftovers) == ((), (), (), 0), state
    file_store.close()


def run_killed(work: Callable[[], None]) -> bool:
    """Run work in a fork; return whether it was killed."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def main(operation: str, home: Path) -> int:
    """Kill the operation at its first step, then at its second, until it ends."""
    for number in count():
        path, folder = home / f"{number}.files", home / f"{number}"
        folder.mkdir()
        file_store = FileStore(path)
        states: dict[str, dict[str, str]] = {}
        trees: list[str] = []
        for version in (0, 1):
            fill(folder, version)
            trees.append(keep(file_store, folder))
            states[trees[-1]] = read_folder(folder)
        file_store.close()
        steps = count()

        def step(name: str, number: int = number, steps: count[int] = steps) -> None:
            if next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(path: Path = path, folder: Path = folder, trees: list[str] = trees) -> None:
            do(operation, FileStore(path, step=step), folder, *trees)

        killed = run_killed(work)
        check(operation, path, folder, states, trees[1])
        if not killed:
            return number
    raise AssertionError("count() never ends")


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2])))
