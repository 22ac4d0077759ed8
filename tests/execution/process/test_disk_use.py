"""Counting what a run has on disk: each file once, each name, and no less while a count is under way."""

from __future__ import annotations

import os
from pathlib import Path

from bough.execution.process.disk_use import DiskUse

NAME_BYTES = 512


def test_a_file_with_many_links_counts_once_and_its_names_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    use = DiskUse((str(tmp_path),))
    alone = use.measure()
    for number in range(10):
        os.link(tmp_path / "file", tmp_path / f"link-{number}")
    assert use.measure() == alone + 10 * NAME_BYTES
    assert use.measure() == alone + 10 * NAME_BYTES  # nothing is remembered from the pass before


def test_names_count_where_files_are_empty(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert DiskUse((str(tmp_path),)).measure() == 100 * NAME_BYTES


def test_a_pass_that_is_under_way_tells_what_it_has_found(tmp_path: Path) -> None:
    """A run can make files faster than they are counted_bytes: its bound must not wait for the end of the pass."""
    for number in range(500):
        (tmp_path / str(number)).touch()
    use = DiskUse((str(tmp_path),))
    assert not use.advance(0)
    assert 0 < use.counted_bytes < 500 * NAME_BYTES
    assert use.advance(60)
    assert use.counted_bytes == 500 * NAME_BYTES
