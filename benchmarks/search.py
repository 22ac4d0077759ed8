"""Search over the messages of a store, and what its index costs the appends; SQLite and Postgres, durable.

A search of 20 hits is measured beside the read of one conversation by its key, in a store of few and of many messages:
the ratio has to stay where it is while the store grows. Appends with an index are measured beside those of a store with
the same messages that nobody has searched; a search after them indexes what they queued, and its cost is a figure of
its own. With `--large` the store has a million messages, which takes minutes.

    python benchmarks/search.py [--small | --large]
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from uuid import UUID

from bough.events import PostgresEventStore, SqliteEventStore
from bough.events.model import Event, ModelResponded, UserMessage
from bough.events.record import MessageQuery
from bough.events.store import EventStore
from bough.testing.postgres import DURABLE, missing, postgres_server
from harness import ROUNDS, Figure, compare_async, print_note

SIZES = (2_000, 40_000)
SMALL_SIZES = (200, 1_000)
LARGE_SIZES = (40_000, 1_000_000)
APPENDS = 200
CONVERSATION = 100
TEXT = "x" * 500


async def main(sizes: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store, plain = [await SqliteEventStore.open(Path(name) / f"{part}.db") for part in ("log", "plain")]
        await measure("sqlite", store, plain, sizes)
        await store.aclose()
        await plain.aclose()
    if reason := missing():
        print_note(f"no figures of Postgres: {reason}")
        return
    with postgres_server(DURABLE) as url:
        store, plain = [await PostgresEventStore.open(url, schema=part) for part in ("log", "plain")]
        await measure("postgres", store, plain, sizes)
        await store.aclose()
        await plain.aclose()


async def measure(database: str, store: EventStore, plain: EventStore, sizes: tuple[int, int]) -> None:
    """Measure one database.

    Args:
        plain: A store that nobody searches.
        sizes: How many messages the store has when it is searched.
    """
    words, plain_words, messages = Words(), Words(), 0
    for size in sizes:
        cid = await fill(store, words, size - messages)
        await fill(plain, plain_words, size - messages)
        messages = size
        start = perf_counter()
        await store.search(MessageQuery(text="nothing"))
        print_note(f"{database}: {size} messages, {(perf_counter() - start):.1f} s to index those that are new")
        for kind, text in (("rare", words.rare), ("frequent", words.frequent)):
            await compare_async(
                f"{database}: search of a {kind} word in {size} messages, to a read by key",
                lambda text=text: search(store, text),
                lambda cid=cid: read(store, cid),
                unit="us",
                per=20,
            )
    indexed, unindexed = await store.create(), await plain.create()
    await compare_async(
        f"{database}: append, durable, with an index of messages, to one without",
        lambda: append(store, indexed.id),
        lambda: append(plain, unindexed.id),
        unit="1/s",
        per=APPENDS,
    )
    waits = list[float]()
    for _ in range(ROUNDS):
        await store.search(MessageQuery(text="nothing"))
        await append(store, indexed.id)
        start = perf_counter()
        await store.search(MessageQuery(text="nothing"))
        waits.append((perf_counter() - start) * 1e3)
    Figure.of(f"{database}: search after {APPENDS} new messages", waits, unit="ms").report()


class Words:
    """Makes messages of random words, as frequent as in a language. `rare` is in one of 1,000, `frequent` in most."""

    rare = "rarity"
    frequent = "frequent"

    def __init__(self) -> None:
        self._random = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self._random.choices(letters, k=self._random.randint(2, 10))) for _ in range(20_000)]
        self._weights = list(accumulate(1 / (rank + 1) for rank in range(20_000)))

    def text(self, number: int) -> str:
        """Return the text of a message."""
        words = self._random.choices(self._words, cum_weights=self._weights, k=60)
        words += [self.frequent] if number % 4 else []
        words += [self.rare] if number % 1000 == 0 else []
        return " ".join(words)


async def fill(store: EventStore, words: Words, messages: int) -> UUID:
    """Create conversations with some messages in all, and return the id of one."""
    cid = (await store.create()).id
    for first in range(0, messages, CONVERSATION):
        events = list[Event]()
        for number in range(first, first + CONVERSATION, 2):
            answer = {"kind": "response", "parts": [{"part_kind": "text", "content": words.text(number)}]}
            events += [UserMessage.text(words.text(number + 1)), ModelResponded(response=answer)]
        cid = (await store.create(events=events)).id
    return cid


async def search(store: EventStore, text: str) -> None:
    for _ in range(20):
        await store.search(MessageQuery(text=text))


async def read(store: EventStore, cid: UUID) -> None:
    for _ in range(20):
        await store.get(cid)


async def append(store: EventStore, cid: UUID) -> None:
    for _ in range(APPENDS):
        await store.append(cid, [UserMessage.text(TEXT)])


if __name__ == "__main__":
    chosen = {"--small": SMALL_SIZES, "--large": LARGE_SIZES}
    asyncio.run(main(next((chosen[option] for option in sys.argv[1:]), SIZES)))
