"""A store on a read-only file system: what reads works, what writes is refused, and nothing is left out."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.errors import StoreError, Unavailable
from bough.events import SqliteEventStore, open_store
from bough.events.model import UserMessage
from bough.events.side_tables import SideTables
from bough.events.stores.sqlite.file import OpenedFile

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parents[2] / "golden" / "stores"
SNAPSHOT = SideTables("snapshot", "bough.conversation.log.sql")


async def fill_closed(folder: Path) -> None:
    """All of it is in the file."""
    store = await SqliteEventStore.open(folder / "log.db")
    await store.create(events=[UserMessage.text("one")])
    record = await store.create(events=[UserMessage.text("two")])
    await store.append(record.id, [UserMessage.text("three")])
    await store.aclose()


async def fill_killed(folder: Path) -> None:
    """The last rows are in the write-ahead log alone, as a killed process leaves it."""
    made = folder / "made"
    store = await SqliteEventStore.open(made / "log.db")
    await store.create(events=[UserMessage.text("one")])
    await store._write(lambda log: None)
    with sqlite3.connect(made / "log.db") as db:
        db.execute("pragma wal_checkpoint(passive)")
    db.close()
    record = await store.create(events=[UserMessage.text("two")])
    await store.append(record.id, [UserMessage.text("three")])
    for suffix in ("", "-wal"):
        shutil.copyfile(made / f"log.db{suffix}", folder / f"log.db{suffix}")
    await store.aclose()
    shutil.rmtree(made)


async def fill_old(folder: Path) -> None:
    """Its schema is an older one, which cannot be brought up to date there."""
    db = sqlite3.connect(folder / "log.db")
    db.executescript((GOLDEN / "2.sqlite.sql").read_text("utf-8"))
    db.close()


FILLS = {"closed": (fill_closed, 2), "killed": (fill_killed, 2), "old": (fill_old, 4)}


def run_beside(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the whole file system is read-only but for an empty /tmp; the store is in /tmp/store."""
    root = str(Path(__file__).parents[3])  # it may lie below /tmp
    binds = ["--ro-bind", "/", "/", "--tmpfs", "/tmp", "--ro-bind", root, root]
    binds += ["--ro-bind", str(folder), "/tmp/store", "--dev", "/dev"]
    environment = ["--setenv", "BOUGH_HOME", "/tmp/home", "--chdir", "/tmp"]
    return subprocess.run(
        ["bwrap", *binds, "--proc", "/proc", *environment, *command], capture_output=True, text=True, check=False
    )


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("state", FILLS)
def test_reading_commands_work_and_writing_ones_say_why_not(tmp_path: Path, state: str) -> None:
    fill, count = FILLS[state]
    asyncio.run(fill(tmp_path))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    store = ("--store", "sqlite:////tmp/store/log.db")
    bough = str(Path(sys.executable).with_name("bough"))
    listed = run_beside(tmp_path, bough, "conv", "list", "--all", "--json", *store)
    assert listed.returncode == 0, listed.stderr
    found: list[Any] = json.loads(listed.stdout)["data"]["conversations"]
    assert len(found) == count
    assert listed.stderr.count("\n") == (0 if state == "closed" else 1), "a copy is told of"
    for command in (("show",), ("tail",), ("tree",), ("export", "--format", "jsonl")):
        done = run_beside(tmp_path, bough, "conv", *command, found[0]["short_id"], *store)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout
    refused = run_beside(tmp_path, bough, "conv", "tag", found[0]["short_id"], "a=b", *store)
    assert refused.returncode == 6
    assert "read-only" in refused.stderr
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


async def test_a_store_that_is_only_read_refuses_every_write(tmp_path: Path) -> None:
    await fill_closed(tmp_path)
    path = tmp_path / "log.db"
    whole = await SqliteEventStore.open(path)
    (record,) = (await whole.list(limit=1)).items
    opened = OpenedFile(path, whole._readers._file._replace(mode="mode=ro"))
    store = SqliteEventStore(opened, whole._clock)
    assert [stored.seq async for stored in store.read(record.id)] == [0, 1]
    tail = store.subscribe(record.id, 1)
    waiting = asyncio.ensure_future(anext(tail))
    for refused in (
        store.append(record.id, [UserMessage.text("x")]),
        store.create(),
        store.fork(record.id),
        store.delete(record.id),
        store.acquire(record.id, "me", 5),
    ):
        with pytest.raises(StoreError, match="read-only"):
            await refused
    with pytest.raises(Unavailable, match="no tables of snapshot"):
        await store.transaction(SNAPSHOT, lambda tables: None, read_only=True)
    await whole.append(record.id, [UserMessage.text("live")])
    async with asyncio.timeout(20):
        assert (await waiting).seq == 2, "what others write is told all the same"
    await store.aclose()
    await whole.aclose()


async def test_what_only_reads_makes_no_store(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/none/log.db", create=False)
    assert (await store.list()).items == []
    await store.aclose()
    assert list(tmp_path.iterdir()) == []
