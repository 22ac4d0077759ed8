"""What is special about SQLite: files that cannot be used, full disks, damage, processes, threads, rows and bytes."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bough.errors import BoughError, CorruptLog, InvalidInput, StoreError
from bough.events import SqliteEventStore, open_store
from bough.events.model import ToolReturned, UserMessage
from bough.events.queries import migrations
from bough.events.stores.sqlite import file as store_file
from bough.types import new_id

pytestmark = pytest.mark.anyio


def message(text: str = "x") -> UserMessage:
    return UserMessage.text(text)


def big(size: int = 200_000) -> ToolReturned:
    return ToolReturned(tool_call_id="1", tool="t", result="x" * size)


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


def fill(path: Path, statement: str) -> None:
    with database(path) as db:
        db.execute(statement)


# opening


@pytest.mark.parametrize("url", ["", "sqlite:", "sqlite://", "sqlite:///", "mysql://x", "/tmp/x.db", "memory"])
async def test_a_url_that_names_no_store_is_invalid(url: str) -> None:
    with pytest.raises(InvalidInput) as error:
        await open_store(url)
    assert "sqlite:///" in error.value.hint


async def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, where in (
        ("sqlite:///rel/a.db", tmp_path / "rel/a.db"),
        (f"sqlite:///{tmp_path / 'b ü%20.db'}", tmp_path / "b ü%20.db"),
    ):
        store = await open_store(url)
        await store.create()
        await store.aclose()
        assert where.stat().st_mode & 0o777 == 0o600
        assert store.url == f"sqlite:///{where}"


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a truncated one": lambda path: path.touch(),
    "text": lambda path: path.write_text("this is not a database" * 1000),
    "another program's": lambda path: fill(path, "create table x (y)"),
    "another program's empty one": lambda path: fill(path, "pragma application_id = 7"),
    "a newer one": lambda path: fill_newer(path),
    "a file for a folder": lambda path: None,
}


def fill_newer(path: Path) -> None:
    fill(path, f"pragma application_id = {store_file.APPLICATION_ID}")
    fill(path, "pragma user_version = 99")


@pytest.mark.parametrize("what", UNUSABLE)
async def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "log.db"
    UNUSABLE[what](path)
    if what == "a file for a folder":
        (tmp_path / "file").write_text("x")
        path = tmp_path / "file" / "log.db"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as error:
        await SqliteEventStore.open(path)
    assert error.value.hint
    assert str(path) in error.value.message
    assert (path.read_bytes() if path.is_file() else None) == before


async def test_a_store_that_was_truncated_is_damaged_and_not_new(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = await SqliteEventStore.open(path)
    await store.create(events=[message()])
    await store.aclose()
    os.truncate(path, 0)
    with pytest.raises(CorruptLog, match="truncated"):
        await SqliteEventStore.open(path)
    assert path.stat().st_size == 0


async def test_of_many_who_make_a_store_all_have_the_same(tmp_path: Path) -> None:
    """It comes into place whole: whoever loses opens the winner's, and nothing else is left in the folder."""
    stores = await asyncio.gather(*(SqliteEventStore.open(tmp_path / "a" / "log.db") for _ in range(8)))
    record = await stores[0].create(events=[message()])
    assert [(await store.get(record.id)).head for store in stores] == [1] * 8
    for store in stores:
        await store.aclose()
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["log.db", "log.db-turn"]


async def test_a_store_that_may_not_be_written(tmp_path: Path) -> None:
    """`query_only` stands in for permissions, which root does not feel; SQLite says the same."""
    store = await SqliteEventStore.open(tmp_path / "log.db")
    record = await store.create(events=[message()])
    await store._write(lambda log: log.db.execute("pragma query_only = on").close())
    with pytest.raises(StoreError) as error:
        await store.append(record.id, [message()])
    assert "permissions" in error.value.hint
    assert (await store.get(record.id)).head == 1
    await store.aclose()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; the test above covers root")
async def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await (await SqliteEventStore.open(path)).aclose()
    path.chmod(0)
    with pytest.raises(StoreError) as error:
        await SqliteEventStore.open(path)
    assert error.value.hint


