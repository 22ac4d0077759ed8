"""Collection, check and repair: what a tree needs stays, everything else goes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.errors import Conflict, CorruptLog
from bough.files import FileStore, collect, entries, inspect_files, look, read, repair_files, write
from bough.files.pack import PackWriter
from bough.files.store import MAX_SMALL_PACKS


def keep(file_store: FileStore, folder: Path, *paths: str) -> str:
    with file_store.objects() as objects:
        looked = look(file_store, objects, folder, paths=paths or None)
    assert looked.tree is not None, looked.reason
    return looked.tree


def keep_versions(file_store: FileStore, folder: Path, count: int) -> list[str]:
    (folder / "same").write_text("same")
    trees: list[str] = []
    for number in range(count):
        (folder / "d").mkdir(exist_ok=True)
        (folder / "d/changing").write_text(f"version {number} " * 100)
        trees.append(keep(file_store, folder))
    return trees


def read_all(file_store: FileStore, tree: str) -> dict[str, bytes]:
    with file_store.objects() as objects:
        return {file.path: read(objects, tree, file.path) for file in entries(objects, tree)}


def test_what_no_root_needs_is_removed(file_store: FileStore, folder: Path) -> None:
    trees = keep_versions(file_store, folder, 5)
    wanted = read_all(file_store, trees[1])
    planned = collect(file_store, lambda: [trees[1]], dry_run=True)
    assert planned.freed_bytes > 0
    assert read_all(file_store, trees[0])
    collected = collect(file_store, lambda: [trees[1]])
    assert (collected.packs, collected.missing) == (1, ())
    assert read_all(file_store, trees[1]) == wanted
    assert inspect_files(file_store, trees).missing == tuple(sorted({*trees} - {trees[1]}))
    assert collect(file_store, lambda: [trees[1]]).freed_bytes == 0


def test_a_look_after_a_collection_keeps_again_what_was_removed(file_store: FileStore, folder: Path) -> None:
    (tree,) = keep_versions(file_store, folder, 1)
    wanted = read_all(file_store, tree)
    assert collect(file_store, list).packs == 0
    assert keep(file_store, folder) == tree
    assert read_all(file_store, tree) == wanted


def test_a_tree_that_is_named_during_the_collection_stays(file_store: FileStore, folder: Path) -> None:
    trees = keep_versions(file_store, folder, 3)
    answers = iter([[trees[0]], [trees[0], trees[2]]])
    collect(file_store, lambda: next(answers))
    assert inspect_files(file_store, trees).missing == (trees[1],)


def test_nothing_is_removed_while_objects_are_open(file_store: FileStore, folder: Path) -> None:
    trees = keep_versions(file_store, folder, 2)
    with file_store.objects(), pytest.raises(Conflict):
        collect(file_store, lambda: trees[:1], wait_seconds=0)
    assert inspect_files(file_store, trees).missing == ()


def test_roots_that_are_no_trees_are_missing_and_harm_nothing(file_store: FileStore, folder: Path) -> None:
    trees = keep_versions(file_store, folder, 2)
    collected = collect(file_store, lambda: ["no id", "00" * 20, trees[0]])
    assert collected.missing == ("00" * 20, "no id")
    assert read_all(file_store, trees[0])


def test_many_packs_are_joined_and_git_finds_no_fault(file_store: FileStore, folder: Path) -> None:
    trees = keep_versions(file_store, folder, 120)
    assert len(list(file_store.packs.folder.glob("*.idx"))) <= 52
    assert len({read_all(file_store, tree)["d/changing"] for tree in trees}) == 120
    if git := shutil.which("git"):
        repository = file_store.path / "objects.git"
        subprocess.run([git, f"--git-dir={repository}", "fsck", "--full", "--strict"], check=True, capture_output=True)


def test_steps_that_change_one_file_cost_little(file_store: FileStore, folder: Path) -> None:
    """Three hundred steps of one file of 2 KB in three folders of fifty files cost less than 5 KB each."""
    for number in range(150):
        path = folder / f"{number % 3}" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * 2048)
    keep(file_store, folder)
    before = sum(path.stat().st_size for path in file_store.packs.folder.iterdir())
    for number in range(30):
        (folder / "1/1").write_bytes(number.to_bytes(4, "big") * 512)
        keep(file_store, folder, "1/1")
    after = sum(path.stat().st_size for path in file_store.packs.folder.iterdir())
    assert after - before < 30 * 6_000


def test_joining_leaves_a_large_pack_until_the_others_have_grown(
    file_store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred steps of one file write each object about twice, not the whole workspace every fifty steps."""
    (folder / "many").mkdir()
    for number in range(400):
        (folder / f"many/{number}").write_bytes(os.urandom(2048))
    keep(file_store, folder)
    (large,) = file_store.packs.folder.glob("*.pack")
    written = 0
    add = PackWriter.add

    def count_added(self: PackWriter, oid: bytes, packed: bytes) -> None:
        nonlocal written
        written += 1
        add(self, oid, packed)

    monkeypatch.setattr(PackWriter, "add", count_added)
    (folder / "d").mkdir()
    for number in range(200):
        (folder / "d/changing").write_bytes(number.to_bytes(4, "big"))
        keep(file_store, folder, "d/changing")
    packs = list(file_store.packs.folder.glob("*.pack"))
    assert large in packs
    assert len(packs) <= MAX_SMALL_PACKS + 2
    assert written <= 200 * 3 * 4, "three objects a step, each joined a few times"


