"""Folders that were made for forks: who has none any more is found, and what is deleted takes its folder along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bough.conversation.fork.orphans import find_orphans, remove_made
from bough.conversation.fork.workspace import make_owner_path, make_unfinished_path
from bough.events.owner import owner

pytestmark = pytest.mark.anyio

DEAD_OWNER = "from bough.events.owner import owner; print(owner())"


@pytest.fixture
async def source(start: Any, scripted: Any, tmp_path: Path) -> Any:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha")
    return await start(scripted(), workspace=folder)


def make_copy(home: Path, made_by: str) -> Path:
    """Leave what a maker leaves that was killed before the row of its fork was written."""
    making = make_unfinished_path(home, uuid4().hex)
    making.mkdir(parents=True)
    make_owner_path(making).write_text(made_by)
    return making


async def test_a_copy_whose_maker_was_killed_is_an_orphan_and_one_in_the_making_is_none(
    source: Any, settings: Any
) -> None:
    killed = subprocess.run([sys.executable, "-c", DEAD_OWNER], capture_output=True, text=True, check=True).stdout
    dead, alive = make_copy(settings.home, killed.strip()), make_copy(settings.home, owner())
    assert await find_orphans(source.store, settings.home) == [dead]
    os.utime(alive, (0, 0))
    assert set(await find_orphans(source.store, settings.home)) == {dead, alive}, "nobody copies for a day"


async def test_folders_of_the_living_and_of_others_are_none(source: Any, settings: Any) -> None:
    """A fork's own, one that a fork of it works in, one behind whose row its maker was killed, and other names."""
    fork = await source.fork(workspace="copy")
    below = await fork.fork()
    unsettled = await source.fork(workspace="copy")
    record = await source.store.get(unsettled.id)
    unsettled.workspace.rename(make_unfinished_path(settings.home, record.config["made"]))
    (settings.home / "workspaces" / "tenant").mkdir()
    assert await find_orphans(source.store, settings.home) == []
    await source.store.delete(fork.id)
    assert await find_orphans(source.store, settings.home) == [], "another one works in it"
    await source.store.delete(below.id)
    assert await find_orphans(source.store, settings.home) == [fork.workspace]


async def test_a_deleted_fork_takes_its_folder_along(source: Any, settings: Any) -> None:
    fork = await source.fork(workspace="copy")
    record = await source.store.get(fork.id)
    await source.store.delete(fork.id)
    assert await remove_made(source.store, settings.home, [record]) == [fork.workspace]
    assert not fork.workspace.exists()
    assert list((settings.home / "workspaces").iterdir()) == []
    assert (source.workspace / "a.txt").read_text() == "alpha"


async def test_a_folder_that_another_one_works_in_stays(source: Any, settings: Any) -> None:
    fork = await source.fork(workspace="copy")
    below = await fork.fork()
    record = await source.store.get(fork.id)
    await source.store.delete(fork.id)
    assert await remove_made(source.store, settings.home, [record, await source.store.get(source.id)]) == []
    assert (below.workspace / "a.txt").read_text() == "alpha"


async def test_a_fork_that_was_made_leaves_no_note_of_its_maker(source: Any, settings: Any) -> None:
    fork = await source.fork(workspace="copy")
    assert [entry.name for entry in (settings.home / "workspaces").iterdir()] == [str(fork.id)]


async def test_a_row_from_elsewhere_moves_nothing(source: Any, settings: Any, tmp_path: Path) -> None:
    """What a bundle's row says of a copy may be anything."""
    from bough.conversation.fork.workspace import finish_workspace

    (settings.home / "workspaces" / ".making-x").mkdir(parents=True)
    for nonce in ("x/../../../project", "x", 7):
        await finish_workspace(settings.home, uuid4(), nonce)  # type: ignore[arg-type]
    assert [entry.name for entry in (settings.home / "workspaces").iterdir()] == [".making-x"]
    assert (source.workspace / "a.txt").read_text() == "alpha"