async def test_pragmas_and_schema(sqlite: SqliteEventStore) -> None:
    def asked(log: Any) -> list[Any]:
        pragmas = ("page_size", "journal_mode", "synchronous", "user_version", "application_id")
        return [log.db.execute(f"pragma {name}").fetchone()[0] for name in pragmas]

    newest = migrations("sqlite")[-1].version
    assert await sqlite._write(asked) == [16384, "wal", 2, newest, store_file.APPLICATION_ID]


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(create(tmp_path / "log.db"))
        except BaseException as error:
            errors.append(error)

    async def create(path: Path) -> None:
        store = await SqliteEventStore.open(path)
        await store.create()
        await store.aclose()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with database(tmp_path / "log.db") as db:
        assert db.execute("select count(*) from conversation").fetchone() == (8,)


# rows and bytes


async def test_a_plain_fork_is_one_row_of_64_bytes_at_most(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=[message() for _ in range(10_000)])
    middle = await sqlite.fork(record.id, at=9_000, events=[message()])
    await asyncio.gather(*(sqlite.fork(record.id) for _ in range(500)), *(sqlite.fork(middle.id) for _ in range(500)))
    await asyncio.gather(*(sqlite.fork(middle.id, at=70 + i % 8_000) for i in range(1000)))
    with database(sqlite.path) as db:
        sizes = [size for (size,) in db.execute(ROW_BYTES)]
        assert db.execute("select count(*) from event").fetchone() == (10_001,)
    assert len(sizes) == 2001
    assert max(sizes) <= 64


ROW_BYTES = """
select 2 + 25 + sum(case typeof(value) when 'integer' then
    case when value in (0, 1) then 0 when abs(value) < 128 then 1 when abs(value) < 32768 then 2
         when abs(value) < 8388608 then 3 when abs(value) < 2147483648 then 4
         when abs(value) < 140737488355328 then 6 else 8 end
  when 'null' then 0 else length(value) end)
from (select cid, id as value from conversation where parent is not null
      union all select cid, parent from conversation where parent is not null
      union all select cid, base from conversation where parent is not null
      union all select cid, head from conversation where parent is not null
      union all select cid, forked_from from conversation where parent is not null
      union all select cid, forked_at from conversation where parent is not null
      union all select cid, root from conversation where parent is not null
      union all select cid, generation from conversation where parent is not null
      union all select cid, deleted from conversation where parent is not null
      union all select cid, created from conversation where parent is not null
      union all select cid, updated from conversation where parent is not null
      union all select cid, digest from conversation where parent is not null
      union all select cid, end_digest from conversation where parent is not null
      union all select cid, counts from conversation where parent is not null
      union all select cid, cost_nanos from conversation where parent is not null
      union all select cid, status from conversation where parent is not null
      union all select cid, owner from conversation where parent is not null
      union all select cid, title from conversation where parent is not null
      union all select cid, tags from conversation where parent is not null
      union all select cid, config from conversation where parent is not null
      union all select cid, lineage from conversation where parent is not null)
group by cid
"""
"""SQLite's record format: two length bytes, a header byte a column, and the shortest form of each value."""


async def test_a_fork_costs_the_same_at_any_length(sqlite: SqliteEventStore) -> None:
    """Two selects and a row, whatever the size of the log; one more select where an ancestor owns the cut."""
    for size, depth in ((10, 0), (3_000, 0), (10, 3)):
        tip = (await sqlite.create(events=[message() for _ in range(size)])).id
        for _ in range(depth):
            tip = (await sqlite.fork(tip, events=[message()])).id
        statements: list[str] = []
        await sqlite._write(lambda log, to=statements: log.db.set_trace_callback(to.append))
        before = await sqlite._write(lambda log: log.db.total_changes)
        del statements[:]
        made = await sqlite.fork(tip, at=size - 5)
        count = Counter(statement.lower().split()[0] for statement in statements)
        assert await sqlite._write(lambda log: log.db.total_changes) - before == 1
        await sqlite._write(lambda log: log.db.set_trace_callback(None))
        assert count == {"begin": 1, "select": 2, "insert": 1, "commit": 1} | ({"with": 1} if depth else {})
        assert await sqlite.get(made.id) == made


