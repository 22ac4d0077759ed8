"""The tools for files: confined, bounded, and never half done."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from bough.agents.workspace.files import MAX_LISTED_FILES, WorkspaceFiles
from bough.errors import BoughError, Conflict, InvalidInput, NotFound


@pytest.fixture
def files(tmp_path: Path) -> WorkspaceFiles:
    root = tmp_path / "ws"
    (root / "docs").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "docs" / "b.md").write_text("# Title\nword\n")
    (tmp_path / "secret.txt").write_text("outside")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "up").symlink_to(tmp_path)
    return WorkspaceFiles(root)


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "link.txt", "up/secret.txt", "docs/../../secret.txt"])
def test_nothing_outside_is_read_or_written(files: WorkspaceFiles, path: str) -> None:
    for attempt in (lambda: files.read(path), lambda: files.write(path, "x"), lambda: files.edit(path, "o", "x")):
        with pytest.raises(InvalidInput, match="outside"):
            attempt()
    assert (files.root.parent / "secret.txt").read_text() == "outside"


def test_reading_in_parts(files: WorkspaceFiles) -> None:
    assert files.read("a.txt") == "one\ntwo\nthree\n"
    assert files.read("a.txt", start_line=2, max_lines=1) == "two\n\n[lines 2-2 of 3; read on with start_line=3]"


def test_what_cannot_be_read_is_said(files: WorkspaceFiles) -> None:
    (files.root / "x.bin").write_bytes(b"\0\1")
    for path, error in (("x.bin", InvalidInput), ("docs", InvalidInput), ("no.txt", NotFound), ("a\0b", InvalidInput)):
        with pytest.raises(error):
            files.read(path)


def test_writing_makes_folders_and_keeps_the_mode(files: WorkspaceFiles) -> None:
    files.write("new/deep/c.txt", "hi")
    assert (files.root / "new/deep/c.txt").read_text() == "hi"
    (files.root / "a.txt").chmod(0o640)
    files.write("a.txt", "changed")
    assert (files.root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert not list(files.root.glob(".*.new"))


@pytest.mark.parametrize(
    "path", [".git/hooks/pre-commit", ".agents/skills/x/SKILL.md", "sub/.git/config", "bough.yaml"]
)
def test_what_decides_later_is_not_written(files: WorkspaceFiles, path: str) -> None:
    with pytest.raises(InvalidInput, match="is protected"):
        files.write(path, "x")
    assert not (files.root / path).exists()


def test_editing_wants_exactly_one_place(files: WorkspaceFiles) -> None:
    files.edit("a.txt", "two", "2")
    assert files.read("a.txt") == "one\n2\nthree\n"
    for old, error in (("absent", NotFound), ("", NotFound), ("e", Conflict)):
        with pytest.raises(error):
            files.edit("a.txt", old, "x")


def test_listing_and_searching_stay_inside(files: WorkspaceFiles) -> None:
    assert files.list() == ["a.txt", "docs/b.md", "link.txt", "up"]
    assert files.list(pattern="*.md") == ["docs/b.md"]
    assert files.search("w.rd") == ["docs/b.md:2: word"]
    assert files.search("outside") == [], "a link out of the workspace is not followed"
    with pytest.raises(InvalidInput):
        files.search("(")


def test_long_lists_are_cut_and_say_so(files: WorkspaceFiles) -> None:
    for n in range(MAX_LISTED_FILES + 5):
        (files.root / f"f{n:04}").write_text("")
    assert files.list()[-1] == "[9 more]"


def test_invalid_text_survives_an_edit(files: WorkspaceFiles) -> None:
    (files.root / "l.txt").write_bytes(b"caf\xe9 one")
    files.edit("l.txt", "one", "two")
    assert (files.root / "l.txt").read_bytes() == b"caf\xe9 two"


def test_a_long_line_is_read_on(files: WorkspaceFiles) -> None:
    line = "äß€🙂" * 100_000
    (files.root / "long.txt").write_text(f"first\n{line}\nlast\n")
    place, read = 0, ""
    while True:
        answer = files.read("long.txt", start_line=2, start_byte=place)
        text, _, note = answer.rpartition("\n[")
        if "start_byte=" not in note:
            break
        read += text
        place = int(note.rpartition("=")[2].rstrip("]"))
    read += answer.partition("\n")[0]
    assert read == line
    assert answer.endswith("last\n")


def test_a_line_that_is_not_there_is_said(files: WorkspaceFiles) -> None:
    assert files.read("a.txt", start_line=4) == "[the file has fewer than 4 lines]"
    assert files.read("a.txt", start_line=40) == "[the file has fewer than 40 lines]"
    (files.root / "empty").write_text("")
    assert files.read("empty") == ""


def test_what_is_no_regular_file_blocks_nobody(files: WorkspaceFiles) -> None:
    os.mkfifo(files.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files.root / "socket"))
    os.link(files.root / "a.txt", files.root / "b.txt")
    assert files.search("Title") == ["docs/b.md:1: # Title"]
    assert "pipe" not in files.list()
    for name in ("pipe", "socket"):
        with pytest.raises(InvalidInput, match="regular"):
            files.read(name)
    for attempt in (lambda: files.read("b.txt"), lambda: files.write("b.txt", "x")):
        with pytest.raises(InvalidInput, match="More than one link"):
            attempt()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_a_line(files: WorkspaceFiles) -> None:
    (files.root / "docs").chmod(0)
    try:
        assert files.list()[-1] == "[unreadable: docs]"
    finally:
        (files.root / "docs").chmod(0o755)


def test_a_walk_that_is_too_long_ends_and_says_so(files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.agents.workspace.files.MAX_ENTRIES", 2)
    assert files.list() == ["a.txt", "link.txt", "[stopped after 2 names: name a folder further down]"]
    assert files.search("one")[-1] == "[stopped after 2 names: name a folder further down]"
    monkeypatch.setattr("bough.agents.workspace.files.MAX_SEARCHED_BYTES", 1)
    assert files.search("one", pattern="*.txt")[1:] == ["[stopped after 2 names: name a folder further down]"]


ROUNDS = 1000


@pytest.mark.parametrize("swapped", ["folder", "file"])
def test_nothing_outside_is_reached_while_names_are_swapped(tmp_path: Path, swapped: str) -> None:
    """One call of a response swaps a name between itself and a link out, the other reads and writes by it."""
    root, outside = tmp_path / "ws", tmp_path / "outside"
    for folder in (root / "folder", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("inside" if folder.parent == root else "secret")
    name = root / "folder" if swapped == "folder" else root / "folder" / "file"
    target = outside if swapped == "folder" else outside / "file"
    done = threading.Event()

    def swap() -> None:
        kept = tmp_path / "kept"
        while not done.is_set():
            name.rename(kept)
            with suppress(FileExistsError):  # the writer has made it anew
                name.symlink_to(target)
                name.unlink()
            shutil.rmtree(name, ignore_errors=True)
            with suppress(OSError):
                kept.replace(name)
            if kept.exists():
                shutil.rmtree(kept)

    swapping = threading.Thread(target=swap)
    swapping.start()
    reached = 0
    files = WorkspaceFiles(root)
    try:
        for _ in range(ROUNDS):
            with suppress(BoughError):
                assert files.read("folder/file") != "secret"
                reached += 1
            with suppress(BoughError):
                files.write("folder/file", "inside")
            with suppress(BoughError):
                assert files.search("secret") == []
    finally:
        done.set()
        swapping.join()
    assert (outside / "file").read_text() == "secret"
    assert reached


def test_a_repository_of_any_name_is_neither_changed_nor_made(files: WorkspaceFiles) -> None:
    """git runs what its configuration names, for whoever calls it in there."""
    for name in ("objects/x", "refs/x", "config"):
        files.write(f"fixtures/bare/{name}", "as it was")
    with pytest.raises(InvalidInput, match="protected"):
        files.write("fixtures/bare/HEAD", "ref: refs/heads/main\n")
    (files.root / "fixtures/bare/HEAD").write_text("ref: refs/heads/main\n")
    for attempt in (
        lambda: files.write("fixtures/bare/config", "[core] fsmonitor = evil"),
        lambda: files.write("fixtures/bare/hooks/post-checkout", "evil"),
        lambda: files.edit("fixtures/bare/config", "as it was", "evil"),
    ):
        with pytest.raises(InvalidInput, match="protected"):
            attempt()
    assert (files.root / "fixtures/bare/config").read_text() == "as it was"
    files.write("HEAD", "a text")
    files.write("config/objects", "a text")
