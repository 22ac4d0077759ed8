"""Old events load for ever, new ones come back as they were, and what cannot be read says so."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.errors import CorruptLog, StoreError
from bough.events.codec import ERASED, UPCASTERS, decode, encode, stub
from bough.events.model import BaseEvent, Event, ModelResponded, ToolReturned, UserMessage
from bough.events.record import StoredEvent, microseconds, moment
from bough.types import new_id

GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "events").glob("v*/*.json"))
KINDS = {event.model_fields["kind"].default: event for event in get_args(get_args(Event)[0])}


def stored_of(path: Path) -> StoredEvent:
    parts = json.loads(path.read_text("utf-8"))
    ts = datetime.fromisoformat(parts["ts"])
    return StoredEvent(seq=3, id=UUID(parts["id"]), kind=parts["kind"], ts=ts, raw=parts["raw"].encode())


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_events_load(path: Path) -> None:
    """A file that no longer loads, or loads as less than it says, is lost history: add an upcaster, never edit it."""
    stored = stored_of(path)
    event = stored.event
    assert type(event) is KINDS[path.stem]
    assert (event.id, event.ts, event.kind) == (stored.id, stored.ts, stored.kind)
    if event.schema_version == type(event).VERSION == json.loads(stored.raw).get("schema_version"):
        assert encode(event) == stored.raw


def test_every_kind_has_a_golden_file_that_sets_every_field() -> None:
    """A new kind or field needs a golden file before it is released."""
    for kind, event_type in KINDS.items():
        newest = [path for path in GOLDEN if path.stem == kind][-1]
        payload = json.loads(json.loads(newest.read_text("utf-8"))["raw"])
        assert payload.keys() == event_type.model_fields.keys() - {"id", "kind", "ts"}, kind


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stub_is_an_event_of_its_kind(path: Path) -> None:
    """Whatever is erased still loads, keeps its tool call, and says nothing."""
    stored = stored_of(path)
    erased = StoredEvent(seq=3, id=stored.id, kind=stored.kind, ts=stored.ts, raw=stub(stored.kind, stored.raw))
    assert stub(stored.kind, erased.raw) == erased.raw, "erased twice, nothing changes"
    event = erased.event
    assert type(event) is type(stored.event)
    assert getattr(event, "tool_call_id", None) == getattr(stored.event, "tool_call_id", None)
    for words in ("Grüße", "Be kind", "aGk=", "signature", "short", "lunch", "a/b.txt", "scripts/a.py", "killed"):
        assert words not in erased.raw.decode()


def test_a_stub_of_what_cannot_be_read_still_says_nothing() -> None:
    assert json.loads(stub("UserMessage", b"\xff not json"))["content"][0]["text"] == ERASED
    assert json.loads(stub("SomethingNewer", b'{"secret": 1}')) == {}


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[]", b"null", b'{"content": 7}', b'{"content": [], "extra": 1}'])
def test_what_is_no_event_is_a_corrupt_log(raw: bytes) -> None:
    stored = StoredEvent(seq=7, id=new_id(), kind="UserMessage", ts=datetime.now(UTC), raw=raw)
    with pytest.raises(CorruptLog) as corrupt:
        _ = stored.event
    assert corrupt.value.details["seq"] == 7
    assert corrupt.value.hint


@pytest.mark.parametrize(("kind", "raw"), [("FromTheFuture", b"{}"), ("UserMessage", b'{"schema_version": 99}')])
def test_an_event_of_a_newer_bough_is_refused(kind: str, raw: bytes) -> None:
    """It is never read as the version this one knows."""
    stored = StoredEvent(seq=0, id=new_id(), kind=kind, ts=datetime.now(UTC), raw=raw)
    with pytest.raises(StoreError, match="newer") as refused:
        _ = stored.event
    assert not isinstance(refused.value, CorruptLog)
    assert "upgrade" in refused.value.hint


def test_every_version_of_every_kind_is_lifted_and_kept_as_a_file() -> None:
    """A raised version without an upcaster, or without golden files of each version, loses old logs."""
    files = {(path.stem, int(path.parent.name[1:])) for path in GOLDEN}
    versions = {(kind, version) for kind, event in KINDS.items() for version in range(1, event.VERSION + 1)}
    assert files == versions
    assert UPCASTERS.keys() == {(kind, version) for kind, version in versions if version < KINDS[kind].VERSION}
    assert all(event.model_fields["schema_version"].default == event.VERSION for event in KINDS.values())


@pytest.mark.parametrize(("given", "read"), [("length", "length"), (None, "stop"), ("new", "stop")])
def test_a_first_response_has_the_finish_reason_of_its_provider(given: str | None, read: str) -> None:
    raw = json.dumps({"response": {"parts": [], "finish_reason": given}}).encode()
    event = StoredEvent(seq=0, id=new_id(), kind="ModelResponded", ts=datetime.now(UTC), raw=raw).event
    assert isinstance(event, ModelResponded)
    assert (event.finish_reason, event.partial, event.schema_version) == (read, False, 2)


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_result_can_be_encoded_and_read_back(result: object) -> None:
    """Lone surrogates become U+FFFD; everything else is what it was."""
    event = ToolReturned(tool_call_id="1", tool="t", result=result)
    back = round_trip(event)
    assert isinstance(back, ToolReturned)
    assert back.result == mended(result)


def mended(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {mended(key): mended(item) for key, item in value.items()}
        case list():
            return [mended(item) for item in value]
        case _:
            return value


def round_trip(event: BaseEvent) -> Event:
    return decode(0, event.id, event.kind, event.ts, encode(event))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_are_kept_to_the_microsecond(when: datetime) -> None:
    assert moment(microseconds(when)) == when
    assert round_trip(UserMessage.text("x", ts=when)).ts == when


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    when = datetime.fromisoformat("2026-01-01T00:00:00+05:30")
    assert round_trip(UserMessage.text("x", ts=when)).ts == when


def test_stored_events_are_values() -> None:
    event = UserMessage.text("x")
    one, same = (StoredEvent(seq=1, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event)) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert type(pickle.loads(pickle.dumps(one))) is StoredEvent
    assert one.event is one.event
    assert str(event.id) in repr(one)
    with pytest.raises(AttributeError):
        one.seq = 2  # pyright: ignore


def test_as_json_is_flat() -> None:
    event = UserMessage.text("x", ts=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=5))
    flat = StoredEvent(seq=1, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event)).as_json()
    assert (flat["seq"], flat["kind"], flat["id"]) == (1, "UserMessage", str(event.id))
    assert flat["ts"] == "2026-01-01T00:00:00.000005+00:00"
    assert flat["content"] == [{"type": "text", "text": "x"}]