def _damage_content(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[20] ^= 255
    pack.chmod(0o600)
    pack.write_bytes(data)


def _cut(pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:30])


@pytest.mark.parametrize("damage", [_damage_content, _cut])
def test_a_damaged_pack_is_found_and_its_good_objects_are_saved(
    file_store: FileStore, folder: Path, damage: Callable[[Path], None]
) -> None:
    for number in range(10):
        (folder / f"{number}").write_text(f"content {number}" * 10)
    tree = keep(file_store, folder)
    (pack,) = file_store.packs.folder.glob("*.pack")
    file_store.close()
    damage(pack)
    again = FileStore(file_store.path)
    assert inspect_files(again, [tree], full=True).damaged == (pack.name,)
    assert inspect_files(again, [tree], full=True).missing == (tree,)
    with again.objects() as objects, pytest.raises(CorruptLog):
        [read(objects, tree, f"{number}") for number in range(10)]
    assert any(text.startswith("copied ") for text in repair_files(again))
    assert inspect_files(again, []).damaged == ()
    assert keep(again, folder) == tree, "the files that were lost are read again"
    assert inspect_files(again, [tree], full=True).missing == ()
    again.close()


def test_a_damaged_index_of_a_pack_is_an_error_not_a_guess(file_store: FileStore, folder: Path) -> None:
    (tree,) = keep_versions(file_store, folder, 1)
    (index,) = file_store.packs.folder.glob("*.idx")
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    again = FileStore(file_store.path)
    assert inspect_files(again, [tree]).missing == (tree,)
    with again.objects() as objects, pytest.raises(CorruptLog):
        read(objects, tree, "same")
    again.close()


def test_nothing_is_created_by_a_check_of_a_store_that_is_not_there(tmp_path: Path) -> None:
    file_store = FileStore(tmp_path / "nothing.files")
    assert inspect_files(file_store, ["00" * 20]).missing == ("00" * 20,)
    assert collect(file_store, list).packs == 0
    assert repair_files(file_store) == []
    assert not file_store.path.exists()


def test_a_journal_keeps_its_trees_and_is_finished(file_store: FileStore, folder: Path) -> None:
    before, after = keep_versions(file_store, folder, 2)
    stopping = FileStore(file_store.path, step=_stop_at("file renamed"))
    with pytest.raises(_StoppedError), stopping.objects() as objects:
        write(stopping, objects, folder, after, before)
    stopping.close()
    assert collect(file_store, list).missing == ()
    assert inspect_files(file_store, []).journals == (str(folder),)
    assert repair_files(file_store) == [f"finished writing {folder}"]
    assert inspect_files(file_store, []).journals == ()
    assert keep(file_store, folder) == before


class _StoppedError(Exception):
    pass


def _stop_at(name: str) -> Callable[[str], None]:
    def step(current: str) -> None:
        if current == name:
            raise _StoppedError

    return step
