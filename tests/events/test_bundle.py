"""Bundles: who signed them, what is missing in them, and what they weigh."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput, PermissionDenied
from bough.events import SqliteEventStore
from bough.events.bundle.bundle import _Lines, signing_key
from bough.events.model import UserMessage
from bough.events.store import EventStore

pytestmark = pytest.mark.anyio


def test_a_signing_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "bough.key"
    key = signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert signing_key(path).private_bytes_raw() == key.private_bytes_raw()
    path.write_bytes(b"short")
    with pytest.raises(InvalidInput) as error:
        signing_key(path)
    assert error.value.hint


async def test_only_a_trusted_signer_is_let_in(store: EventStore, elsewhere: EventStore, tmp_path: Path) -> None:
    mine, other = signing_key(tmp_path / "a"), signing_key(tmp_path / "b")
    file = io.BytesIO()
    record = await store.create(events=[UserMessage.text("x")])
    await store.export(record.id, file, key=mine)
    with pytest.raises(PermissionDenied) as error:
        await elsewhere.import_(io.BytesIO(file.getvalue()), trusted=[other.public_key().public_bytes_raw()])
    assert error.value.details["public_key"] == mine.public_key().public_bytes_raw().hex()
    trusted = [key.public_key().public_bytes_raw() for key in (other, mine)]
    assert (await elsewhere.import_(io.BytesIO(file.getvalue()), trusted=trusted)).id == record.id


async def test_a_forged_signature_is_no_bundle(store: EventStore, elsewhere: EventStore, tmp_path: Path) -> None:
    file = io.BytesIO()
    record = await store.create(events=[UserMessage.text("x")])
    await store.export(record.id, file, key=signing_key(tmp_path / "a"))
    *lines, last = file.getvalue().splitlines(keepends=True)
    trailer = json.loads(last)
    trailer["public_key"] = signing_key(tmp_path / "b").public_key().public_bytes_raw().hex()
    forged = b"".join(lines) + json.dumps(trailer).encode() + b"\n"
    with pytest.raises(InvalidInput):
        await elsewhere.import_(io.BytesIO(forged))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has no signature line"),
        (b"\x00\xff", "line 1 is not JSON"),
        (b"{}", "line 1: format"),
        (b"7", "line 1: it"),
        (b'{"format": "tar", "version": 1}', "line 1: format"),
        (b"[" * 100_000, "line 1 is not JSON"),
    ],
)
async def test_what_is_wrong_with_a_broken_bundle_is_said_in_words(
    elsewhere: EventStore, content: bytes, says: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        await elsewhere.import_(io.BytesIO(content))
    assert says in error.value.message
    assert "Error(" not in error.value.message


async def test_a_salvaged_bundle_is_for_reading_only(sqlite: SqliteEventStore, elsewhere: EventStore) -> None:
    record = await sqlite.create(events=[UserMessage.text(str(i)) for i in range(5)])
    db = sqlite3.connect(sqlite.path, isolation_level=None)
    db.execute("delete from event where k & 4294967295 = 2")
    db.close()
    file = io.BytesIO()
    await sqlite.export(record.id, file, salvage=True)
    seqs = [json.loads(line).get("seq") for line in file.getvalue().splitlines()]
    assert seqs == [None, 0, 1, 3, 4, None]
    with pytest.raises(InvalidInput) as error:
        await elsewhere.import_(io.BytesIO(file.getvalue()))
    assert "gaps" in error.value.message


async def test_payloads_travel_byte_for_byte(store: EventStore, elsewhere: EventStore) -> None:
    file = io.BytesIO()
    record = await store.create(events=[UserMessage.text('Zeile\nSchrägstrich/ \\ " \u2028 😀\x00')])
    await store.export(record.id, file)
    await elsewhere.import_(io.BytesIO(file.getvalue()))
    assert [stored.raw for stored in await elsewhere.tail(record.id, 1)] == [
        stored.raw for stored in await store.tail(record.id, 1)
    ]


async def forge(store: EventStore, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    """Return a bundle of a fork in which something was changed, signed as if it were right."""
    root = await store.create(events=[UserMessage.text(str(n)) for n in range(3)])
    fork = await store.fork(root.id, events=[UserMessage.text("f")])
    file = io.BytesIO()
    await store.export(fork.id, file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()[:-1]]
    change(lines)
    forged = io.BytesIO()
    writer = _Lines(forged)
    for line in lines:
        writer.write(line)
    writer.sign(len(lines) - 1, None)
    return forged.getvalue()


def header(path: str, value: object) -> Callable[[list[dict[str, Any]]], object]:
    """Set something in the first line."""
    *keys, last = path.split(".")

    def change(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[0]
        for key in keys:
            place = place[int(key) if key.isdigit() else key]
        place[int(last) if last.isdigit() else last] = value

    return change


def event(**fields: object) -> Callable[[list[dict[str, Any]]], object]:
    """Set something in the second event."""
    return lambda lines: lines[2].update(fields)


FORGED: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "a negative base": header("conversation.base", -1),
    "a base beyond the head": header("conversation.base", 9),
    "a head beyond every log": header("conversation.head", 2**63 - 1),
    "a head without its events": header("conversation.head", 7),
    "an id that is none": header("conversation.id", "x"),
    "a number as text": header("conversation.head", "4"),
    "a truth as a number": header("conversation.base", True),
    "an unknown status": header("conversation.status", "hacked"),
    "a title that is none": header("conversation.title", 7),
    "tags that are none": header("conversation.tags", {"a": 1}),
    "a config that is none": header("conversation.config", [1]),
    "a time beyond every calendar": header("conversation.created", 2**63 - 1),
    "a negative time": header("conversation.updated", -1),
    "its own parent": lambda lines: lines[0]["conversation"].update(parent=lines[0]["conversation"]["id"]),
    "its own source": lambda lines: lines[0]["conversation"].update(forked_from=lines[0]["conversation"]["id"]),
    "an ancestor that is its own": lambda lines: lines[0]["ancestors"][0].update(
        forked_from=lines[0]["ancestors"][0]["id"]
    ),
    "an ancestor twice": lambda lines: lines[0]["ancestors"].append(lines[0]["ancestors"][0]),
    "a descendant as ancestor": lambda lines: lines[0]["ancestors"].append(lines[0]["conversation"]),
    "no ancestors": header("ancestors", []),
    "a stranger in the lineage": header("lineage.0.0", "01990000-0000-7000-8000-000000000001"),
    "a gap in the lineage": header("lineage.1.1", 4),
    "an overlap in the lineage": header("lineage.1.1", 2),
    "a lineage of the wrong kind": header("lineage.0", 7),
    "no lineage": header("lineage", []),
    "a missing key": lambda lines: lines[0]["conversation"].pop("title"),
    "an event out of place": event(seq=7),
    "a short id": event(id="ab"),
    "an id twice": lambda lines: lines[2].update(id=lines[1]["id"]),
    "an event's time beyond every calendar": event(ts=2**63 - 1),
    "a time as text": event(ts="1"),
    "an unknown kind": event(kind="FromTheFuture"),
    "a newer version": event(data='{"schema_version": 99, "content": []}'),
    "a payload that is not JSON": event(data="{"),
    "a payload of another kind": event(data='{"content": 7}'),
    "a payload that is not text": event(data=7),
    "a lone surrogate": event(data=r'{"content": [], "sender": "\ud800"}'),
    "an event that is none": lambda lines: lines.insert(2, ["x"]),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_bundle_is_refused_before_a_row_is_written(
    store: EventStore, elsewhere: EventStore, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Signed or not, it is somebody else's log: what does not add up is said in words, and nothing is stored."""
    forged = await forge(store, change)
    with pytest.raises(InvalidInput) as refused:
        await elsewhere.import_(io.BytesIO(forged))
    assert refused.value.hint
    assert await elsewhere.scan() == []
    assert (await elsewhere.census()).events == 0


async def test_an_unchanged_bundle_made_that_way_is_taken(store: EventStore, elsewhere: EventStore) -> None:
    """So that the test above refuses for what was changed alone; where it stood elsewhere says nothing of here."""
    good = await forge(store, header("conversation.status", "running"))
    there = await elsewhere.import_(io.BytesIO(good))
    assert (there.head, there.status, there.imported) == (4, "idle", 4)
    assert (await elsewhere.check()).findings == ()
