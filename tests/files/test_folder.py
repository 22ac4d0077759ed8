"""Writing a tree into a folder, merging, and what stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.files.conftest import age

from bough.errors import Conflict, InvalidInput, NotFound
from bough.files import FileStore, Looked, Objects, find_file, look, materialise, merge, read, select, write

Keep = Callable[..., Looked]


def tree_of(looked: Looked) -> str:
    assert looked.tree is not None, looked.reason
    return looked.tree


def test_a_restored_folder_is_as_before_and_unchanged_files_keep_their_times(
    file_store: FileStore, objects: Objects, folder: Path, keep: Keep
) -> None:
    (folder / "same.txt").write_text("same")
    os.utime(folder / "same.txt", ns=(1, 2_000_000_003))
    (folder / "a").mkdir()
    (folder / "a/b.txt").write_text("b")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o750)
    (folder / "private").write_text("1")
    (folder / "private").chmod(0o600)
    os.symlink("a/b.txt", folder / "link")
    (folder / ".gitignore").write_text("*.log")
    before = tree_of(keep())
    (folder / "a/b.txt").unlink()
    (folder / "a").rmdir()
    (folder / "a").write_text("a file now")
    (folder / "run.sh").chmod(0o640)
    (folder / "private").write_text("2")
    (folder / "link").unlink()
    (folder / "link").mkdir()
    (folder / "link/inner").write_text("a folder now")
    (folder / "x.log").write_text("not kept")
    after = tree_of(keep())
    with file_store.hold_folder(folder, exclusive=True):
        written = write(file_store, objects, folder, after, before)
    assert {change.path for change in written.changes} == {"a", "a/b.txt", "link", "link/inner", "private", "run.sh"}
    assert tree_of(keep()) == before
    assert os.stat(folder / "same.txt").st_mtime_ns == 2_000_000_003
    assert os.stat(folder / "private").st_mode & 0o777 == 0o600
    assert os.stat(folder / "run.sh").st_mode & 0o777 == 0o750
    assert (folder / "x.log").read_text() == "not kept"
    assert not list(folder.rglob(".bough-*"))


def test_a_file_that_changed_since_the_look_is_a_conflict_and_nothing_is_written(
    file_store: FileStore, objects: Objects, folder: Path, keep: Keep
) -> None:
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    before = tree_of(keep())
    (folder / "a.txt").write_text("A")
    (folder / "b.txt").write_text("B")
    after = tree_of(keep())
    (folder / "b.txt").write_text("mine")
    with pytest.raises(Conflict) as error:
        write(file_store, objects, folder, after, before)
    assert error.value.details["paths"] == ["b.txt"]
    assert (folder / "a.txt").read_text() == "A"


def test_guarded_paths_are_left_out(file_store: FileStore, objects: Objects, folder: Path, keep: Keep) -> None:
    (folder / ".agents").mkdir()
    (folder / ".agents/x").write_text("old")
    (folder / "a").write_text("old")
    before = tree_of(keep())
    (folder / ".agents/x").write_text("new")
    (folder / "a").write_text("new")
    after = tree_of(keep())
    write(file_store, objects, folder, after, before, is_guarded=lambda path: path.startswith(".agents"))
    assert ((folder / "a").read_text(), (folder / ".agents/x").read_text()) == ("old", "new")


def test_a_link_on_the_way_is_never_followed(
    file_store: FileStore, objects: Objects, folder: Path, keep: Keep, tmp_path: Path
) -> None:
    (folder / "a").mkdir()
    (folder / "a/b").write_text("1")
    before = tree_of(keep())
    (folder / "a/b").write_text("2")
    after = tree_of(keep())
    outside = tmp_path / "outside"
    (folder / "a").rename(outside)
    os.symlink(outside, folder / "a")
    with pytest.raises(Conflict):
        write(file_store, objects, folder, after, before)
    assert (outside / "b").read_text() == "2"
    assert tree_of(keep()) not in (before, after)


def test_a_folder_is_held_by_many_runs_or_by_one_restore(file_store: FileStore, folder: Path) -> None:
    def hold(*, exclusive: bool) -> AbstractContextManager[None]:
        return file_store.hold_folder(folder, exclusive=exclusive)

    with hold(exclusive=False), hold(exclusive=False), pytest.raises(Conflict, match="in use"), hold(exclusive=True):
        pass
    with file_store.hold_folder(folder, exclusive=True):
        pass


def test_a_tree_is_written_into_an_empty_folder_only(
    objects: Objects, folder: Path, keep: Keep, tmp_path: Path, file_store: FileStore
) -> None:
    (folder / "a").mkdir()
    (folder / "a/run").write_text("x")
    (folder / "a/run").chmod(0o755)
    os.symlink("/nowhere", folder / "link")
    tree = tree_of(keep())
    assert materialise(objects, tree, tmp_path / "new") == 2
    assert tree_of(look(file_store, objects, tmp_path / "new")) == tree
    with pytest.raises(InvalidInput):
        materialise(objects, tree, tmp_path / "new")


def test_a_merge_brings_one_sides_changes_into_the_other(objects: Objects, folder: Path, keep: Keep) -> None:
    lines = [f"line {number}\n" for number in range(20)]
    (folder / "text").write_text("".join(lines))
    (folder / "both").write_text("base")
    (folder / "gone").write_text("gone")
    base = tree_of(keep())
    (folder / "text").write_text("".join(["first\n", *lines[1:]]))
    (folder / "both").write_text("theirs")
    (folder / "gone").unlink()
    (folder / "new").mkdir()
    (folder / "new/file").write_text("new")
    theirs = tree_of(keep())
    (folder / "text").write_text("".join([*lines[:-1], "last\n"]))
    (folder / "both").write_text("ours")
    (folder / "gone").write_text("gone")
    (folder / "new/file").unlink()
    (folder / "new").rmdir()
    (folder / "new").write_text("a file of ours")
    ours = tree_of(keep())
    merged = merge(objects, base, ours, theirs)
    assert merged.conflicts == ("both", "new/file")
    assert read(objects, merged.tree, "text") == "".join(["first\n", *lines[1:-1], "last\n"]).encode()
    assert read(objects, merged.tree, "both") == b"ours"
    with pytest.raises(NotFound):
        find_file(objects, merged.tree, "gone")
    forced = merge(objects, base, ours, theirs, prefer="theirs")
    assert (read(objects, forced.tree, "both"), read(objects, forced.tree, "new/file")) == (b"theirs", b"new")
    assert merge(objects, base, merged.tree, theirs).tree == merged.tree


def test_chosen_paths_come_from_another_tree(objects: Objects, folder: Path, keep: Keep) -> None:
    (folder / "d").mkdir()
    for name in ("a", "d/b", "d/c"):
        (folder / name).write_text("old")
    old = tree_of(keep())
    for name in ("a", "d/b", "d/c"):
        (folder / name).write_text("new")
    (folder / "d/new").write_text("new")
    age(folder)
    new = tree_of(keep())
    assert select(objects, new, old, ["."]) == select(objects, new, old, ["a", "d"]) == old
    chosen = select(objects, new, old, ["d"])
    assert (read(objects, chosen, "a"), read(objects, chosen, "d/b")) == (b"new", b"old")
    with pytest.raises(NotFound):
        select(objects, new, old, ["nothing"])