async def test_appends_at_the_same_time_share_a_transaction_and_a_head(sqlite: SqliteEventStore) -> None:
    """Sixty appends to twenty conversations: one look at each, sixty events, each head once, one commit."""
    records = [await sqlite.create() for _ in range(20)]
    statements: list[str] = []
    await sqlite._write(lambda log: log.db.set_trace_callback(statements.append))
    heads = await asyncio.gather(*(sqlite.append(record.id, [message()]) for _ in range(3) for record in records))
    await sqlite._write(lambda log: log.db.set_trace_callback(None))
    assert heads == [1] * 20 + [2] * 20 + [3] * 20
    count = Counter(statement.lower().split()[0] for statement in statements)
    assert count == {
        "commit": 2,
        "begin": 2,
        "select": 20,
        "insert": 60,
        "update": 20,
    }  # one more of each for callbacks


async def test_a_bad_request_in_a_batch_harms_no_other(sqlite: SqliteEventStore) -> None:
    """All of these travel in one transaction; what comes later in it sees what came before."""
    one, other = await sqlite.create(), await sqlite.create()
    event, new_cid = message("once"), new_id()
    results = await asyncio.gather(
        sqlite.append(one.id, [event]),
        sqlite.append(other.id, [message(), event]),
        sqlite.append(one.id, [message()], expected_head=7),
        sqlite.append(new_id(), [message()]),
        sqlite.append(one.id, [message()], expected_head=1),
        sqlite.fork(one.id, at=event.id, id=new_cid),
        sqlite.append(new_cid, [message()]),
        sqlite.append(other.id, [message()]),
        return_exceptions=True,
    )
    codes = [result.code if isinstance(result, BoughError) else result for result in results]
    assert codes[:5] == [1, "conflict", "conflict", "not_found", 2]
    assert results[5].forked_at == 1
    assert codes[6:] == [2, 1]
    assert [(await sqlite.get(cid)).head for cid in (one.id, other.id, new_cid)] == [2, 1, 2]
    assert (await sqlite.check()).findings == ()


async def test_a_page_of_a_long_log_reads_only_that_page(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=[message() for _ in range(5000)])
    page = [stored async for stored in sqlite.read(record.id, 2500, 2550)]
    assert [stored.seq for stored in page] == list(range(2500, 2550))
    events, left = await sqlite._read(lambda log: log.first_page(record.id, 2500, 2550, False))
    assert (len(events), left) == (50, [])


async def test_large_events_are_read_a_few_at_a_time(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=[big(3_000_000) for _ in range(6)])
    sizes = []
    events, left = await sqlite._read(lambda log: log.first_page(record.id, 0, None, False))
    while True:
        sizes.append(sum(len(stored.raw) for stored in events))
        if not left:
            break
        events, left = await sqlite._read(lambda log, left=left: log.page(left, False))
    assert len(sizes) > 1
    assert max(sizes) < 32_000_000


# full disks


