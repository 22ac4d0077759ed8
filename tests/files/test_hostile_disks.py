"""Read-only disks, file systems that fold names, and machines without git."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.errors import Conflict, PermissionDenied, Unavailable
from bough.files import FileStore, Looked, Objects, look, materialise, write
from bough.files.materialise import check_folding

Keep = Callable[..., Looked]


def refuse_new_files(monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
    """Make a folder as on a read-only disk: nothing below it is created, renamed or removed."""

    def wrap(name: str) -> Callable[..., object]:
        function = getattr(os, name)

        def call(path: Any, *arguments: Any, **options: Any) -> object:
            fds = [value for key, value in options.items() if key.endswith("dir_fd") and isinstance(value, int)]
            folders = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
            creates = name != "open" or any(flags & os.O_CREAT for flags in arguments[:1])
            if creates and any(Path(folder).is_relative_to(below) for folder in (*folders, os.fsdecode(path))):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return function(path, *arguments, **options)

        return call

    for name in ("open", "rename", "unlink", "symlink", "mkdir"):
        monkeypatch.setattr(os, name, wrap(name))


def test_a_store_on_a_read_only_disk_is_an_error_with_a_reason(
    file_store: FileStore, objects: Objects, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("a")
    with monkeypatch.context() as patch:
        refuse_new_files(patch, file_store.path)
        with pytest.raises(Unavailable, match="Read-only file system") as error:
            look(file_store, objects, folder)
        assert error.value.details["reason"]
    assert look(file_store, objects, folder).files == 1


def test_a_folder_that_becomes_read_only_is_finished_later(
    file_store: FileStore, objects: Objects, folder: Path, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("first")
    before = str(keep().tree)
    (folder / "a").write_text("second")
    now = str(keep().tree)
    with monkeypatch.context() as patch, file_store.hold_folder(folder, exclusive=True):
        refuse_new_files(patch, folder)
        with pytest.raises(Unavailable, match="Read-only") as error:
            write(file_store, objects, folder, now, before)
        assert error.value.hint
    assert (folder / "a").read_text() == "second"
    assert keep().tree in (before, now)
    with file_store.hold_folder(folder, exclusive=True):
        write(file_store, objects, folder, str(keep().tree), before)
    assert (folder / "a").read_text() == "first"
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_names_that_fold_to_one_are_refused_before_anything_is_written() -> None:
    check_folding(["a", "b/c", "b/d"], {"a"})
    for paths in (["A", "a"], ["x/Ä", "x/a\u0308".replace("a", "A")], ["dir/a", "DIR/b"]):
        with pytest.raises(Conflict) as error:
            check_folding(paths, set(paths))
        assert len(error.value.details["paths"]) == 2
    for path in (".GIT/hooks/x", "a/.Git", ".Agents/x"):
        with pytest.raises(PermissionDenied):
            check_folding([path], {path}, lambda name: name.startswith(".agents"))


def test_no_git_program_and_no_identity_are_needed(
    objects: Objects, folder: Path, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "HOME", "GIT_CONFIG_GLOBAL", "GIT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    (folder / "a").write_text("a")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "x.log").write_text("ignored")
    tree = str(keep().tree)
    assert materialise(objects, tree, tmp_path / "copy") == 2
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [".gitignore", "a"]
