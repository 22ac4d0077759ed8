"""Files that are put into a workspace and fetched from it: every descriptor is closed once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.execution.base import ExecutionLimits, File
from bough.execution.process.files import FolderSnapshot, collect, snapshot, write_file
from bough.tree import open_descriptor

WRITES = 2000


def test_a_write_that_fails_closes_no_file_of_others(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("")
    done = threading.Event()
    wrong: list[OSError] = []

    def hold_files() -> None:
        while not done.is_set():
            try:
                with tempfile.TemporaryFile(dir=tmp_path) as held:
                    before = os.fstat(held.fileno())
                    os.sched_yield()
                    assert os.fstat(held.fileno()).st_ino == before.st_ino
            except OSError as error:
                wrong.append(error)

    holders = [threading.Thread(target=hold_files) for _ in range(8)]
    for holder in holders:
        holder.start()
    try:
        with open_descriptor(tmp_path) as root:
            for _ in range(WRITES):
                with pytest.raises(NotADirectoryError):
                    write_file(root, File(path="a/file/below/it", content=b""))
    finally:
        done.set()
        for holder in holders:
            holder.join()
    assert wrong == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read_is_left_out_alone(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good")
    (tmp_path / "bad").write_text("bad")
    (tmp_path / "bad").chmod(0)
    with open_descriptor(tmp_path) as root:
        collected = collect(root, FolderSnapshot(), limits=ExecutionLimits())
    assert [file.path for file in collected.files] == ["good"]
    assert collected.skipped == (("bad", "permission denied"),)


def test_a_change_is_seen_unless_the_walk_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("one")
    (tmp_path / "other").write_text("other")

    def find_change(change: Callable[[], object], depth: int = 16) -> bool | None:
        with open_descriptor(tmp_path) as root:
            before = snapshot(root, max_depth=depth)
            change()
            return collect(root, before, limits=ExecutionLimits(output_depth=depth), globs=()).changed

    assert find_change(lambda: None) is False
    assert find_change(lambda: (tmp_path / "a" / "file").write_text("two")) is True
    assert find_change(lambda: (tmp_path / "other").chmod(0o755)) is True
    assert find_change(lambda: (tmp_path / "new").symlink_to("a")) is True
    assert find_change(lambda: (tmp_path / "new").unlink()) is True
    assert find_change(lambda: None, depth=0) is None  # `a` is too deep, so what it holds is not known
