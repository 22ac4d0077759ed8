"""Workspaces that are too large, that change while they are read, or that somebody prepared."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bough.errors import BoughError, CorruptLog, NotFound
from bough.files import FileStore, KeepBounds, Looked, Objects, entries, look, materialise, read, write

Keep = Callable[..., Looked]


def paths_of(objects: Objects, looked: Looked) -> list[str]:
    assert looked.tree is not None, looked.reason
    return [file.path for file in entries(objects, looked.tree)]


@contextmanager
def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Generator[dict[str, int]]:
    """Count listings, and calls of other functions of `os` relative to a folder; they are made all the same."""
    counts = dict.fromkeys(names, 0)
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, _counted(counts, name))
        yield counts


def _counted(counts: dict[str, int], name: str) -> Callable[..., object]:
    function = getattr(os, name)

    def call(*arguments: object, **options: object) -> object:
        counts[name] += name in ("scandir", "listdir") or options.get("dir_fd") is not None
        return function(*arguments, **options)

    return call


def test_a_walk_stops_at_the_bound(keep: Keep, folder: Path) -> None:
    for number in range(40):
        (folder / f"{number}").write_text("x")
    looked = keep(bounds=KeepBounds(max_files=10))
    assert (looked.tree, looked.reason, looked.stat_count) == (None, "more than 10 files", 11)
    looked = keep(bounds=KeepBounds(total_bytes=5))
    assert (looked.tree, looked.reason) == (None, "more than 5 bytes")
    assert keep().files == 40


def test_a_sparse_file_is_left_out_by_its_size_and_never_opened(keep: Keep, folder: Path, objects: Objects) -> None:
    with (folder / "huge").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    (folder / "small").write_text("x")
    looked = keep()
    assert paths_of(objects, looked) == ["small"]
    assert looked.skipped == (("huge", "larger than 16,777,216 bytes"),)
    assert looked.hashed == 1


@pytest.mark.parametrize("name", ["/", "~"])
def test_no_home_and_no_root_is_a_workspace(
    file_store: FileStore, objects: Objects, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    looked = look(file_store, objects, Path(name).expanduser())
    assert (looked.tree, looked.reason, looked.stat_count) == (None, "not a workspace", 0)


def test_a_folder_that_holds_the_store_is_no_workspace(file_store: FileStore, objects: Objects) -> None:
    assert look(file_store, objects, file_store.path.parent).reason == "not a workspace"


def test_a_folder_that_is_gone_is_a_reason(file_store: FileStore, objects: Objects, folder: Path) -> None:
    folder.rmdir()
    assert look(file_store, objects, folder).reason == "No such file or directory"


def test_pipes_are_skipped_and_never_waited_for(keep: Keep, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / ".gitignore")
    looked = keep()
    assert looked.tree is not None
    assert dict(looked.skipped) == {"pipe": "not a regular file", ".gitignore": "not a regular file"}


def test_a_folder_deeper_than_the_bound_is_skipped(keep: Keep, folder: Path, objects: Objects) -> None:
    deep = folder.joinpath(*["d"] * 70)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    (folder / "d/y").write_text("y")
    looked = keep()
    assert paths_of(objects, looked) == ["d/y"]
    assert looked.skipped == (("/".join(["d"] * 64), "too deep"),)


def test_a_git_that_is_a_link_or_a_file_is_in_no_tree(
    keep: Keep, folder: Path, objects: Objects, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/HEAD").write_text("x")
    os.symlink(tmp_path / "elsewhere", folder / ".git")
    (folder / "module").mkdir()
    (folder / "module/.git").write_text("gitdir: ../.git/modules/module")
    (folder / "module/a").write_text("a")
    assert paths_of(objects, keep()) == ["module/a"]


def test_a_file_that_changes_while_it_is_read_is_read_again(
    keep: Keep, folder: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "busy").write_text("0")
    fstat = os.fstat
    changes = iter(range(1, 100))

    def change(fd: int) -> os.stat_result:
        if os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) == "busy":
            (folder / "busy").write_text("x" * next(changes))
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", change)
    looked = keep()
    monkeypatch.undo()
    assert looked.unsettled == 1
    settled = keep()
    assert (settled.unsettled, settled.hashed) == (0, 1)
    assert settled.tree is not None
    assert read(objects, settled.tree, "busy") == (folder / "busy").read_bytes()


def test_a_folder_that_is_swapped_with_a_link_leads_nowhere(
    file_store: FileStore, objects: Objects, folder: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("the key")
    (folder / "d").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (folder / "d").rmdir()
            os.symlink(secret, folder / "d")
            (folder / "d").unlink()
            (folder / "d").mkdir()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        trees = {look(file_store, objects, folder).tree for _ in range(100)}
    finally:
        stop.set()
        thread.join()
    for tree in trees:
        assert tree is not None
        assert "d/key" not in [file.path for file in entries(objects, tree)]


def test_a_full_disk_is_a_reason_and_leaves_nothing(
    keep: Keep, folder: Path, file_store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("a")
    full = os.pwrite

    def fail(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    looked = keep()
    assert (looked.tree, looked.reason) == (None, "No space left on device")
    monkeypatch.setattr(os, "pwrite", full)
    assert keep().files == 1
    assert file_store.list_leftovers() == []


def test_a_full_store_takes_no_more_and_still_reads(folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_text("a")
    file_store = FileStore(tmp_path / "small.files", max_bytes=1)
    with file_store.objects() as objects:
        tree = look(file_store, objects, folder).tree
        (folder / "b").write_text("b")
        looked = look(file_store, objects, folder)
        assert (looked.tree, looked.reason) == (None, "place full")
        assert tree is not None
        assert read(objects, tree, "a") == b"a"
    file_store.close()


def test_a_tree_that_is_not_here_is_not_found(objects: Objects, tmp_path: Path) -> None:
    for tree in ("00" * 20, "nothing", ""):
        with pytest.raises(NotFound) as error:
            materialise(objects, tree, tmp_path / "new")
        assert error.value.hint


def test_a_damaged_object_is_found_before_the_folder_is_touched(folder: Path, file_store: FileStore) -> None:
    (folder / "a").write_text("first " * 50)
    (folder / "b").write_text("first")
    with file_store.objects() as objects:
        before = look(file_store, objects, folder).tree
    (pack,) = file_store.packs.folder.glob("*.pack")
    (folder / "a").write_text("second")
    (folder / "b").write_text("second")
    with file_store.objects() as objects:
        after = look(file_store, objects, folder).tree
    data = bytearray(pack.read_bytes())
    data[12:-20] = bytes(len(data) - 32)
    pack.write_bytes(data)
    assert before is not None
    assert after is not None
    with file_store.objects() as objects, pytest.raises(CorruptLog):
        write(file_store, objects, folder, after, before)
    assert (folder / "a").read_text() == (folder / "b").read_text() == "second"
    with file_store.objects() as objects:
        looked = look(file_store, objects, folder)
    assert looked.tree == after, "the files of now are kept all the same"


def test_a_store_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BoughError) as error:
        FileStore(tmp_path / "file" / "x.files").objects()
    assert error.value.code == "unavailable"
    assert error.value.hint


def test_a_look_that_is_not_made_looks_at_nothing_and_a_told_path_at_one_file(
    keep: Keep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (folder / f"{number}").write_text("x")
    keep()
    (folder / "3").write_text("new")
    with count_calls(monkeypatch, "stat", "scandir", "open", "listdir") as counts:
        keep("3")
    assert (counts["scandir"], counts["listdir"]) == (1, 0), "the packs are listed, no folder of the workspace"
    assert (counts["stat"], counts["open"]) == (2, 1), "the state of one file, twice, and its content"
