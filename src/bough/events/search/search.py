"""Search over the messages of a store: an index beside the log, which catches up when someone searches.

A store has no index until its first search, which creates the index and adds all messages in batches, between which
other writers commit. From then on, a trigger adds each new message to a queue, and the next search indexes the queue
first. So an append writes one narrow row for each message, and does not split text into words.

Only a conversation's own events are indexed, so that a message which forks share is one hit, in the conversation that
has it. The index has what the log has: masked secrets are masked. Its rows go with the events, by triggers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import pydantic_core

from bough.errors import InvalidInput
from bough.events.codec import ERASED
from bough.events.draft import load
from bough.events.record import (
    MessageQuery,
    OnIndexed,
    SearchHit,
    SearchPage,
    decode_cursor,
    encode_cursor,
    microseconds,
    moment,
)
from bough.events.search.words import SnippetCutter, Term, Terms, list_words, parse_query
from bough.events.side_tables import SideTables, Tables
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.store import EventStore

SEARCH = SideTables("search", "bough.events.search")
"""The index of messages."""

MAX_HITS: Final = 100

_COLLECTED_EVENTS: Final = 2000
_BATCH_MESSAGES: Final = 200
_BATCH_BYTES: Final = 256 << 10
"""Limits of one transaction of the index, so that other writers wait for tens of milliseconds at most."""

_PART_WORDS: Final = 4000
_SHARED_WORDS: Final = 32
"""Words of a part that the next one repeats, so that phrases at the border are found."""

_MAX_PARTS: Final = 1000
_MOST_MATCHES: Final = 2000
_FIRST_WINDOW: Final = 100
_MAX_WINDOW: Final = 2000
"""Numbers of the newest documents that a search on Postgres compares with the query before it asks the index."""

_ID_BITS: Final = 10
_MAX_MOMENT: Final = (1 << 53) - (1 << 20)
"""The latest moment of an id. Above it is room for messages that do not fit into the ids of their own moment."""

_MAX_ID: Final = (1 << 63) - 1


class _Candidate(NamedTuple):
    """A document that matches, in a row of `matching`."""

    id: int
    part: int
    number: int
    seq: int
    conversation: bytes
    title: str | None
    tags: str | None


class _Message(NamedTuple):
    """A message in a row of `messages`."""

    number: int
    seq: int
    kind: str
    ts: int
    data: bytes
    owner: str | None


async def search_messages(store: EventStore, query: MessageQuery, *, on_indexed: OnIndexed | None = None) -> SearchPage:
    """Return the messages that match, after indexing those that are not indexed yet. See `EventStore.search`."""
    terms = parse_query(query.text)
    if not 1 <= query.limit <= MAX_HITS:
        raise InvalidInput(f"the limit is {query.limit}", hint=f"give a number from 1 to {MAX_HITS}")
    if query.since is not None and query.since.tzinfo is None:
        raise InvalidInput("since has no time zone", hint="for example datetime.now(UTC) - timedelta(days=7)")
    cursor = decode_cursor(query.cursor)
    before = _MAX_ID if cursor is None else cursor[0]

    def find(tables: Tables) -> SearchPage:
        return _find_page(tables, query, terms, before)

    def find_if_indexed(tables: Tables) -> SearchPage | None:
        return None if _first(tables, "search.pending") else find(tables)

    page = await store.transaction(SEARCH, find_if_indexed, read_only=True)
    if page is None:
        await index_messages(store, on_indexed=on_indexed)
        page = await store.transaction(SEARCH, find, read_only=True)
    return page


async def index_messages(store: EventStore, *, on_indexed: OnIndexed | None = None) -> None:
    """Index the messages that are not indexed yet, in transactions of tens of milliseconds.

    Args:
        on_indexed: Called after each transaction.

    Raises:
        StoreError: The store is read-only.
    """
    is_collected = await store.transaction(SEARCH, lambda tables: tables.one("search.build") is None, read_only=True)
    while not is_collected:
        is_collected = not await store.transaction(SEARCH, _collect)
    done, total = 0, await store.transaction(SEARCH, lambda tables: _first(tables, "search.waiting"), read_only=True)
    while done < total and (count := await store.transaction(SEARCH, _index_batch)):
        done += count
        if on_indexed is not None:
            on_indexed(done, total)


def _first(tables: Tables, name: str) -> Any:
    row = tables.one(name)
    return None if row is None else row[0]


def _collect(tables: Tables) -> bool:
    """Let the next older messages wait for the index. Returns whether there are more."""
    tables.run("search.lock")
    position = tables.one("search.build")
    if position is None:
        return False
    position_and_limit = {"cid": position[0], "seq": position[1], "limit": _COLLECTED_EVENTS}
    tables.run("search.collect", **position_and_limit)
    following = tables.one("search.next_build", **position_and_limit)
    if following is None:
        tables.run("search.end_build")
        return False
    tables.run("search.advance_build", cid=following[0], seq=following[1])
    return True


def _index_batch(tables: Tables) -> int:
    """Index the next messages and return their number; 0 if none waits."""
    tables.run("search.lock")
    waiting = tables.run("search.peek", limit=_BATCH_MESSAGES)
    batch, missing, size = list[tuple[int, int]](), list[tuple[int, int]](), 0
    for cid, seq, size_bytes, is_indexed in waiting:
        if batch and size + size_bytes > _BATCH_BYTES:
            break
        batch.append((cid, seq))
        size += size_bytes
        if not is_indexed:
            missing.append((cid, seq))
    if not batch:
        return 0
    tables.run("search.take", keys=json.dumps(batch))
    keys = json.dumps(missing)
    # Before the texts are read: an erasure in between would leave the words of what it erased.
    tables.run("search.hold", keys=keys)
    messages = [_Message(*row) for row in tables.run("search.messages", keys=keys)]
    documents = _make_documents(tables, messages)
    if documents:
        text = json.dumps(documents, ensure_ascii=False)
        tables.run("search.add_documents", documents=text)
        tables.run("search.add_words", documents=text)
    return len(batch)


def _make_documents(tables: Tables, messages: Sequence[_Message]) -> list[tuple[int, int, int, int, str]]:
    """Return the rows `(id, cid, seq, part, words)` of some messages."""
    sqlite = _is_sqlite(tables)
    ids = _Ids(tables, [message.ts for message in messages])
    documents = list[tuple[int, int, int, int, str]]()
    for message in messages:
        words = list_words(read_message(message.kind, message.data))
        starts = range(0, max(1, len(words) - _SHARED_WORDS), _PART_WORDS - _SHARED_WORDS)[:_MAX_PARTS] if words else ()
        first = ids.take(message.ts, len(starts)) if starts else 0
        for part, start in enumerate(starts):
            document = [_name_owner(message.owner), *words[start : start + _PART_WORDS]]
            text = " ".join(document) if sqlite else _make_vector(document)
            documents.append((first + part, message.number, message.seq, part, text))
    return documents


def read_message(kind: str, data: bytes) -> str:
    """Return the text of a message or of a model's answer; empty if it has none, or was erased."""
    try:
        payload = pydantic_core.from_json(data)
        if kind == "UserMessage":
            texts = [part["text"] for part in payload["content"] if part["type"] == "text"]
        else:
            texts = [part["content"] for part in payload["response"]["parts"] if part["part_kind"] == "text"]
        text = "\n".join(texts)
    except (ValueError, KeyError, TypeError):
        return ""  # a damaged event, which `bough doctor` reports; the others are searched
    return "" if text == ERASED else text


