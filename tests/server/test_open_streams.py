"""Streams that are open while their key ends: SSE, MCP, and what the keys of a tenant do to the sockets of others."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import httpx2
from tests.server.mcp.test_wire import HEADERS, INITIALIZE
from tests.server.test_sockets import closed_with, join, read


def frames(answer: httpx2.Response) -> list[tuple[str, Any]]:
    """Return the names and data of what is left of a stream."""
    lines = [line.partition(": ") for line in answer.iter_lines()]
    names = [value for name, _, value in lines if name == "event"]
    return list(zip(names, (json.loads(value) for name, _, value in lines if name == "data"), strict=True))


def test_a_stream_says_that_its_key_was_revoked_and_ends(serving: Any, new_key: Any) -> None:
    key, admin = new_key(tenant="red", role="read"), new_key(tenant="red", role="admin")
    with serving(heartbeat_seconds=600) as server, server.client(admin.text) as client, server.client(key.text) as own:
        id = client.post("/api/conversations", json={}).json()["id"]
        with own.stream("GET", f"/api/conversations/{id}/events/stream") as answer:
            client.delete(f"/api/keys/{key.id}")
            assert frames(answer)[-1] == ("end", {"reason": "key"})


def test_a_stream_without_a_key_ends_when_keys_are_needed(serving: Any) -> None:
    with serving(heartbeat_seconds=600) as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        with join(server, id) as socket, client.stream("GET", f"/api/conversations/{id}/events/stream") as answer:
            read(socket)
            assert client.post("/api/keys", json={"name": "first"}).status_code == 201
            assert frames(answer)[-1] == ("end", {"reason": "key"})
            assert closed_with(socket) == 4001


def test_the_stream_of_an_mcp_session_ends_with_its_key(serving: Any, new_key: Any) -> None:
    key, admin = new_key(role="read"), new_key(role="admin")
    with serving() as server, server.client(admin.text) as client, server.client(key.text) as own:
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        session = own.post("/mcp", json=body, headers=HEADERS).headers["mcp-session-id"]
        with own.stream("GET", "/mcp", headers={**HEADERS, "Mcp-Session-Id": session}) as answer:
            client.delete(f"/api/keys/{key.id}")
            assert answer.read() == b""


def test_a_revoked_key_of_many_sockets_does_not_close_those_of_others(serving: Any, new_key: Any) -> None:
    red, doomed, last, blue = (new_key(tenant=tenant) for tenant in ("red", "red", "red", "blue"))
    with serving() as server, server.client(red.text) as client, server.client(blue.text) as other:
        id = client.post("/api/conversations", json={}).json()["id"]
        others = other.post("/api/conversations", json={}).json()["id"]
        with join(server, others, additional_headers={"X-Session-API-Key": blue.text}) as kept, ExitStack() as stack:
            read(kept)
            headers = {"X-Session-API-Key": doomed.text}
            sockets = [stack.enter_context(join(server, id, additional_headers=headers)) for _ in range(12)]
            for socket in sockets:
                read(socket)
            client.delete(f"/api/keys/{doomed.id}")
            assert [closed_with(socket) for socket in sockets] == [4001] * 12
            # The key of this one is looked at later than that of the others' next time.
            with join(server, id, additional_headers={"X-Session-API-Key": last.text}) as socket:
                read(socket)
                client.delete(f"/api/keys/{last.id}")
                assert closed_with(socket) == 4001
            other.post(f"/api/conversations/{others}/events", json={"content": "still there?"})
            assert read(kept)["kind"] == "MessageEvent"
