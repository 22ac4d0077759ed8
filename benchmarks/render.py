"""A log of 10,000 events folded and rendered to model messages, and 100 more after it, against select and json."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from pathlib import Path
from uuid import UUID

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from bough.conversation.log.journal import Journal
from bough.conversation.log.view import encode_response
from bough.events import SqliteEventStore
from bough.events.model import Event, ModelResponded, ToolCalled, ToolReturned, UserMessage
from harness import Figure, compare_async, in_turns_async, measure_seconds_async

LOG = 10_000
MORE = 100
A_TURN = 5


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = await SqliteEventStore.open(Path(name) / "log.db")
        cid = (await store.create()).id
        await store.append(cid, turns(0, LOG // A_TURN))
        db = sqlite3.connect(store.path)
        first = db.execute("select cid << 32 from conversation where id = ?", (cid.bytes,)).fetchone()[0]
        await compare_async(
            f"load {LOG} events, folded and rendered to model messages",
            lambda: load(store, cid),
            lambda: select(db, first, 0, LOG),
        )
        await more(store, cid, db, first)
        db.close()
        await store.aclose()


def turns(start: int, stop: int) -> list[Event]:
    """Return turns of five events: a question, a call, its result and an answer."""
    events: list[Event] = []
    for n in range(start, stop):
        call = ToolCallPart("look", {"at": f"file {n}"}, tool_call_id=f"c{n}")
        answer = ModelResponse(parts=[TextPart("There is some text in it. " * 10)])
        events += [
            UserMessage.text(f"What is in file {n}? " * 5),
            ModelResponded(response=encode_response(ModelResponse(parts=[call])), seen=A_TURN * n + 1),
            ToolCalled(tool_call_id=f"c{n}", tool="look", arguments={"at": f"file {n}"}),
            ToolReturned(tool_call_id=f"c{n}", tool="look", result="some lines of text " * 20),
            ModelResponded(response=encode_response(answer), seen=A_TURN * n + 4),
        ]
    return events


async def load(store: SqliteEventStore, cid: UUID) -> None:
    journal = Journal(store, cid)
    await journal.catch_up()
    if len((await journal.render()).messages()) < LOG * 4 // A_TURN:
        raise AssertionError("messages are missing")


async def select(db: sqlite3.Connection, first: int, lo: int, hi: int) -> None:
    """Read the rows of the same events and parse them, as every reader must do."""
    query = "select k, id, kind, ts, data from event where k >= ? and k < ? order by k"
    rows = db.execute(query, (first | lo, first | hi)).fetchall()
    if len([json.loads(row[4]) for row in rows]) != hi - lo:
        raise AssertionError("events are missing")


async def more(store: SqliteEventStore, cid: UUID, db: sqlite3.Connection, first: int) -> None:
    """Fold and render what others appended to a log that is in use; it grows by `MORE` events a round."""
    journal = Journal(store, cid)
    await journal.catch_up()

    async def measure() -> float:
        start = journal.state.head
        await store.append(cid, turns(start // A_TURN, (start + MORE) // A_TURN))
        taken = await measure_seconds_async(journal.catch_up)
        if len((await journal.render()).shown) != journal.state.head * 4 // A_TURN:
            raise AssertionError("messages are missing")
        return taken * 1e3

    async def measure_floor() -> float:
        return await measure_seconds_async(lambda: select(db, first, LOG, LOG + MORE)) * 1e3

    await store.append(cid, turns(LOG // A_TURN, (LOG + MORE) // A_TURN))
    await journal.catch_up()
    name = f"{MORE} more events after {LOG}, folded and rendered"
    Figure.of(name, *await in_turns_async(measure, measure_floor), unit="ms").report()


if __name__ == "__main__":
    asyncio.run(main())