class _Ids:
    """Chooses ids of documents: the time of the message, then a number among those of the same microsecond."""

    def __init__(self, tables: Tables, times: Sequence[int]) -> None:
        self._tables = tables
        self._last: dict[int, int | None] = {}
        self._read({_clamp(ts) for ts in times})

    def take(self, ts: int, count: int) -> int:
        """Return the first of `count` consecutive unused ids."""
        bucket = _clamp(ts)
        while True:
            if bucket not in self._last:
                self._read({bucket})
            last = self._last[bucket]
            first = bucket << _ID_BITS if last is None else last + 1
            if first + count <= (bucket + 1) << _ID_BITS:
                self._last[bucket] = first + count - 1
                return first
            bucket += 1  # this microsecond has no more ids

    def _read(self, buckets: set[int]) -> None:
        self._last |= {ts: last for ts, last in self._tables.run("search.last", times=json.dumps(sorted(buckets)))}


def _clamp(ts: int) -> int:
    return max(0, min(ts, _MAX_MOMENT))


def _is_sqlite(tables: Tables) -> bool:
    import sqlite3

    return isinstance(tables.connection, sqlite3.Connection)


def _name_owner(owner: str | None) -> str:
    """Return the word that every document of an owner has, so that a search reads no others. No text has such words."""
    return "@" if owner is None else f"@{sha256(owner.encode()).hexdigest()[:20]}"


