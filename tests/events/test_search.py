"""Searching the messages of a store: what is found, in which order, and what it costs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import io
import itertools
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.events.conftest import Place

from bough.errors import BoughError, InvalidInput, StoreError, Unavailable
from bough.events import PostgresEventStore, SqliteEventStore
from bough.events.model import Event, ModelResponded, ToolReturned, UserMessage
from bough.events.record import ConversationRecord, MessageQuery, SearchHit
from bough.events.search import search as search_module
from bough.events.search.search import SEARCH, index_messages, read_message
from bough.events.search.words import SnippetCutter, find_ranges, parse_query
from bough.events.side_tables import Tables
from bough.events.store import EventStore, StoreAdmin
from bough.events.stores.sqlite.connection import StoreFile, store_error
from bough.events.stores.sqlite.file import OpenedFile
from bough.events.stores.sqlite.reading import SqliteReading
from bough.testing.postgres import drop_schema
from bough.testing.side_tables.contract import check_names
from bough.types import SystemClock, new_id

pytestmark = pytest.mark.anyio

DAY = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[EventStore]:
    async with aclosing(await place.open()) as opened:
        yield opened


def said(text: str, day: int = 0) -> UserMessage:
    return UserMessage.text(text, ts=DAY + timedelta(days=day))


def answered(text: str, day: int = 0) -> ModelResponded:
    parts = [{"part_kind": "thinking", "content": "secretly"}, {"part_kind": "text", "content": text}]
    return ModelResponded(response={"kind": "response", "parts": parts}, ts=DAY + timedelta(days=day))


async def new(store: EventStore, *events: Event | str, **fields: Any) -> UUID:
    cid = new_id()
    record = ConversationRecord(id=cid, root=cid, created=DAY, updated=DAY, **fields)
    made = [said(event) if isinstance(event, str) else event for event in events]
    return (await store.create(record, events=made)).id


async def search(store: EventStore, text: str, **fields: Any) -> list[SearchHit]:
    return (await store.search(MessageQuery(text=text, **fields))).items


async def find(store: EventStore, text: str, **fields: Any) -> list[str]:
    return [hit.snippet for hit in await search(store, text, **fields)]


async def test_a_hit_says_where_who_and_when_and_marks_the_match(store: EventStore) -> None:
    cid = await new(store, "Send the invoice\nto Zürich.", answered("It is sent to ZURICH.", 1), title="Bills")
    answer, message = await search(store, "zurich")
    assert (message.conversation, message.title, message.seq, message.who) == (cid, "Bills", 0, "user")
    assert (answer.conversation, answer.seq, answer.who, answer.when) == (cid, 1, "assistant", DAY + timedelta(days=1))
    assert message.snippet == "Send the invoice to Zürich."
    assert [message.snippet[start:end] for start, end in message.matches] == ["Zürich"]


async def test_tool_output_and_thinking_are_not_searched(store: EventStore) -> None:
    await new(store, "hello", ToolReturned(tool_call_id="1", tool="t", result="needle"), answered("done"))
    assert await find(store, "needle") == []
    assert await find(store, "secretly") == []


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("invoice", True),
        ("INVOICE due", True),
        ("invoice overdue", False),
        ('"invoice is due"', True),
        ('"due is invoice"', False),
        ("inv*", True),
        ("nvoice*", False),
        ("invoice -due", False),
        ("invoice -draft", True),
        ('invoice -"is due"', False),
        ('invoice -"due is"', True),
        ("invoice -dr*", True),
        ("invoice -du*", False),
        ("--force", True),
        ("e-mail", True),
        ("mail-e", False),
        ("naïve NAIVE", True),
        ("東京", True),
        ("京都", True),
        ("東都", False),
        ("สวัสดี", True),
        ("हिन्दी", True),
        ("हिन्दा", False),
        ("안녕", True),
        ("😀", True),
        ("😁", False),
        ("ﬁle", True),
        ("a OR b", False),
        ('"invoice is', True),
        ("invoice AND", False),
        ("(invoice)", True),
        ("^invoice:due", False),
        ("user_id", True),
    ],
)
async def test_what_a_query_matches(store: EventStore, query: str, matches: bool) -> None:
    await new(
        store,
        "The invoice is due; run e-mail --force on the naive file user_id. 東京都 สวัสดีชาวโลก हिन्दी 안녕하세요 😀",
    )
    assert bool(await find(store, query)) is matches


@pytest.mark.parametrize("query", ["", " ", "-draft", '"', '""', "*", "- -", "\0", "\ud800", "()", "::", "'", "\\"])
async def test_a_query_without_words_is_refused(store: EventStore, query: str) -> None:
    with pytest.raises(InvalidInput, match="no word"):
        await search(store, query)


@pytest.mark.parametrize(
    "query",
    [
        "NEAR(a b)", "a AND NOT b", 'a"b"c"', "words:a", "a + b", "{a b}: c", "a*b* **", "a:* & !b | c <-> d",
        "x\0y", "\ud800 a", "'a' \\ 'b'", "%s %(a)s", ":a ?", "@ @x", "a -- comment", "a; drop table event", "½ ㈠ ™",
        "\u202eabc", "a" * 1990, " ".join("a" * 100), "字" * 100, "\U0001f468\u200d\U0001f469\u200d\U0001f467", "ß İ ŉ",
    ],
)  # fmt: skip
async def test_no_query_is_an_error_of_the_database(store: EventStore, query: str) -> None:
    text = query.replace("\ud800", "").replace("\0", " ")
    await new(store, text, answered(text))
    assert len(await search(store, query)) in (0, 2)  # `-` and `*` of the query may exclude the text itself
    assert len(await search(store, f'"{text.replace(chr(34), " ")}"')) == 2


@pytest.mark.parametrize("query", ["word " * 10_000, "a" * 2001, " ".join(["a"] * 101), "字" * 101])
async def test_a_long_query_is_refused(store: EventStore, query: str) -> None:
    with pytest.raises(InvalidInput, match="more than"):
        await search(store, query)


@pytest.mark.parametrize(
    "fields", [{"limit": 0}, {"limit": 101}, {"cursor": "%%"}, {"cursor": "x"}, {"since": DAY.replace(tzinfo=None)}]
)
async def test_bad_options_are_refused(store: EventStore, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await search(store, "word", **fields)


async def test_the_newest_message_comes_first_whatever_was_appended_first(store: EventStore) -> None:
    cid = await new(store, said("word three", 3), said("word one", 1))
    assert await find(store, "word") == ["word three", "word one"]
    await store.append(cid, [said("word two", 2), said("word zero")])
    await new(store, said("word four", 4))
    assert await find(store, "word") == ["word four", "word three", "word two", "word one", "word zero"]
    assert await find(store, "word", since=DAY + timedelta(days=2)) == ["word four", "word three", "word two"]


async def test_times_beyond_what_ids_have_are_found(store: EventStore) -> None:
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    await new(store, *(UserMessage.text(f"word {moment.year}", ts=moment) for moment in times))
    assert await find(store, "word", since=times[0]) == ["word 9999", "word 1"]


async def test_pages_have_every_hit_once(store: EventStore) -> None:
    cid = await new(store, *(f"word {number}" for number in range(7)))  # all at one time
    texts, cursor = list[str](), None
    for _ in range(4):
        page = await store.search(MessageQuery(text="word", limit=2, cursor=cursor))
        texts += [hit.snippet for hit in page.items]
        cursor = page.next_cursor
        await store.append(cid, [said("word", 1)])  # newer than the page: not on later ones
    assert texts == [f"word {number}" for number in range(6, -1, -1)]
    assert cursor is None


async def test_a_long_message_is_one_hit_and_its_phrases_are_found_across_its_parts(store: EventStore) -> None:
    numbers = [f"n{number}" for number in range(9000)]
    cid = await new(store, "zebra before", " ".join(["zebra", *numbers, "zebra"]), "zebra after")
    assert [hit.seq for hit in await search(store, "zebra")] == [2, 1, 0]
    for number in (3990, 3999, 4000, 7960, 8998):
        assert [hit.seq for hit in await search(store, f'"n{number} n{number + 1}"')] == [1]
    page = await store.search(MessageQuery(text="zebra", limit=2))
    rest = await store.search(MessageQuery(text="zebra", limit=2, cursor=page.next_cursor))
    assert [hit.seq for hit in (*page.items, *rest.items)] == [2, 1, 0]
    (hit,) = await search(store, "n8998")
    assert hit.snippet.startswith("…") and [hit.snippet[start:end] for start, end in hit.matches] == ["n8998"]
    await store.append(cid, [said("x" * 100_000), said("word " * 50_000)])
    assert len(await search(store, "x" * 50)) == 1
    assert len(await search(store, "word")) == 1


async def test_a_fork_adds_its_own_messages_only(store: EventStore) -> None:
    source = await new(store, "word shared")
    fork = await store.fork(source, events=[said("word own", 1)])
    await store.fork(fork.id)
    assert [(hit.conversation, hit.seq) for hit in await search(store, "word")] == [(fork.id, 1), (source, 0)]


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("mode", ["tombstone", "erase", "cascade"])
async def test_a_deleted_conversation_is_not_found(store: EventStore, mode: Any, is_indexed: bool) -> None:
    kept = await new(store, "word kept")
    source = await new(store, "word shared", "word alone")
    await store.fork(source, at=1)
    if is_indexed:
        assert len(await search(store, "word")) == 3
    await store.delete(source, mode)
    assert [hit.conversation for hit in await search(store, "word")] == [kept]
    assert await find(store, "erased") == []


async def test_a_new_conversation_has_no_hits_of_a_deleted_one_with_its_number(store: EventStore) -> None:
    cid = await new(store, "word old")
    assert len(await search(store, "word")) == 1
    await store.append(cid, [said("word waiting")])
    await store.delete(cid)
    again = await new(store, "word new")
    assert [(hit.conversation, hit.snippet) for hit in await search(store, "word")] == [(again, "word new")]


async def test_an_imported_conversation_is_found(store: StoreAdmin) -> None:
    cid = await new(store, "word exported")
    assert len(await search(store, "word")) == 1  # the index is there already
    bundle = io.BytesIO()
    await store.export(cid, bundle)
    await store.delete(cid)
    assert await find(store, "word") == []
    bundle.seek(0)
    await store.import_(bundle)
    assert await find(store, "word") == ["word exported"]


async def test_tags_project_and_owner_narrow_a_search(store: EventStore) -> None:
    await new(store, "word a", tags={"team": "red", "x": "1"}, project="p")
    blue = await new(store, "word b", tags={"team": "blue"}, owner="blue")
    await store.fork(blue, events=[said("word fork", 1)], owner="blue")
    assert await find(store, "word", tags={"team": "red"}) == ["word a"]
    assert await find(store, "word", tags={"team": "red", "x": "2"}) == []
    assert await find(store, "word", project="p") == ["word a"]
    assert await find(store, "word", owner="blue") == ["word fork", "word b"]
    assert await find(store, "word", owner="red") == []
    assert await find(store, "word", unowned=True) == ["word a"]


async def test_a_rare_tag_is_found_behind_many_other_hits(store: EventStore) -> None:
    await new(store, "word old", tags={"team": "red"})
    await new(store, *(said("word", 1) for _ in range(50)))
    page = await store.search(MessageQuery(text="word", tags={"team": "red"}, limit=3))
    assert [hit.snippet for hit in page.items] == ["word old"]
    assert page.next_cursor is None


async def test_concurrent_first_searches_find_everything(
    place: Place, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_COLLECTED_EVENTS", 7)
    monkeypatch.setattr(search_module, "_BATCH_MESSAGES", 5)
    cid = await new(store, *(f"word {number}" for number in range(60)))
    async with aclosing(await place.open()) as other:
        both = asyncio.gather(*(search(each, "word", limit=100) for each in (store, other, store, other)))
        await store.append(cid, [said("word late")])
        for hits in await both:
            assert len(hits) >= 60
    assert len(await search(store, "word", limit=100)) == 61


async def test_the_progress_of_the_first_search_is_reported(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "_BATCH_MESSAGES", 2)
    await new(store, *("word" for _ in range(5)))
    steps = list[tuple[int, int]]()
    await store.search(MessageQuery(text="word"), on_indexed=lambda done, total: steps.append((done, total)))
    assert steps == [(2, 5), (4, 5), (5, 5)]
    await store.search(MessageQuery(text="word"), on_indexed=lambda done, total: steps.append((done, total)))
    assert len(steps) == 3


async def test_a_damaged_or_missing_message_does_not_stop_the_search(store: EventStore) -> None:
    await new(store, ModelResponded(response={}), ModelResponded(response={"parts": [{}]}), "word")
    assert await find(store, "word") == ["word"]


async def test_a_change_that_fails_while_indexing_leaves_the_messages_waiting(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new(store, "word")

    def fail(*_: object) -> str:
        raise BoughError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(search_module, "read_message", fail)
        with pytest.raises(BoughError, match="broken"):
            await search(store, "word")
    assert await find(store, "word") == ["word"]


async def test_an_append_runs_no_more_statements_with_an_index_and_writes_a_row_per_message(
    sqlite: SqliteEventStore,
) -> None:
    costs = list[tuple[int, Counter[str]]]()
    for is_indexed in (False, True):
        cid = await new(sqlite, "word")
        if is_indexed:
            await search(sqlite, "word")
        statements = list[str]()
        rows = await sqlite._write(lambda log: log.db.total_changes)
        await sqlite._write(lambda log, to=statements: log.db.set_trace_callback(to.append))
        output = ToolReturned(tool_call_id="1", tool="t", result="x")
        await sqlite.append(cid, [said("word"), answered("word"), output])
        await sqlite._write(lambda log: log.db.set_trace_callback(None))
        rows = await sqlite._write(lambda log, before=rows: log.db.total_changes - before)
        # The steps of a trigger are traced as the statement that they belong to, once more.
        costs.append((rows, Counter(each.split()[0] for each in set(statements))))
    assert costs[1] == (costs[0][0] + 2, costs[0][1])


async def test_an_append_before_the_first_search_writes_nothing_for_it(sqlite: SqliteEventStore) -> None:
    await new(sqlite, "word")
    assert await sqlite._read(lambda log: log.one("beside_version", package="search")) is None


async def merge(store: SqliteEventStore) -> None:
    """Index everything in one segment: a search reads each, and their number is the logarithm of the store."""
    await search(store, "rare")
    await store.transaction(SEARCH, lambda tables: tables.connection.execute(OPTIMIZE))


OPTIMIZE = "insert into search_words (search_words) values ('optimize')"


async def count_steps(store: SqliteEventStore, text: str, **fields: Any) -> tuple[int, int]:
    """Return the steps of SQLite's virtual machine and the statements of a search."""
    steps, statements = list[None](), list[str]()

    def count() -> int:
        steps.append(None)
        return 0

    def watch(log: SqliteReading) -> None:
        log.db.set_progress_handler(count, 1)
        log.db.set_trace_callback(statements.append)

    await store._read(watch)
    await search(store, text, **fields)
    await store._read(lambda log: (log.db.set_progress_handler(None, 0), log.db.set_trace_callback(None)))
    return len(steps), len(statements)


