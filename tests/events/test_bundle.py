"""Bundles: who signed them, what is missing in them, and what they weigh."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import pytest

from bough.errors import InvalidInput, PermissionDenied
from bough.events import SqliteEventStore
from bough.events.bundle import signing_key
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
        (b"", "ends too early"),
        (b"\x00\xff", "line 1 is no JSON"),
        (b'{"format": "bough-bundle", "version": 1}\n{"seq":', "line 2 is no JSON"),
        (b"{}", "lacks 'format'"),
        (b"7", "of the wrong kind"),
        (b'{"format": "tar", "version": 1}', "it is tar"),
        (b'{"format": "bough-bundle", "version": 1}\n{"seq": 0}', "lacks"),
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
