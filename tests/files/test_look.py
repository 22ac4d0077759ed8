"""What a look keeps, what it leaves out, and how much of a folder it reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.files.conftest import age

from bough.files import FileStore, KeepBounds, Looked, Objects, diff, entries, look, read

Keep = Callable[..., Looked]


def paths_of(objects: Objects, looked: Looked) -> list[str]:
    assert looked.tree is not None
    return [file.path for file in entries(objects, looked.tree)]


def test_a_tree_has_files_links_and_modes_byte_for_byte(keep: Keep, folder: Path, objects: Objects) -> None:
    odd = [b"\xff\n.txt", b".GIT", b"git~1", b"Name", b"name", "ü".encode()]
    for name in odd:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"\r\n" + name)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    os.symlink("/etc/passwd", folder / "link")
    (folder / "empty").mkdir()
    looked = keep()
    assert looked.tree is not None
    kinds = {os.fsencode(file.path): file.kind for file in entries(objects, looked.tree)}
    assert kinds == {b"run.sh": "executable", b"link": "link"} | dict.fromkeys(odd, "file")
    assert read(objects, looked.tree, os.fsdecode(odd[0])) == b"\r\n" + odd[0]
    assert read(objects, looked.tree, "link") == b"/etc/passwd"


def test_a_look_that_finds_nothing_new_reads_no_file(keep: Keep, folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(str(number))
    first = keep()
    age(folder)
    keep()  # the files were too young to be known by their state
    again = keep()
    assert (first.hashed, again.hashed, again.stat_count) == (20, 0, 20)
    assert again.tree == again.before == first.tree


def test_only_changed_files_are_read(keep: Keep, folder: Path, objects: Objects) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(str(number))
    age(folder)
    first = keep()
    (folder / "3.txt").write_text("new")
    (folder / "4.txt").unlink()
    (folder / "new.txt").write_text("new")
    looked = keep()
    assert looked.hashed == 2
    assert (looked.added, looked.changed, looked.removed) == (1, 1, 1)
    assert looked.paths == ("3.txt", "4.txt", "new.txt")
    assert looked.before == first.tree


def test_a_change_with_the_old_times_and_size_is_seen(keep: Keep, folder: Path) -> None:
    (folder / "a.txt").write_text("one")
    age(folder)
    first = keep()
    state = os.stat(folder / "a.txt")
    (folder / "a.txt").write_text("two")
    os.utime(folder / "a.txt", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert keep().tree != first.tree


def test_a_told_path_is_the_only_one_that_is_looked_at(keep: Keep, folder: Path, objects: Objects) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(str(number))
    first = keep()
    (folder / "3.txt").write_text("new")
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c.txt").write_text("c")
    looked = keep("3.txt")
    assert (looked.stat_count, looked.hashed, looked.paths) == (1, 1, ("3.txt",))
    looked = keep("a/b/c.txt")
    assert (looked.stat_count, looked.paths) == (1, ("a/b/c.txt",))
    (folder / "a/b/c.txt").unlink()
    (folder / "3.txt").write_text("3")
    keep("3.txt")
    looked = keep("a/b/c.txt")
    assert (looked.stat_count, looked.removed, looked.tree) == (1, 1, first.tree)


def test_a_told_path_needs_an_index_of_the_last_look(file_store: FileStore, objects: Objects, folder: Path) -> None:
    (folder / "a.txt").write_text("a")
    look(file_store, objects, folder)
    (folder / "b.txt").write_text("b")
    other = FileStore(file_store.path)
    with other.objects() as other_objects:
        look(other, other_objects, folder)
    other.close()
    (folder / "a.txt").write_text("c")
    looked = look(file_store, objects, folder, paths=["a.txt"])
    assert looked.paths == ("a.txt",)
    assert paths_of(objects, looked) == ["a.txt", "b.txt"]


def test_what_gitignore_names_is_left_out(keep: Keep, folder: Path, objects: Objects) -> None:
    (folder / ".gitignore").write_text("*.log\nout/\n")
    (folder / "out").mkdir()
    (folder / "deep").mkdir()
    for name in ("a.log", "out/x", "kept.txt", "deep/b.log", "deep/c.tmp"):
        (folder / name).write_text(name)
    (folder / "deep/.gitignore").write_text("*.tmp\n!b.log\n")
    looked = keep()
    assert paths_of(objects, looked) == [".gitignore", "deep/.gitignore", "deep/b.log", "kept.txt"]
    assert (
        looked.skipped == (("out/", "ignored"), ("a.log", "ignored"), ("deep/c.tmp", "ignored"))
        or looked.skipped_count == 3
    )
    (folder / ".gitignore").write_text("kept.txt\n")
    looked = keep()
    assert paths_of(objects, looked) == [
        ".gitignore", "a.log", "deep/.gitignore", "deep/b.log", "kept.txt", "out/x",
    ], "a kept name stays kept, names that no rule leaves out any more are added"  # fmt: skip
    looked = keep(bounds=KeepBounds(ignored=True))
    assert "deep/c.tmp" in paths_of(objects, looked)


def test_git_and_heavy_folders_are_left_out(keep: Keep, folder: Path, objects: Objects) -> None:
    for name in (".git/HEAD", "sub/.git/HEAD", "node_modules/x", "sub/__pycache__/y", "sub/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    os.symlink("/tmp", folder / "sub/deeper.git")
    assert paths_of(objects, keep(bounds=KeepBounds(ignored=True))) == ["sub/a", "sub/deeper.git"]
    assert diff(objects, None, keep().tree)[0].path == "sub/a"
