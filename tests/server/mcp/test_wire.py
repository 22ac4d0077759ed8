"""What MCP demands of a server on the wire, as any client may send it: no client library between."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def call(client: httpx2.Client, method: str, params: Any = None, *, id: Any = 1, **headers: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}
    return client.post("/mcp", json=body, headers={**HEADERS, **headers})


def read(answer: httpx2.Response) -> dict[str, Any]:
    """Return the message of an answer, which is JSON or a stream of one event."""
    text = answer.text
    return json.loads(text.split("data: ", 1)[1] if text.startswith("event:") else text)


@pytest.fixture
def session(one_server: tuple[httpx2.Client, str]) -> tuple[httpx2.Client, dict[str, str]]:
    client, _ = one_server
    begun = call(client, "initialize", INITIALIZE)
    assert read(begun)["result"]["protocolVersion"] == "2025-06-18", "the version that was asked for"
    return client, {"Mcp-Session-Id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-06-18"}


def test_another_version_is_answered_by_one_that_it_speaks(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    answered = read(call(client, "initialize", INITIALIZE | {"protocolVersion": "1999-01-01"}))["result"]
    assert answered["protocolVersion"] > "2025-06-18"
    assert {"tools", "resources"} == answered["capabilities"].keys(), "what it can do, and nothing that it cannot"


def test_messages_have_their_ids_and_notifications_no_answer(session: tuple[httpx2.Client, dict[str, str]]) -> None:
    client, headers = session
    told = client.post(
        "/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers={**HEADERS, **headers}
    )
    assert (told.status_code, told.content) == (202, b"")
    for id in ("a text", 7):
        assert read(call(client, "ping", id=id, **headers)) == {"jsonrpc": "2.0", "id": id, "result": {}}
    unknown = read(call(client, "nonsense", id=8, **headers))
    assert (unknown["id"], unknown["error"]["code"]) == (8, -32601)
    assert read(call(client, "prompts/list", **headers))["error"]["code"] == -32601, "what is not declared is not there"


def test_what_the_transport_cannot_take_is_refused(session: tuple[httpx2.Client, dict[str, str]]) -> None:
    client, headers = session
    assert call(client, "ping", **headers | {"MCP-Protocol-Version": "1900-01-01"}).status_code == 400
    assert call(client, "ping", **headers | {"Accept": "text/html"}).status_code == 406
    assert client.get("/mcp", headers={**headers, "Accept": "application/json"}).status_code == 406
    assert client.put("/mcp").status_code == 405
    assert call(client, "ping", **{"MCP-Protocol-Version": "2025-06-18"}).status_code == 400, "it names no session"
    broken = client.post("/mcp", content=b"{", headers={**HEADERS, **headers})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, -32700)
    assert call(client, "ping", **headers).status_code == 200, "the session is as it was"


def test_a_session_that_was_ended_is_not_there(session: tuple[httpx2.Client, dict[str, str]]) -> None:
    client, headers = session
    assert client.request("DELETE", "/mcp", headers=headers).status_code == 200
    assert call(client, "ping", **headers).status_code == 404


def test_a_body_that_cannot_be_kept_is_a_parse_error(session: tuple[httpx2.Client, dict[str, str]]) -> None:
    client, headers = session
    zero = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_conversation",'
    for body in (zero + '"arguments":{"message":"a\\u0000b"}}}', zero + '"arguments":{"run":true,"run":false}}}', "{"):
        refused = client.post("/mcp", content=body, headers={**HEADERS, **headers})
        assert (refused.status_code, read(refused)["error"]["code"]) == (400, -32700)
