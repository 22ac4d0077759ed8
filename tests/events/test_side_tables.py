"""Tables beside the log where a process dies, and the folder of `memory:` where one did."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bough.events import SqliteEventStore, open_store
from bough.events.owner import is_gone, owner
from bough.testing.side_tables import NOTES
from bough.testing.side_tables.contract import count_notes
from bough.testing.store.reading import make_messages

pytestmark = pytest.mark.anyio

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from bough.events import PostgresEventStore, SqliteEventStore
from bough.testing.side_tables import NOTES
from bough.testing.side_tables.contract import write_note
from bough.testing.store.reading import make_messages

async def main(url, schema, after):
    sqlite = url.startswith("sqlite:///")
    store = await (SqliteEventStore.open(Path(url.removeprefix("sqlite:///"))) if sqlite
                   else PostgresEventStore.open(url, schema=schema))
    root = await store.create()

    def change(tables):
        write_note(root.id)(tables)
        tables.append(root.id, make_messages("a"))
        if after == "inside":
            os.kill(os.getpid(), signal.SIGKILL)

    await store.transaction(NOTES, change)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("when", "left"), [("inside", 0), ("after", 1)])
async def test_a_killed_change_is_wholly_there_or_not(place: Any, when: str, left: int) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, *place, when], check=False)
    assert process.returncode == -signal.SIGKILL
    store = await place.open()
    assert await count_notes(store) == left
    assert (await store.census()).events == left
    await store.aclose()


def test_an_owner_is_gone_only_when_its_process_certainly_is() -> None:
    me = owner()
    form, boot, namespace, pid, nonce, host = me.split("/")
    assert (form, pid) == ("2", str(os.getpid()))
    assert not is_gone(me)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    free = str(ended.pid)
    assert is_gone("/".join((form, boot, namespace, free, nonce, host)))
    assert is_gone("/".join((form, boot, namespace, free, nonce, "another host")))
    for other in (
        "/".join((form, "another boot", namespace, free, nonce, host)),
        "/".join((form, boot, "another namespace", free, nonce, host)),
        "/".join((form, "", "", free, nonce, host)),
        "/".join((form, boot, namespace, "0", nonce, host)),
        "/".join((form, boot, namespace, "x", nonce, host)),
        "/".join((form, boot, namespace, "9" * 30, nonce, host)),
        f"{host}/{free}/12345/{nonce}",
        "",
    ):
        assert not is_gone(other), other


def test_a_zombie_counts_as_alive() -> None:
    form, boot, namespace, _, nonce, host = owner().split("/")
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_gone("/".join((form, boot, namespace, str(child.pid), nonce, host)))
    child.wait()


async def test_memory_is_a_private_folder_that_ends_with_its_use(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = await open_store("memory:")
    assert isinstance(store, SqliteEventStore)
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert store.url == "memory:"
    assert await store._write(lambda log: log.db.execute("pragma synchronous").fetchone()) == (0,)
    other = await open_store("memory:")
    await store.create(events=make_messages("a"))
    assert (await other.census()).events == 0
    await store.aclose()
    await other.aclose()
    assert list(tmp_path.iterdir()) == []


LEFT = """
import asyncio, os, signal
from bough.events import open_store

async def main():
    store = await open_store("memory:")
    await store.create()
    {end}

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "pass"])
async def test_what_a_process_left_in_memory_is_removed(tmp_path: Path, monkeypatch: Any, end: str) -> None:
    """At its exit, or, when it was killed, by the next store of that kind."""
    run = {"args": [sys.executable, "-c", LEFT.format(end=end)], "env": os.environ | {"TMPDIR": str(tmp_path)}}
    subprocess.run(**run, check=False)
    assert len(list(tmp_path.iterdir())) == (end != "pass")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await (await open_store("memory:")).aclose()
    assert list(tmp_path.iterdir()) == []


async def test_statements_of_a_change_do_not_grow_with_the_log(sqlite: SqliteEventStore) -> None:
    root = await sqlite.create()
    counts: list[int] = []
    for size in (1, 2_000):
        await sqlite.append(root.id, make_messages(*range(size)))
        await count_notes(sqlite)
        statements: list[str] = []
        await sqlite._write(lambda log, to=statements: log.db.set_trace_callback(to.append))

        def change(tables: Any) -> None:
            tables.run("note.insert", id=root.id, cid=tables.number(root.id), text="x", at=0)
            tables.run("note.raise", id=root.id)
            tables.append(root.id, make_messages("a"))
            tables.connection.execute("delete from note")

        await sqlite.transaction(NOTES, change)
        await sqlite._write(lambda log: log.db.set_trace_callback(None))
        counts.append(len(statements))
    assert counts[0] == counts[1]


async def test_a_forked_child_is_told_that_the_store_is_its_parents(place: Any) -> None:
    """Its threads are the parent's: a call that waited for them would never end."""
    store = await place.open()
    record = await store.create()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"nothing"
        try:
            store._check_open()
        except Exception as error:
            answer = type(error).__name__.encode()
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 100) == b"Unavailable"
    os.close(reading)
    os.close(writing)
    assert (await store.get(record.id)).head == 0
    await store.aclose()