async def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The file size limit of the process is as real as a full disk, for root too."""
    store = await SqliteEventStore.open(tmp_path / "log.db")
    record = await store.create(events=[message()])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        await until_full(store, record.id)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await goes_on(store, record.id)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root; the file size limit is tested as any user")
async def test_a_full_file_system_leaves_nothing_half_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this root may not mount: {done.stderr.strip()}")
    try:
        store = await SqliteEventStore.open(small / "log.db")
        record = await store.create(events=[message()])
        await until_full(store, record.id)
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        await goes_on(store, record.id)
    finally:
        subprocess.run(["umount", "-l", small], check=True)


async def until_full(store: SqliteEventStore, cid: Any) -> None:
    for _ in range(100):
        head = (await store.get(cid)).head
        try:
            await store.append(cid, [message("small"), big(), message("after")])
        except StoreError as error:
            assert error.hint
            assert (await store.get(cid)).head == head
            assert len(await store.tail(cid, 1000)) == head
            return
    pytest.fail("the disk never filled up")


async def goes_on(store: SqliteEventStore, cid: Any) -> None:
    head = (await store.get(cid)).head
    assert await store.append(cid, [big(), message()]) == head + 2
    assert (await store.check()).findings == ()
    await store.aclose()


# damage


async def test_a_changed_payload_is_found(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=[message(str(i)) for i in range(10)])
    with database(sqlite.path) as db:
        db.execute("update event set data = x'7b7d' where k & 4294967295 = 4")
        db.execute("delete from event where k & 4294967295 = 8")
    report = await sqlite.check()
    assert [(f.conversation, f.readable) for f in report.findings] == [(record.id, ((0, 4), (5, 8), (9, 10)))]
    with pytest.raises(CorruptLog) as corrupt:
        report.require()
    assert corrupt.value.details["findings"][0]["readable"] == [[0, 4], [5, 8], [9, 10]]
    with pytest.raises(CorruptLog):
        await sqlite.export(record.id, io.BytesIO())
    bundle = io.BytesIO()
    await sqlite.export(record.id, bundle, salvage=True)
    assert bundle.getvalue().count(b'"kind"') == 8


async def test_a_flipped_byte_is_noticed_by_whoever_reads_it(tmp_path: Path) -> None:
    """SQLite does not notice it: only the digest does."""
    path = tmp_path / "log.db"
    store = await SqliteEventStore.open(path)
    record = await store.create(events=[message(f"number {i} of ten") for i in range(10)])
    fork = await store.fork(record.id, events=[message()])
    await store.aclose()
    raw = path.read_bytes()
    assert raw.count(b"number 4 of ten") == 1
    path.write_bytes(raw.replace(b"number 4 of ten", b"number 4 of tan"))
    store = await SqliteEventStore.open(path)
    for cid in (record.id, fork.id):
        for reverse in (False, True):
            with pytest.raises(CorruptLog) as corrupt:
                _ = [stored async for stored in store.read(cid, reverse=reverse)]
            assert (corrupt.value.details["lo"], corrupt.value.details["hi"]) == (4, 5)
        with pytest.raises(CorruptLog):
            await store.tail(cid, 9)
        assert len(await store.tail(cid, 5)) == 5
        assert len([stored async for stored in store.read(cid, 0, 4)]) == 4
    await store.aclose()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("update conversation set head = head + 1 where parent is null", "missing or damaged"),
        ("update conversation set base = 9, head = 9 where parent is not null", "does not own"),
        ("update conversation set parent = 77 where parent is not null", "is damaged"),
        ("update conversation set parent = null where parent is not null", "has no parent"),
        ("update conversation set root = 77 where parent is not null", "is damaged"),
        ("insert into event select 99 << 32, x'00', kind, ts, data, digest from event limit 1", "account for"),
    ],
)
async def test_a_lineage_that_does_not_add_up_is_found(sqlite: SqliteEventStore, damage: str, problem: str) -> None:
    """Each row is what was written, and together they are wrong."""
    record = await sqlite.create(events=[message() for _ in range(5)])
    fork = await sqlite.fork(record.id, at=3)
    assert (await sqlite.check()).findings == ()
    with database(sqlite.path) as db:
        db.execute(damage)
    for number in (record.number, fork.number):
        await sqlite._write(lambda log, number=number: log.run("seal", cid=number))
    findings = (await sqlite.check()).findings
    assert findings
    assert problem in " ".join(finding.problem for finding in findings)


async def test_damaged_pages_are_found_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = await SqliteEventStore.open(path)
    record = await store.create(events=[message("x" * 2000) for _ in range(200)])
    await store.aclose()
    raw = bytearray(path.read_bytes())
    middle = raw.index(b"x" * 2000, len(raw) // 3) // 16384 * 16384
    raw[middle : middle + 16384] = os.urandom(16384)
    path.write_bytes(raw)
    store = await SqliteEventStore.open(path)
    report = await store.check()
    own = next(finding for finding in report.findings if finding.conversation == record.id)
    readable = sum(hi - lo for lo, hi in own.readable)
    assert 150 < readable < 200
    with pytest.raises(CorruptLog):
        _ = [stored async for stored in store.read(record.id)]
    bundle = io.BytesIO()
    await store.export(record.id, bundle, salvage=True)
    assert bundle.getvalue().count(b'"kind"') == readable
    await store.aclose()


async def test_erased_words_leave_the_file(sqlite: SqliteEventStore) -> None:
    secret = "correct horse battery staple"
    record = await sqlite.create(events=[message(secret * 50), big()])
    await sqlite.fork(record.id)
    await sqlite.delete(record.id, "erase")
    for path in sqlite.path.parent.iterdir():
        assert secret.encode() not in path.read_bytes(), path.name


# processes, loops and threads


async def test_another_process_is_noticed(sqlite: SqliteEventStore) -> None:
    other = await SqliteEventStore.open(sqlite.path)
    record = await sqlite.create()
    tail = other.subscribe(record.id)
    async with asyncio.timeout(20):
        for seq in range(20):
            await sqlite.append(record.id, [message()])
            assert (await anext(tail)).seq == seq
        waiting = asyncio.ensure_future(anext(tail, None))
        await sqlite.delete(record.id)
        assert await waiting is None
    await other.aclose()


async def test_it_works_from_another_loop_in_another_thread(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    threads = [threading.Thread(target=lambda: asyncio.run(sqlite.append(record.id, [message()]))) for _ in range(4)]
    tail = sqlite.subscribe(record.id)
    for thread in threads:
        thread.start()
    async with asyncio.timeout(20):
        assert [(await anext(tail)).seq for _ in threads] == [0, 1, 2, 3]
    for thread in threads:
        await asyncio.to_thread(thread.join)


async def test_closing_finishes_what_was_asked_before(tmp_path: Path) -> None:
    store = await SqliteEventStore.open(tmp_path / "log.db")
    record = await store.create()
    appends = [asyncio.create_task(store.append(record.id, [message()])) for _ in range(50)]
    await asyncio.sleep(0)  # every append has been asked for
    await store.aclose()
    assert sorted(await asyncio.gather(*appends)) == list(range(1, 51))
    with pytest.raises(StoreError):
        await store.append(record.id, [message()])


async def test_a_closed_store_is_one_file_whoever_read_it(tmp_path: Path) -> None:
    """The writer closes last: a reader that does cannot take the write-ahead log into the file, nor can two at once."""
    for round in range(60):
        store = await SqliteEventStore.open(tmp_path / f"{round}.db")
        record = await store.create(events=[message(str(n)) for n in range(100)])
        assert len([stored async for stored in store.read(record.id)]) == 100
        await store.aclose()
        assert sorted(file.name for file in tmp_path.glob(f"{round}.db*")) == [f"{round}.db", f"{round}.db-turn"]


def test_an_unclosed_store_ends_with_its_last_reference(tmp_path: Path) -> None:
    async def use() -> None:
        store = await SqliteEventStore.open(tmp_path / "log.db")
        record = await store.create(events=[message()])
        assert len(await store.tail(record.id, 5)) == 1

    before = set(threading.enumerate())
    asyncio.run(use())
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


def test_an_unclosed_store_never_holds_up_the_interpreter(tmp_path: Path) -> None:
    script = f"""
import asyncio
from bough.events import open_store
store = asyncio.run(open_store("sqlite:///{tmp_path / "log.db"}"))
record = asyncio.run(store.create())
asyncio.run(store.append(record.id, []))
print(record.id)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_cancelled_append_harms_nobody(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    tasks = [asyncio.create_task(sqlite.append(record.id, [message()])) for _ in range(10)]
    await asyncio.sleep(0)  # every append has been asked for
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[3], asyncio.CancelledError)
    assert [type(result) for i, result in enumerate(results) if i != 3] == [int] * 9
    assert (await sqlite.check()).findings == ()


def test_listing_does_not_load_the_event_model(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from bough.events import open_store
async def main():
    store = await open_store("sqlite:///{tmp_path / "log.db"}")
    await store.create(); await store.list(); await store.resolve("-")
    await store.aclose()
asyncio.run(main())
print([name for name in ("pydantic", "pydantic_ai", "cryptography", "psycopg") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
