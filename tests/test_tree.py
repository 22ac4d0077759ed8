"""Walks through folders that change meanwhile, of any depth, with few descriptors and through no link."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bough import tree

DEPTH = 400


def _make_deep(top: Path) -> list[str]:
    """Make folders in one another with a file beside each; return all paths as a walk yields them."""
    paths: list[str] = []
    with tree.open_beneath(top, ()) as root:
        names: list[str] = []
        for _ in range(DEPTH):
            with tree.open_beneath(root, names) as folder:
                os.mkdir("a", dir_fd=folder)
                os.close(os.open("z", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            paths += ["/".join((*names, "a")), "/".join((*names, "z"))]
            names.append("a")
    return paths


def test_a_deep_tree_is_walked_whole_with_few_descriptors(tmp_path: Path) -> None:
    """Were a descriptor kept for each folder, a script could end every walk of the process by nesting folders."""
    paths = _make_deep(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with tree.open_descriptor(tmp_path) as root:
        seen: list[str] = []
        most = 0
        for entry in tree.walk(root):
            seen.append(entry.path)
            if sys.platform == "linux":
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert seen == paths
        in_place = [entry.path for entry in tree.walk(root, in_place=True)]
    assert most <= 20
    assert sorted(in_place) == sorted(paths)
    assert in_place[-1] == "z", "what is in a folder comes before the name after it"


def test_a_folder_that_is_moved_away_does_not_end_the_walk(tmp_path: Path) -> None:
    """A script that moves the folder that a walk is in must hide only what lies below it, nor lead the walk outside."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    top.mkdir()
    (outside / "secret").mkdir(parents=True)
    paths = _make_deep(top)
    moved = "/".join(["a"] * 40)
    seen: list[str] = []
    with tree.open_descriptor(top) as root:
        for entry in tree.walk(root, in_place=True):
            seen.append(entry.path)
            if entry.path == "/".join(["a"] * DEPTH):
                os.rename(top / moved, outside / "moved")
    assert {path for path in paths if path.count("/") < 39} <= set(seen), "all that stayed in its place"
    assert set(seen) <= set(paths)


def test_an_abandoned_walk_closes_its_descriptors(tmp_path: Path) -> None:
    """A walk that a bound ends early must not use up the descriptors of the process."""
    _make_deep(tmp_path)
    with tree.open_descriptor(tmp_path) as root:
        before = os.dup(root)
        os.close(before)
        for entry in tree.walk(root, in_place=True):
            if entry.folder.depth == 60:
                break
        del entry
        after = os.dup(root)
        os.close(after)
    assert after == before