async def test_a_search_costs_its_hits_whatever_the_store_has(sqlite: SqliteEventStore) -> None:
    """The same hits among 100 and 3,000 messages, of others and of one's own: about as many steps."""
    await new(sqlite, *(said("common rare" if number < 5 else "common", number) for number in range(60)), owner="me")
    queries: list[dict[str, Any]] = [
        {"text": "rare", "owner": "me"}, {"text": "rare"}, {"text": "common", "owner": "me"},
        {"text": '"common rare"', "since": DAY + timedelta(days=2)},
    ]  # fmt: skip
    await merge(sqlite)
    before = [await count_steps(sqlite, **query) for query in queries]
    for _ in range(10):
        await new(sqlite, *(said("common", -number) for number in range(300)), owner="other")
        await new(sqlite, *(said("common", -number) for number in range(300)), owner="me")
    await merge(sqlite)
    after = [await count_steps(sqlite, **query) for query in queries]
    for (steps, statements), (steps_before, statements_before) in zip(after, before, strict=True):
        assert steps <= 1.2 * steps_before
        assert statements <= statements_before + 2  # where the documents of a word fill several pages


async def test_windows_of_the_newest_documents_leave_no_hit_out(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_FIRST_WINDOW", 3)
    monkeypatch.setattr(search_module, "_MAX_WINDOW", 7)
    steps = (1, 2, 5, 13)
    texts = [" ".join(f"word{step}" for step in steps if number % step == 0) for number in range(40)]
    await new(store, *(said(f"{text} {number}", number) for number, text in enumerate(texts)))
    for step, limit in itertools.product(steps, (1, 4, 100)):
        page = await store.search(MessageQuery(text=f"word{step}", limit=limit))
        hits = page.items
        while page.next_cursor is not None:
            page = await store.search(MessageQuery(text=f"word{step}", limit=limit, cursor=page.next_cursor))
            hits += page.items
        assert [hit.seq for hit in hits] == list(range(39 - 39 % step, -1, -step))
    hits = await search(store, "word1 -word2", since=DAY + timedelta(days=33))
    assert [hit.seq for hit in hits] == [39, 37, 35, 33]


class WatchedTables:
    """Side tables that note the statements, and how many of the newest documents they compare."""

    def __init__(self, tables: Tables) -> None:
        self.connection = tables.connection
        self.statements = list[tuple[str, int | None]]()
        self._tables = tables

    def run(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        self.statements.append((name, parameters.get("window")))
        return self._tables.run(name, **parameters)


@pytest.mark.needs("postgres")
async def test_postgres_sorts_the_matches_of_rare_words_only(postgres: str) -> None:
    schema, texts = f"test_{new_id().hex}", ["often seldom" if number % 25 == 0 else "often" for number in range(1000)]

    async def read(store: EventStore, word: str) -> tuple[int, list[tuple[str, int | None]]]:
        """Return the number of matches, and the statements with the size of each window."""
        fields = {"words": f"'{word}'", "oldest": 0, "any_owner": True, "owner": None, "project": None}

        def read_matching(tables: Tables) -> tuple[int, list[tuple[str, int | None]]]:
            watched = WatchedTables(tables)
            rows = search_module._read_matching(cast("Tables", watched), 1 << 62, 21, fields)
            return len(rows), watched.statements

        return await store.transaction(SEARCH, read_matching, read_only=True)

    async with aclosing(await PostgresEventStore.open(postgres, schema=schema)) as store:
        await new(store, *(said(text, number) for number, text in enumerate(texts)))
        await index_messages(store)
        assert await read(store, "often") == (21, [("search.matching_newest", 100)])
        assert await read(store, "seldom") == (21, [("search.matching_newest", 100), ("search.matching_newest", 1050)])
        assert await read(store, "never") == (0, [("search.matching_newest", 100), ("search.matching", None)])
    drop_schema(postgres, schema)


async def test_erasing_leaves_no_word_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with aclosing(await SqliteEventStore.open(path)) as store:
        for number in range(30):  # several segments of the index
            await new(store, f"kept{number} message", "other text")
            assert await find(store, f"kept{number}")
        secret = await new(store, "pineapples forever", "waiting")
        fork = await store.fork(secret, events=[said("own")])
        assert await find(store, "pineapples")
        await store.append(secret, [said("artichokes")])
        await store.delete(secret, "erase")
        assert await find(store, "pineapples") == []
        assert await find(store, "kept7") == ["kept7 message"]
        assert (await store.get(fork.id)).head == 3
    content = path.read_bytes()
    assert b"kept7" in content
    assert [word for word in (b"pineapples", b"forever", b"waiting", b"artichokes") if word in content] == []


async def test_a_store_that_cannot_be_written_is_searched_once_it_has_an_index(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with aclosing(await SqliteEventStore.open(path)) as store:
        cid = await new(store, "word")
    async with aclosing(await open_read_only(path)) as store:
        with pytest.raises(Unavailable, match="read-only"):
            await search(store, "word")
    async with aclosing(await SqliteEventStore.open(path)) as store:
        assert await find(store, "word") == ["word"]
    async with aclosing(await open_read_only(path)) as store:
        assert await find(store, "word") == ["word"]
    async with aclosing(await SqliteEventStore.open(path)) as store:
        await store.append(cid, [said("word")])
    async with aclosing(await open_read_only(path)) as store:
        with pytest.raises(StoreError, match="read-only"):
            await search(store, "word")


async def open_read_only(path: Path) -> SqliteEventStore:
    return SqliteEventStore(OpenedFile(path, StoreFile(path, "mode=ro")), SystemClock())


def test_sqlite_without_a_module_is_an_error_with_a_hint() -> None:
    with closing(sqlite3.connect(":memory:")) as db, pytest.raises(sqlite3.OperationalError) as raised:
        db.execute("create virtual table x using fts0 (y)")
    error = store_error(Path("log.db"), raised.value)
    assert (error.code, "FTS5" in error.hint) == ("unavailable", True)


def test_the_names_of_the_index_begin_with_its_package() -> None:
    check_names(SEARCH)


async def test_an_erasure_while_its_message_is_indexed_leaves_nothing(
    place: Place, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion begins after the text was read, and ends after the batch: the words go with it."""
    cid = await new(store, "pineapple")
    loop, deletions = asyncio.get_running_loop(), list[Future[None]]()
    async with aclosing(await place.open()) as other:

        def read_and_delete(kind: str, data: bytes) -> str:
            deletions.append(asyncio.run_coroutine_threadsafe(other.delete(cid, "erase"), loop))
            with pytest.raises(TimeoutError):
                deletions[0].result(timeout=0.5)
            return read_message(kind, data)

        with monkeypatch.context() as patched:
            patched.setattr(search_module, "read_message", read_and_delete)
            await search(store, "other")
        await asyncio.wrap_future(deletions[0])
    documents = await store.transaction(SEARCH, lambda tables: count_documents(tables, "search_doc"), read_only=True)
    assert documents == 0


def count_documents(tables: Tables, table: str) -> int:
    return tables.connection.execute(f"select count(*) from {table}").fetchone()[0]


@given(
    text=st.text(st.sampled_from("abAB_1 -.\n"), max_size=400) | st.text(st.sampled_from("x "), max_size=300),
    query=st.text(st.sampled_from('ab1_x* "'), min_size=1, max_size=60),
)
def test_a_snippet_marks_what_the_words_of_the_text_match(text: str, query: str) -> None:
    """ASCII texts are searched by patterns, all others word by word: both find the same."""
    try:
        terms = parse_query(query)
    except InvalidInput:
        return
    cutter, tail = SnippetCutter(terms), "." * 300 + "é"
    ranges = find_ranges(text, terms.required)
    snippet, by_words = cutter.cut(text + tail[:-1]), cutter.cut(text + tail)
    assert snippet == by_words
    assert bool(snippet.matches) == bool(ranges)
