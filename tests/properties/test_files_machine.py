"""Random changes of a workspace, looks, restores, merges and collections, compared with dictionaries."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from bough.files import FileStore, collect, entries, inspect_files, look, materialise, merge, read, write

Files: TypeAlias = dict[bytes, tuple[str, bytes]]
"""For each path its kind and its content, as a model holds them."""

NAMES = st.sampled_from([b"a", b"b", b"B", b".GIT", b"\xff\n", "é".encode(), b"git~1", b"-"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
CONTENTS = st.sampled_from([b"", b"text\n", b"\0binary", b"one\ntwo\nthree\n", b"x" * 3000]) | st.binary(max_size=20)
KINDS = st.sampled_from(["file", "executable", "link"])


def read_workspace(folder: bytes) -> Files:
    """Return every file and link below a folder."""
    files: Files = {}
    for parent, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            path = parent + b"/" + name
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                files[key] = ("link", os.readlink(path))
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    files[key] = ("executable" if os.stat(path).st_mode & 0o100 else "file", file.read())
    return files


class FilesMachine(RuleBasedStateMachine):
    """A workspace whose trees are compared with what it held."""

    trees = Bundle("trees")

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="bough-test-files-"))
        self.folder = os.fsencode(self.home / "workspace")
        os.mkdir(self.folder)
        self.file_store = FileStore(self.home / "log.db.files")
        self.models: dict[str, Files] = {}
        self.copies = 0

    def teardown(self) -> None:
        self.file_store.close()
        shutil.rmtree(self.home)

    def keep(self) -> str:
        with self.file_store.objects() as objects:
            looked = look(self.file_store, objects, Path(os.fsdecode(self.folder)))
        assert looked.tree is not None, looked.reason
        model = read_workspace(self.folder)
        assert self.models.setdefault(looked.tree, model) == model, "one tree stands for one state"
        return looked.tree

    @initialize(target=trees)
    def start(self) -> str:
        return self.keep()

    @rule(path=PATHS, kind=KINDS, content=CONTENTS)
    def put(self, path: bytes, kind: str, content: bytes) -> None:
        target = self.folder + b"/" + path
        parent = os.path.dirname(target)
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if os.path.islink(parent) or not os.path.isdir(parent) or os.path.isdir(target):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        if kind == "link":
            os.symlink(content.replace(b"\0", b"") or b"nowhere", target)
            return
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, 0o755 if kind == "executable" else 0o644)

    @rule(path=PATHS)
    def remove(self, path: bytes) -> None:
        target = self.folder + b"/" + path
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        elif os.path.lexists(target):
            os.unlink(target)

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: bytes, new: bytes) -> None:
        source, target = self.folder + b"/" + old, self.folder + b"/" + new
        if os.path.lexists(source) and not os.path.lexists(target):
            os.rename(source, target)

    @rule(target=trees)
    def look(self) -> str:
        return self.keep()

    @rule(target=trees, tree=trees)
    def restore(self, tree: str) -> str:
        now = self.keep()
        before = {
            path: os.lstat(self.folder + b"/" + path).st_mtime_ns
            for path, file in self.models[now].items()
            if self.models[tree].get(path) == file
        }
        with self.file_store.objects() as objects:
            write(self.file_store, objects, Path(os.fsdecode(self.folder)), now, tree)
        assert read_workspace(self.folder) == self.models[tree]
        assert {path: os.lstat(self.folder + b"/" + path).st_mtime_ns for path in before} == before
        assert self.keep() == tree
        return now

    @rule(tree=trees)
    def fork(self, tree: str) -> None:
        self.copies += 1
        folder = self.home / f"copy-{self.copies}"
        with self.file_store.objects() as objects:
            materialise(objects, tree, folder)
        assert read_workspace(os.fsencode(folder)) == self.models[tree]

    @rule(base=trees, ours=trees, theirs=trees)
    def merge(self, base: str, ours: str, theirs: str) -> None:
        with self.file_store.objects() as objects:
            merged = merge(objects, base, ours, theirs)
            assert merge(objects, base, ours, base).tree == ours
            assert merge(objects, base, base, theirs).tree == theirs
            paths = {os.fsencode(file.path): file for file in entries(objects, merged.tree)}
            old, mine, other = (self.models[tree] for tree in (base, ours, theirs))
            for path in mine.keys() | other.keys() | old.keys():
                if os.fsdecode(path) in merged.conflicts:
                    continue
                if mine.get(path) == old.get(path) or mine.get(path) == other.get(path):
                    wanted = other.get(path)
                elif other.get(path) == old.get(path):
                    wanted = mine.get(path)
                else:
                    continue  # merged by lines
                file = paths.get(path)
                content = None if file is None else (file.kind, read(objects, merged.tree, file.path))
                assert content == wanted

    @rule(tree=trees)
    def collect(self, tree: str) -> None:
        collected = collect(self.file_store, lambda: self.models)
        assert collected.missing == ()

    @rule()
    def restart(self) -> None:
        self.file_store.close()
        self.file_store = FileStore(self.home / "log.db.files")

    @invariant()
    def every_tree_is_whole(self) -> None:
        assert inspect_files(self.file_store, self.models).missing == ()


FilesMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=20)
TestFiles = FilesMachine.TestCase
