"""The stream of a tenant's changes: rows of conversations and the number of those that wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from tests.server.test_tasks import ASKS

from bough.server.auth.keys import NewKey


def read_changes(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and data of each change."""
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        if name == "data":
            yield kind, json.loads(value)


def wait_for(changes: Iterator[tuple[str, dict[str, Any]]], kind: str, **fields: Any) -> dict[str, Any]:
    """Return the first change of a kind with these fields."""
    return next(data for name, data in changes if name == kind and fields.items() <= data.items())


def test_changes_of_the_tenant_are_streamed_and_of_no_other(serving: Any, new_key: Callable[..., NewKey]) -> None:
    red, blue = new_key("r", tenant="red"), new_key("b", tenant="blue")
    with (
        serving(ASKS, "looked", tools="read") as server,
        server.client(red.text) as client,
        server.client(blue.text) as other,
        client.stream("GET", "/api/updates") as stream,
        other.stream("GET", "/api/updates") as other_stream,
    ):
        changes, other_changes = read_changes(stream.iter_lines()), read_changes(other_stream.iter_lines())
        assert next(changes) == ("approvals", {"count": 0})
        assert next(other_changes) == ("approvals", {"count": 0})
        body = {"confirmation_policy": {"kind": "AlwaysConfirm"}, "initial_message": "look", "title": "red"}
        id = client.post("/api/conversations", json=body).json()["id"]
        assert wait_for(changes, "conversation", id=id)["title"] == "red"
        client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        assert wait_for(changes, "conversation", id=id, execution_status="waiting_for_confirmation")["head"] > 1
        assert wait_for(changes, "approvals") == {"count": 1}
        client.post(f"/api/conversations/{id}/approvals/c1", json={"decision": "approve"})
        assert wait_for(changes, "conversation", id=id, execution_status="finished")
        own = other.post("/api/conversations", json={"title": "blue"}).json()["id"]
        kind, data = next(other_changes)
        assert (kind, data["id"]) == ("conversation", own), "what others do is not told"


def test_the_stream_ends_with_its_key_and_with_the_server(serving: Any, new_key: Callable[..., NewKey]) -> None:
    key, admin_key = new_key("reader", role="read"), new_key("admin")
    with serving() as server, server.client(key.text) as client, server.client(admin_key.text) as admin:
        with client.stream("GET", "/api/updates") as stream:
            changes = read_changes(stream.iter_lines())
            assert next(changes) == ("approvals", {"count": 0})
            admin.delete(f"/api/keys/{key.id}")
            assert wait_for(changes, "end") == {"reason": "key"}
        assert client.get("/api/updates").status_code == 401
        with admin.stream("GET", "/api/updates") as stream:
            changes = read_changes(stream.iter_lines())
            next(changes)
            server.app.state.stop()
            assert wait_for(changes, "end") == {"reason": "drain"}


def test_a_foreign_page_cannot_open_the_stream(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    assert client.get("/api/updates", headers={"Origin": "https://evil.example"}).status_code == 403
