"""Ranges of one field of an event: `GET {id}/events/{event_id}?field=`."""

from __future__ import annotations

from typing import Any

import pytest

OURS = {"Accept": "application/vnd.bough.event+json"}


@pytest.fixture
def client(serving: Any) -> Any:
    with serving("hello") as running, running.client() as client:
        yield client


def post_message(client: Any, text: str) -> str:
    id = client.post("/api/conversations", json={}).json()["id"]
    sent = client.post(f"/api/conversations/{id}/events", json={"content": text}).json()
    return f"/api/conversations/{id}/events/{sent['event_id']}"


def test_a_field_is_read_in_ranges_of_whole_characters(client: Any) -> None:
    address = post_message(client, "é€😀" * 30_000)
    whole = client.get(address, headers=OURS).json()["content"][0]["text"]
    pieces, offset = "", 0
    while True:
        answer = client.get(address, params={"field": "content", "offset": offset})
        assert (answer.status_code, answer.headers["Content-Type"]) == (206, "text/plain; charset=utf-8")
        pieces += answer.content.decode()
        unit, _, place = answer.headers["Content-Range"].partition(" ")
        span, _, size = place.partition("/")
        offset = int(span.partition("-")[2]) + 1
        assert unit == "bytes"
        assert len(answer.content) <= 65536
        if offset == int(size):
            break
    assert whole in pieces
    assert "\ufffd" not in pieces
    single = client.get(address, params={"field": "content", "offset": 0, "length": 1})
    assert (single.content, single.status_code) == (b"[", 206)


@pytest.mark.parametrize(
    ("query", "status"),
    [({"field": "none"}, 404), ({"field": "kind", "offset": 10_000}, 416), ({"field": "kind", "length": 65537}, 422),
     ({"field": "kind", "length": 0}, 422), ({"field": "kind", "offset": -1}, 422), ({"field": ""}, 422),
     ({"fields": "kind"}, 422)],
)  # fmt: skip
def test_a_wrong_range_is_a_clients_mistake(client: Any, query: dict[str, Any], status: int) -> None:
    address = post_message(client, "hello")
    answer = client.get(address, params=query)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
