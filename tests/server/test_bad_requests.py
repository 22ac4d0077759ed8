"""What an attacker sends: each gets the code that says what is wrong, never a 500, and nothing of it comes back."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

DIGITS = "9" * 5000
"""More digits than Python reads as a number."""

HUGE = "9" * 19
"""A number that no database holds."""

DEEP = "[" * 100_000 + "]" * 100_000


def canary(client: httpx2.Client, id: str, method: str, path: str, **options: Any) -> httpx2.Response:
    return client.request(method, path.replace("{id}", f"/api/conversations/{id}"), **options)


BODIES: list[tuple[str, int, bytes]] = [
    ("not JSON", 400, b"{"),
    ("empty", 422, b""),
    ("not UTF-8", 400, b'{"title": "\xff"}'),
    ("UTF-16", 400, '{"title": "a"}'.encode("utf-16")),
    ("deep", 400, DEEP.encode()),
    ("deep in a field", 400, b'{"title": ' + DEEP.encode() + b"}"),
    ("not a number", 400, b'{"limits": {"cost_usd": NaN}}'),
    ("infinite", 400, b'{"limits": {"cost_usd": 1e999}}'),
    ("a number of thousands of digits", 400, b'{"limits": {"steps": ' + DIGITS.encode() + b"}}"),
    ("a lone surrogate", 400, b'{"title": "\\ud800"}'),
    ("a lone surrogate as a name", 400, b'{"tags": {"\\ud800": "a"}}'),
    ("a zero byte", 400, b'{"title": "a\\u0000b"}'),
    ("two values", 400, b"{} {}"),
    ("a list", 422, b"[]"),
    ("a text", 422, b'"a"'),
    ("null for a form", 422, b"null"),
    ("an unknown field", 422, b'{"tilte": "a"}'),
    ("a wrong type", 422, b'{"title": 5}'),
    ("a blank title", 422, b'{"title": "  "}'),
    ("10,000 tags", 422, json.dumps({"tags": {str(n): "a" for n in range(10_000)}}).encode()),
    ("a long name of a tag", 422, json.dumps({"tags": {"n" * 65: "a"}}).encode()),
    ("an id that is none", 422, b'{"id": "../../etc/passwd"}'),
    ("bounds below zero", 422, b'{"limits": {"steps": -1}}'),
    ("a name twice", 400, b'{"title": "a", "title": "b"}'),
    ("a name twice, deeper", 400, b'{"limits": {"steps": 1, "steps": 2}}'),
    ("a number as text", 422, b'{"limits": {"steps": "3"}}'),
    ("a truth as a number", 422, b'{"limits": {"cost_usd": true}}'),
    ("a truth as text", 422, b'{"run": "yes"}'),
]


@pytest.mark.parametrize(("status", "body"), [each[1:] for each in BODIES], ids=[each[0] for each in BODIES])
def test_bodies(one_server: tuple[httpx2.Client, str], status: int, body: bytes) -> None:
    client, _ = one_server
    answer = client.post("/api/conversations", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["code"] == {400: "malformed", 422: "invalid_input"}[status]
    assert problem["hint"]
    assert len(answer.content) < 5000, "what was sent is not repeated"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent": {"model": ""}}, "agent.model"),
        ({"agent": {"workspace_access": "all"}}, "agent.workspace_access"),
        ({"agent": 3}, "agent"),
        ({"allow_list": [""]}, "allow_list.0"),
        ({"initial_message": [{"type": "sound"}]}, "initial_message.0.type"),
        ({"tags": {"": "x"}}, "tags."),
    ],
    ids=["a field of an agent", "another field", "an agent", "an entry of a list", "a part of a message", "a tag"],
)
def test_a_problem_names_the_field_as_it_was_sent(
    one_server: tuple[httpx2.Client, str], body: dict[str, Any], field: str
) -> None:
    client, _ = one_server
    problem = client.post("/api/conversations", json=body).json()
    assert problem["errors"][0]["field"] == field, problem
    assert problem["detail"].startswith(f"{field}: ")


REQUESTS: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "{id}/events/stream", {"headers": {"Last-Event-ID": DIGITS}}, 422),
    ("GET", "{id}/events/stream", {"headers": {"Last-Event-ID": "-" + HUGE}}, 422),
    ("GET", "{id}/events/stream?after=-5", {}, 422),
    ("GET", "{id}/events/stream?after=%C2%B2", {}, 422),
    ("GET", "{id}/events/search?after=" + DIGITS, {}, 422),
    ("GET", "{id}/events/search?limit=" + HUGE, {}, 422),
    ("GET", "{id}/events/search?limit=0", {}, 422),
    ("GET", "{id}/events/search?page_id=" + "0" * 36, {}, 422),
    ("GET", "{id}/events/search?page_id=00000000-0000-7000-8000-000000000000.99999999999999999999", {}, 422),
    ("GET", "{id}/events/search?timestamp__gte=0001-01-01T00:00:00%2B14:00", {}, 422),
    ("GET", "{id}/events/search?timestamp__lt=9999-12-31T23:59:59-12:00", {}, 422),
    ("GET", "{id}/events/search?body=%00", {}, 422),
    ("GET", "{id}/events/search?nonsense=1", {}, 422),
    ("GET", "{id}/events/00000000-0000-7000-8000-000000000000", {}, 404),
    ("GET", "{id}/events/nonsense", {}, 422),
    ("GET", "/api/conversations/search?created_after=0001-01-01T00:00:00%2B14:00", {}, 422),
    ("GET", "/api/conversations/search?updated_before=9999-12-31T23:59:59-12:00", {}, 422),
    ("GET", "/api/conversations/search?page_id=%00", {}, 422),
    ("GET", "/api/conversations/search?page_id=OTk5OTk5OTk5OTk5OTk5OTk5OTkuOTk5OTk5OTk5OTk5OTk5OTk5OTk5", {}, 422),
    ("GET", "/api/conversations/search?text=%00", {}, 422),
    ("GET", "/api/conversations/search?agent=%00", {}, 422),
    ("GET", "/api/conversations/search?tag=a:%00", {}, 422),
    ("GET", "/api/conversations/search?tag=none", {}, 422),
    ("GET", "/api/conversations?ids=x", {}, 422),
    ("GET", "/api/conversations?" + "&".join(["ids=00000000-0000-7000-8000-000000000000"] * 100), {}, 422),
    ("GET", "/api/conversations/../conversations/x", {}, 422),
    ("GET", "/api/conversations/%2e%2e%2f%2e%2e", {}, 405),
    ("GET", "/api/conversations/" + "a" * 5000, {}, 422),
    ("GET", "/api/usage?from=0000-00-00", {}, 422),
    ("GET", "/api/usage?to=9999-12-31", {}, 200),
    ("GET", "/api/tasks?page_id=" + HUGE, {}, 422),
    ("GET", "/api/tasks?page_id=" + "9" * 18, {}, 200),
    ("GET", "/api/tasks?queue=%00", {}, 422),
    ("GET", "/api/tasks/00000000-0000-7000-8000-000000000000/events?after=" + HUGE, {}, 422),
    ("GET", "/api/agents/%00", {}, 422),
    ("GET", "/api/agents/nobody", {}, 404),
    ("GET", "/api/skills/%00", {}, 422),
    ("GET", "/api/skills/nobody", {}, 404),
    ("GET", "/api/skills/nobody/files/../../x", {}, 404),
    ("GET", "/api/evals/..%2f..%2fetc", {}, 404),
    ("GET", "/api/evals/nothing/cases/a", {}, 404),
    ("GET", "/api/approvals?page_id=!!", {}, 422),
    ("POST", "{id}/graft", {"json": {"source": "{self}", "start": 2**70}}, 422),
    ("POST", "{id}/graft", {"json": {"source": "{self}", "start": 2**52}}, 422),
    ("POST", "{id}/fork", {"json": {"at": 2**70}}, 422),
    ("POST", "{id}/fork", {"json": {"at": -1}}, 422),
    ("POST", "{id}/fork", {"json": {"from_event_id": "x" * 36}}, 422),
    ("POST", "{id}/fork", {"json": {"from_event_id": "00000000-0000-7000-8000-000000000000"}}, 404),
    ("POST", "{id}/fork", {"json": {"title": "a" * 201}}, 422),
    ("POST", "{id}/fork", {"headers": {"Idempotency-Key": "k" * 300}}, 400),
    ("POST", "{id}/run", {"headers": {"If-Match": "nonsense"}}, 400),
    ("POST", "{id}/run", {"headers": {"If-Match": f'"{DIGITS}"'}}, 400),
    ("POST", "{id}/run", {"headers": {"If-Match": '"999999999999999"'}}, 412),
    ("PATCH", "{id}", {"json": {"title": "a"}, "headers": {"If-Match": '"0"'}}, 412),
    ("DELETE", "{id}", {"headers": {"If-Match": '"0"'}}, 412),
    ("DELETE", "{id}?mode=nonsense", {}, 422),
    ("POST", "{id}/events", {"json": {"content": [{"type": "image", "image_urls": ["file:///etc/passwd"]}]}}, 422),
    ("POST", "{id}/events", {"json": {"content": [{"type": "text", "text": " "}]}}, 422),
    ("POST", "{id}/events", {"json": {"content": "a", "role": "system"}}, 422),
    ("POST", "{id}/events", {"json": {"content": "a" * (1 << 21)}}, 413),
    ("POST", "{id}/secrets", {"json": {"secrets": {"A": {"kind": "LookupSecret", "url": "http://127.0.0.1/"}}}}, 422),
    ("POST", "{id}/secrets", {"json": {"secrets": {"not a name": "long enough"}}}, 422),
    ("POST", "{id}/model", {"json": {"model": "nonsense:x"}}, 422),
    ("POST", "{id}/approvals/%00", {"json": {"decision": "approve"}}, 422),
    ("POST", "{id}/approvals/none", {"json": {"decision": "approve"}}, 404),
    ("POST", "/api/conversations", {"json": {"security_analyzer": {"kind": "x" * 100_000}}}, 422),
    ("POST", "{id}/fork", {"json": {"overrides": {"security_analyzer": {"kind": "x" * 100_000}}}}, 422),
    ("POST", "{id}/confirmation_policy", {"json": {"policy": {"kind": "x" * 100_000}}}, 422),
    ("GET", "/a2a/default/nothing", {}, 404),
    ("GET", "/a2a/nobody/tasks", {}, 404),
    ("POST", "/a2a/default/message:send", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/a2a/default/message:send", {"content": DEEP, "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "{id}/navigate", {}, 501),
    ("POST", "{id}/nonsense", {}, 404),
    ("POST", "/api/tasks", {"json": {"input": "a", "priority": 2**40}}, 422),
    ("POST", "/api/tasks", {"json": {"input": "a", "deadline_seconds": 0}}, 422),
    ("POST", "/api/keys", {"json": {"name": "a", "role": "owner"}}, 422),
    ("POST", "/api/keys", {"json": {"name": "a", "scopes": ["nonsense"]}}, 422),
    ("POST", "/api/webhooks", {"json": {"url": "http://127.0.0.1:1/"}}, 403),
    ("POST", "/api/webhooks", {"json": {"url": "http://localhost/"}}, 403),
    ("POST", "/api/webhooks", {"json": {"url": "http://169.254.169.254/latest"}}, 403),
    ("POST", "/api/webhooks", {"json": {"url": "http://[::1]/"}}, 403),
    ("POST", "/api/webhooks", {"json": {"url": "file:///etc/passwd"}}, 422),
    ("POST", "/api/webhooks", {"json": {"url": "http://\u0130.example:99999/"}}, 422),
    ("DELETE", "/api/webhooks/%00", {}, 422),
    ("DELETE", "/api/keys/%00", {}, 422),
    ("GET", "/api/file/download?path=%00", {}, 422),
    ("GET", "{id}/file/download?path=" + "a" * 300, {}, 422),
    ("GET", "{id}/files?at=0", {}, 200),
    ("GET", "{id}/files?at=" + HUGE, {}, 422),
    ("GET", "{id}/files?at=1000", {}, 422),
    ("GET", "{id}/files?at=00000000-0000-7000-8000-000000000000", {}, 404),
    ("GET", "{id}/files?tree=" + "0" * 40, {}, 409),
    ("GET", "{id}/files?page_id=-1", {}, 422),
    ("GET", "{id}/files/content?path=../../etc/passwd", {}, 404),
    ("GET", "{id}/files/content?path=%00", {}, 422),
    ("GET", "{id}/files/diff?from=0&to=0", {}, 200),
    ("GET", "{id}/files/diff?own=true&other={self}", {}, 422),
    ("POST", "{id}/restore", {"json": {"at": 0, "dry_run": True}}, 200),
    ("POST", "{id}/restore", {"json": {"at": "0"}}, 422),
    ("POST", "{id}/restore", {"json": {"at": 0, "paths": ["../a"]}}, 404),
    ("POST", "{id}/restore", {"json": {"at": 0, "paths": [".git/config"]}}, 403),
    ("POST", "{id}/restore", {"json": {"at": 0, "conflicts": "never"}}, 422),
    ("POST", "{id}/redo", {}, 404),
    ("POST", "{id}/apply", {"json": {"source": "00000000-0000-7000-8000-000000000000"}}, 404),
    ("GET", "{id}/file/list?path=nothing", {}, 404),
    ("GET", "{id}/git/diff?path=nothing&ref=--output=x", {}, 422),
    ("POST", "/api/file/upload?path=a", {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400),
    ("POST", "/api/file/upload?path=a", {"json": {}}, 422),
    ("POST", "/api/conversations/import", {"content": b"nonsense"}, 422),
    ("POST", "/api/conversations/import", {"content": b""}, 422),
    ("POST", "/api/conversations", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ("POST", "/api/conversations", {"json": {}, "headers": {"Origin": "https://evil.example"}}, 403),
    ("POST", "/api/conversations", {"json": {}, "headers": {"Host": "evil.example"}}, 403),
    ("GET", "/alive", {"headers": {"Host": "evil.example"}}, 403),
    ("PUT", "/api/conversations", {}, 405),
    ("GET", "/nothing", {}, 404),
    ("GET", "/api/settings/llm", {}, 501),
    ("PUT", "/api/profiles", {}, 501),
    ("POST", "/api/skills", {}, 501),
    ("POST", "/api/skills/match", {"json": {"text": "a", "agent": "nobody"}}, 422),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    REQUESTS,
    ids=[f"{each[0]} {each[1][:60]} {n}" for n, each in enumerate(REQUESTS)],
)
def test_requests(
    one_server: tuple[httpx2.Client, str], method: str, path: str, options: dict[str, Any], status: int
) -> None:
    client, id = one_server
    options = json.loads(json.dumps(options).replace("{self}", id)) if "json" in options else options
    answer = canary(client, id, method, path, **options)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.json()["status"], bool(answer.json()["code"])) == (status, True)
        assert "Traceback" not in answer.text
        assert len(answer.content) < 5000, "what was sent is not repeated"


RAW: list[tuple[bytes, bytes]] = [
    (b"nonsense\r\n\r\n", b" 400 "),
    (b"GET /alive HTTP/1.1\r\n\r\n", b" 400 "),
    (b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n", b" 400 "),
    (b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", b" 400 "),
    (
        b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + DIGITS.encode() + b"\r\n\r\n",
        b" 400 ",
    ),
    (b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n", b" 400 "),
    (
        b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b" 400 ",
    ),
    (
        b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/json\r\n\r\n0\r\n\r\n",
        b" 400 ",
    ),
]


@pytest.mark.parametrize(("said", "answered"), RAW, ids=[f"{n}" for n in range(len(RAW))])
def test_requests_that_are_not_http(one_server: tuple[httpx2.Client, str], said: bytes, answered: bytes) -> None:
    client, _ = one_server
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), 30) as connection:
        connection.sendall(said)
        first = connection.recv(65_536).partition(b"\r\n")[0]
    assert answered in first + b" "


@pytest.mark.parametrize("body", [b"{", DEEP.encode(), b'{"id": NaN}', b'{"id": "\\ud800"}', b"\xff"])
def test_calls_of_a2a_that_cannot_be_read(one_server: tuple[httpx2.Client, str], body: bytes) -> None:
    client, _ = one_server
    answer = client.post("/a2a/default", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32700)


FRAMES: list[str | bytes] = [
    b"\x00\x01", "nonsense", DEEP[:200_000], '{"content": "\\ud800"}', '{"content": NaN}', f'{{"content": {DIGITS}}}',
    "[]", '{"role": "user"}', '{"role": "user", "content": "  "}', '{"content": [{"type": "image"}]}',
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES, ids=[str(n) for n in range(len(FRAMES))])
def test_frames_of_a_socket(one_server: tuple[httpx2.Client, str], frame: str | bytes) -> None:
    """Each is answered by what is wrong with it, and the socket stays open."""
    client, id = one_server
    with connect(f"ws://127.0.0.1:{client.base_url.port}/sockets/events/{id}", proxy=None) as connection:
        assert json.loads(connection.recv(timeout=30))["key"] == "full_state"
        for _ in range(2):
            connection.send(frame)
            told = json.loads(connection.recv(timeout=30))
            assert (told["kind"], told["code"] in ("malformed", "invalid_input")) == ("ServerErrorEvent", True), told


@pytest.mark.parametrize(
    "query",
    ["after=-5", "after=" + DIGITS[:1000], "after_timestamp=nonsense&resend_mode=since", "form=nonsense", "nonsense=1"],
)
def test_queries_of_a_socket(one_server: tuple[httpx2.Client, str], query: str) -> None:
    client, id = one_server
    url = f"ws://127.0.0.1:{client.base_url.port}/sockets/events/{id}?{query}"
    with connect(url, proxy=None) as connection:
        assert json.loads(connection.recv(timeout=30))["kind"] == "ServerErrorEvent"
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=30)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4004
