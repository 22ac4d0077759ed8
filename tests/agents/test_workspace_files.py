"""The tools for files: confined, bounded, and never half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.agents.workspace_files import MAX_LISTED, WorkspaceFiles
from bough.errors import Conflict, InvalidInput, NotFound


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
    with pytest.raises(InvalidInput, match="may not be written"):
        files.write(path, "x")
    assert not (files.root / path).exists()


def test_editing_wants_exactly_one_place(files: WorkspaceFiles) -> None:
    files.edit("a.txt", "two", "2")
    assert files.read("a.txt") == "one\n2\nthree\n"
    for old, error in (("absent", NotFound), ("", NotFound), ("e", Conflict)):
        with pytest.raises(error):
            files.edit("a.txt", old, "x")


def test_listing_and_searching_stay_inside(files: WorkspaceFiles) -> None:
    assert files.list() == ["a.txt", "docs/b.md", "link.txt"]
    assert files.list(pattern="*.md") == ["docs/b.md"]
    assert files.search("w.rd") == ["docs/b.md:2: word"]
    assert files.search("outside") == [], "a link out of the workspace is not followed"
    with pytest.raises(InvalidInput):
        files.search("(")


def test_long_lists_are_cut_and_say_so(files: WorkspaceFiles) -> None:
    for n in range(MAX_LISTED + 5):
        (files.root / f"f{n:04}").write_text("")
    assert files.list()[-1] == "[8 more]"


def test_invalid_text_survives_an_edit(files: WorkspaceFiles) -> None:
    (files.root / "l.txt").write_bytes(b"caf\xe9 one")
    files.edit("l.txt", "one", "two")
    assert (files.root / "l.txt").read_bytes() == b"caf\xe9 two"