def _make_vector(words: Sequence[str]) -> str:
    """Return a document for Postgres. Words have no quotes and no backslashes."""
    return " ".join(f"'{word}':{position}" for position, word in enumerate(words, 1))


def _make_match(required: Sequence[Term], excluded: Sequence[Term]) -> str:
    """Return the query in SQLite's language. Words have no quotes."""

    def phrase(term: Term) -> str:
        return f'"{" ".join(term.words)}"' + (" *" if term.is_prefix else "")

    match = " AND ".join(map(phrase, required))
    return f"({match}) NOT ({' OR '.join(map(phrase, excluded))})" if excluded else match


def _make_tsquery(required: Sequence[Term], excluded: Sequence[Term]) -> str:
    """Return the query in Postgres' language."""

    def phrase(term: Term) -> str:
        words = " <-> ".join(f"'{word}'" for word in term.words)
        return f"({words}{':*' if term.is_prefix else ''})"

    return " & ".join([*map(phrase, required), *(f"!{phrase(term)}" for term in excluded)])


def _find_page(tables: Tables, query: MessageQuery, terms: Terms, before: int) -> SearchPage:
    """Return a page of hits. Reads the matching documents until the page is full, and one event per hit."""
    by_owner = query.unowned or query.owner is not None
    required = [Term((_name_owner(query.owner),)), *terms.required] if by_owner else terms.required
    make = _make_match if _is_sqlite(tables) else _make_tsquery
    parameters = {
        "words": make(required, terms.excluded),
        "oldest": 0 if query.since is None else _clamp(microseconds(query.since)) << _ID_BITS,
        "any_owner": not by_owner,
        "owner": query.owner,
        "project": query.project,
    }
    candidates, has_more, limit = list[_Candidate](), True, query.limit + 1  # one more: is there a next page?
    while has_more and len(candidates) <= query.limit:
        rows = _read_matching(tables, before, limit, parameters)
        has_more, limit = len(rows) == limit, min(2 * limit, _MOST_MATCHES)  # a rare tag may need many matches
        for row in rows:
            before = row.id
            is_same = bool(candidates) and candidates[-1][2:4] == row[2:4]  # another part of the same message
            if not is_same and query.tags.items() <= load(row.tags).items():
                candidates.append(row)
    page = candidates[: query.limit]
    is_last = len(candidates) <= query.limit
    # All parts of a message come after its first one, whose id is the lowest.
    cursor = None if is_last else encode_cursor(page[-1].id - page[-1].part, 0)
    return SearchPage(items=_make_hits(tables, page, terms), next_cursor=cursor)


def _read_matching(tables: Tables, before: int, limit: int, parameters: JsonObject) -> list[_Candidate]:
    """Return the newest documents that match: `limit` of them unless there are fewer.

    SQLite's index returns them in order. That of Postgres returns all matches, so the newest documents are compared
    with the query first, as many as should have enough matches. A rare word is left to the index.
    """
    rows = list[_Candidate]()
    window = 0 if _is_sqlite(tables) else _FIRST_WINDOW
    while window and len(rows) < limit:
        *matches, (start, *_) = tables.run("search.matching_newest", before=before, window=window, **parameters)
        rows += [_Candidate(*row) for row in matches]
        if not start:
            return rows[:limit]
        before = start
        is_first = window == _FIRST_WINDOW
        window = min(_MAX_WINDOW, 2 * _FIRST_WINDOW * limit // len(rows)) if rows and is_first else 0
    if len(rows) < limit:
        matches = tables.run("search.matching", before=before, limit=limit - len(rows), **parameters)
        rows += [_Candidate(*row) for row in matches]
    return rows[:limit]


def _make_hits(tables: Tables, candidates: Sequence[_Candidate], terms: Terms) -> list[SearchHit]:
    keys = json.dumps([(row.number, row.seq) for row in candidates])
    messages = {row[:2]: _Message(*row) for row in tables.run("search.messages", keys=keys)} if candidates else {}
    cutter, hits = SnippetCutter(terms), list[SearchHit]()
    for row in candidates:
        message = messages.get((row.number, row.seq))
        if message is None:
            continue  # the event is missing, which `bough doctor` reports
        snippet = cutter.cut(read_message(message.kind, message.data))
        hits.append(
            SearchHit(
                conversation=UUID(bytes=row.conversation),
                title=row.title,
                seq=row.seq,
                who="user" if message.kind == "UserMessage" else "assistant",
                when=moment(message.ts),
                snippet=snippet.text,
                matches=snippet.matches,
            )
        )
    return hits
