"""Files that are put into a workspace and fetched from it: every descriptor is closed once."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from bough.execution.base import ExecutionLimits, File
from bough.execution.process.files import collect, write_file
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
        collected = collect(root, {}, limits=ExecutionLimits())
    assert [file.path for file in collected.files] == ["good"]
    assert collected.skipped == (("bad", "permission denied"),)
