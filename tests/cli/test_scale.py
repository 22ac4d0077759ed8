"""What commands cost on long logs and in full stores: rows that are read, and memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from bough.events import SqliteEventStore
from bough.events.check import check
from bough.events.model import ModelResponded, Usage, UserMessage
from bough.events.stores.sqlite.connection import StoreFile, connect

MEGABYTE = 1 << 20

NUMBERS = """
create temp table generate_numbers as
with recursive n (value) as (select 2 union all select value + 1 from n where value < ? - 1) select value from n
"""
FILL = """
insert into event (k, id, kind, ts, data, digest)
with row (seq, id) as (
  select value, unhex_text(printf('0199%028x', value)) from generate_numbers)
select 1 << 32 | seq, id, kind, ts, data, event_digest(id, kind, ts, data) from row join (
  select k & 1 as parity, kind, ts, data from event) on parity = seq & 1
"""


class Used(NamedTuple):
    """What a command came to."""

    code: int
    peak_bytes: int
    stdout: bytes


def fill(path: Path, events: int) -> None:
    """Make a store with one conversation of so many events, messages and their answers, written by SQL."""
    from zlib import crc32

    part = {"part_kind": "text", "content": "an answer of a usual length, say a hundred characters " * 2}
    answer = {"kind": "response", "model_name": "m", "parts": [part], "timestamp": "2026-01-01T00:00:00Z"}

    async def make() -> None:
        store = await SqliteEventStore.open(path)
        said = UserMessage.text("a message of a usual length, say a hundred characters " * 2)
        await store.create(events=[said, ModelResponded(response=answer, model="m", usage=Usage(requests=1))])
        await store.aclose()

    asyncio.run(make())
    with closing(connect(StoreFile(path))) as db:
        db.create_function("event_digest", 4, lambda id, kind, ts, data: crc32(id + f"{kind}{ts}".encode() + data))
        db.execute("pragma synchronous = off")
        db.execute("begin")
        db.execute(NUMBERS, (events,))
        db.execute(FILL)
        db.execute("update conversation set head = ? where cid = 1", (events,))
        seal(db)
        db.execute("commit")


def seal(db: sqlite3.Connection) -> None:
    from bough.events.queries import queries

    for (number,) in db.execute("select cid from conversation").fetchall():
        db.execute(queries("sqlite")["seal"], {"cid": number})


USE = """
import sys
from pathlib import Path
from bough.cli.main import run
code = run(sys.argv[2:])
status = Path("/proc/self/status").read_text().splitlines()
Path(sys.argv[1]).write_text(next(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""


def use(folder: Path, *command: str) -> Used:
    """Run bough and return its exit code, the most memory it had, and what it said."""
    output, peak = folder / "stdout", folder / "peak"
    environment = os.environ | {"BOUGH_HOME": str(folder / "home"), "BOUGH_STORE": f"sqlite:///{folder / 'log.db'}"}
    with output.open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", USE, peak, *command], stdout=stdout, cwd=folder, env=environment, check=False
        )
    return Used(done.returncode, int(peak.read_text()) * 1024, output.read_bytes())


COMMANDS = {
    "show": ("conv", "show", "-"),
    "show --json": ("conv", "show", "-", "--json"),
    "show --all": ("conv", "show", "-", "--all"),
    "export jsonl": ("conv", "export", "-", "--format", "jsonl"),
    "export md": ("conv", "export", "-", "--format", "md"),
    "export bundle": ("conv", "export", "-"),
}


def test_a_long_log_is_shown_and_exported_in_bounded_memory(tmp_path: Path) -> None:
    """As a list of events, forty thousand of them would be another hundred megabytes."""
    events, most = 40_000, 110 * MEGABYTE
    fill(tmp_path / "log.db", events)
    for name, command in COMMANDS.items():
        used = use(tmp_path, *command)
        assert used.code == 0, name
        assert used.peak_bytes < most, f"{name}: {used.peak_bytes / MEGABYTE:.0f} MB"
        whole = "export" in name or "--all" in name
        assert (len(used.stdout) > events * 50) == whole, name


@pytest.mark.slow
def test_a_long_log_is_forked_continued_and_imported_in_bounded_memory(tmp_path: Path) -> None:
    """Its events are read a page at a time and kept by nobody, whether its state is kept or made for the first time."""
    events = 40_000
    fill(tmp_path / "log.db", events)
    assert use(tmp_path, "conv", "export", "-", "-o", "log.bundle").code == 0
    mine = ("--store", f"sqlite:///{tmp_path / 'other.db'}")
    for command, most in (
        (("fork", "-"), 105),
        (("fork", "-"), 65),
        (("resume", "-"), 125),
        (("conv", "import", "log.bundle", *mine), 105),
        (("conv", "import", "log.bundle", *mine), 105),
    ):
        used = use(tmp_path, *command)
        assert used.code == 0, command
        assert used.peak_bytes < most * MEGABYTE, f"{command}: {used.peak_bytes / MEGABYTE:.0f} MB"
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        assert db.execute("select count(*), max(imported) from event, conversation").fetchone() == (events, events)


def test_a_page_of_a_long_log_is_shown(tmp_path: Path) -> None:
    """The last 200 events, or 200 from a place on; the cursor leads through all of them."""
    import json

    fill(tmp_path / "log.db", 450)

    def page(*options: str) -> tuple[list[int], int | None]:
        data = json.loads(use(tmp_path, "conv", "show", "-", "--json", *options).stdout)["data"]
        return [event["seq"] for event in data["events"]], data["next_cursor"]

    assert page() == (list(range(250, 450)), None)
    assert page("--from", "0") == (list(range(200)), 200)
    assert page("--from", "400") == (list(range(400, 450)), None)
    assert page("--from", "10", "--to", "12") == ([10, 11], None)
    lines = use(tmp_path, "conv", "show", "-", "--all", "--json").stdout.splitlines()
    assert [json.loads(line).get("event", {}).get("seq") for line in lines] == [None, *range(450)]
    said = use(tmp_path, "conv", "show", "-").stdout.decode()
    assert "… 250 events before; --from 0, or --all" in said


@pytest.mark.anyio
async def test_looking_at_a_full_store_is_linear(tmp_path: Path) -> None:
    """Statements are counted: two scans by number, and a look at the events of each conversation that has some."""
    path, count = tmp_path / "log.db", 1_200
    store = await SqliteEventStore.open(path)
    await store.create(events=[UserMessage.text("x")])
    await store.aclose()
    with closing(connect(StoreFile(path))) as db:
        db.execute("begin")
        db.execute(
            "with recursive n (value) as (select 2 union all select value + 1 from n where value < ?)"
            " insert into conversation (cid, id, base, head, generation, deleted, created)"
            " select value, unhex_text(printf('0199%028x', value)), 0, 0, 0, 0, value from n", (count,),
        )  # fmt: skip
        seal(db)
        db.execute("commit")
    store = await SqliteEventStore.open(path)
    statements: list[str] = []
    await store._readers.run(lambda log: log.db.set_trace_callback(statements.append))
    told: list[tuple[int, int]] = []
    found = await check(store, lambda *at: told.append(at))
    assert told == [(500, count), (1000, count)]
    assert (found.conversations, found.events, found.findings) == (count, 1, ())
    assert len(statements) <= 20 + 2 * (count // 500 + 2)
    await store.aclose()
    assert use(tmp_path, "doctor").peak_bytes < 200 * MEGABYTE
