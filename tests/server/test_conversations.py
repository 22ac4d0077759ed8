"""Conversations over HTTP: made, listed, changed, deleted; events in both forms; what is wrong is a problem."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

import bough
from bough.server.bodies.base import OUR_EVENTS

OURS = {"Accept": OUR_EVENTS}


def made(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def run(client: httpx2.Client, id: str) -> dict[str, Any]:
    answer = client.post(f"/api/conversations/{id}/run", json={"wait": 60})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: httpx2.Client, id: str, **params: Any) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Return the frames of a stream that ends where it has caught up: event, id, data."""
    frames = []
    headers = params.pop("headers", {})
    path = f"/api/conversations/{id}/events/stream"
    with client.stream("GET", path, params={"until": "caught_up", **params}, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for block in "".join(answer.iter_text()).replace("\r\n", "\n").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != ":")
            if "data" in fields:
                frames.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return frames


def test_create_say_run_read(serving: Any) -> None:
    with serving("hello there") as server, server.client() as client:
        info = made(client, title="t", tags={"a": "b"}, initial_message="hi", limits={"requests": 5})
        id = info["id"]
        assert UUID(id).version == 7
        assert info["execution_status"] == "idle"
        assert len(info["created_at"]) == 27
        assert run(client, id)["output"] == "hello there"
        info = client.get(f"/api/conversations/{id}").json()
        assert info["execution_status"] == "finished"
        assert info["run"]["state"] == "completed"
        assert info["own"]["requests"] == 1
        assert client.get(f"/api/conversations/{id}/agent_final_response").json() == {"response": "hello there"}
        events = client.get(f"/api/conversations/{id}/events/search", headers=OURS).json()["items"]
        assert events[0]["kind"] == "ConversationStarted"
        assert {"UserMessage", "ModelResponded"} <= {event["kind"] for event in events}


def test_the_same_request_twice_makes_one_conversation(serving: Any) -> None:
    with serving() as server, server.client() as client:
        body = {"id": str(uuid4()), "title": "t"}
        assert client.post("/api/conversations", json=body).status_code == 201
        again = client.post("/api/conversations", json=body)
        assert (again.status_code, again.json()["id"]) == (200, body["id"])
        assert client.post("/api/conversations", json=body | {"title": "u"}).status_code == 409


def test_lists_by_page_and_filter(serving: Any) -> None:
    with serving() as server, server.client() as client:
        ids = [made(client, title=f"number {n}", tags={"odd": str(n % 2)})["id"] for n in range(5)]
        seen: list[str] = []
        page: str | None = None
        while True:
            params = {"limit": 2} | ({} if page is None else {"page_id": page})
            answer = client.get("/api/conversations/search", params=params).json()
            seen += [item["id"] for item in answer["items"]]
            if (page := answer["next_page_id"]) is None:
                break
        assert sorted(seen) == sorted(ids)
        odd = client.get("/api/conversations/search", params={"tag": "odd:1", "full": True}).json()["items"]
        assert {item["title"] for item in odd} == {"number 1", "number 3"}
        assert all("waiting" in item for item in odd)
        assert client.get("/api/conversations/count", params={"tag": "odd:0"}).json() == 3
        several = client.get("/api/conversations", params={"ids": [ids[0], str(uuid4())]}).json()
        assert [item and item["id"] for item in several] == [ids[0], None]


def test_changes_are_held_to_what_was_seen(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = made(client)["id"]
        seen = client.get(f"/api/conversations/{id}").headers["etag"]
        path = f"/api/conversations/{id}"
        assert client.get(path, headers={"If-None-Match": seen}).status_code == 304
        assert client.patch(path, json={"title": "a"}, headers={"If-Match": seen}).json() == {"success": True}
        assert client.patch(path, json={"title": "b"}, headers={"If-Match": seen}).status_code == 412
        assert client.patch(path, json={"title": "b"}, headers={"If-Match": "nonsense"}).status_code == 400
        assert client.get(path).json()["title"] == "a"
        assert client.delete(path, headers={"If-Match": seen}).status_code == 412
        assert client.delete(path).status_code == 200
        assert client.get(path).status_code == 404


def test_events_in_openhands_form_page_by_part(serving: Any) -> None:
    with serving("done") as server, server.client() as client:
        id = made(client, initial_message="hi")["id"]
        run(client, id)
        path = f"/api/conversations/{id}/events/search"
        whole = client.get(path).json()["items"]
        assert client.get(f"/api/conversations/{id}/events/count").json() == len(whole)
        assert [event["timestamp"] for event in whole] == sorted(event["timestamp"] for event in whole)
        paged: list[Any] = []
        params: dict[str, Any] = {"limit": 2}
        while True:
            answer = client.get(path, params=params).json()
            paged += answer["items"]
            if answer["next_page_id"] is None:
                break
            params["page_id"] = answer["next_page_id"]
        assert paged == whole
        backwards = client.get(path, params={"sort_order": "TIMESTAMP_DESC"}).json()["items"]
        assert backwards == whole[::-1]
        by_agent = client.get(path, params={"source": "agent"}).json()["items"]
        assert {event["kind"] for event in by_agent} == {"MessageEvent"}
        one = client.get(f"/api/conversations/{id}/events/{whole[-1]['id']}").json()
        assert one == whole[-1]
        some = client.get(f"/api/conversations/{id}/events", params={"ids": [whole[0]["id"], str(uuid4())]}).json()
        assert some == [whole[0], None]


def test_a_stream_resumes_by_seq(serving: Any) -> None:
    with serving("done") as server, server.client() as client:
        id = made(client, initial_message="hi")["id"]
        run(client, id)
        frames = stream(client, id)
        assert frames[0][0] == "state"
        assert frames[0][2]["execution_status"] == "finished"
        events = [(int(place or -1), data) for event, place, data in frames if event == "event"]
        assert [place for place, _ in events] == list(range(len(events)))
        assert frames[-1][0] == "caught_up"
        rest = [frame for frame in stream(client, id, headers={"Last-Event-ID": "2"}) if frame[0] == "event"]
        assert [int(place or -1) for _, place, _ in rest] == list(range(3, len(events)))
        theirs = [data for event, _, data in stream(client, id, form="openhands") if event == "event"]
        assert theirs == client.get(f"/api/conversations/{id}/events/search").json()["items"]
        beyond = client.get(f"/api/conversations/{id}/events/stream", params={"after": "100000"})
        assert beyond.status_code == 422


def test_a_message_is_kept_once(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = made(client)["id"]
        path, event = f"/api/conversations/{id}/events", str(uuid4())
        first = client.post(path, json={"content": "hi", "id": event}).json()
        again = client.post(path, json={"content": "hi", "id": event}).json()
        assert first == again == {"success": True, "event_id": event, "head": first["head"]}
        assert client.post(path, json={"content": "other", "id": event}).status_code == 409
        keyed = [client.post(path, json={"content": "x"}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert keyed[0].json() == keyed[1].json()


EVIL = {"Origin": "https://evil.example"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/api/conversations/nonsense", {}, 422, "invalid_input"),
        ("GET", "/api/conversations/{other}", {}, 404, "not_found"),
        ("GET", "/nothing", {}, 404, "not_found"),
        ("PUT", "/api/conversations", {}, 405, "malformed"),
        ("POST", "/api/conversations", {"content": b"{"}, 400, "malformed"),
        ("POST", "/api/conversations", {"content": b"\xff"}, 400, "malformed"),
        ("POST", "/api/conversations", {"content": b'{"title": NaN}'}, 400, "malformed"),
        ("POST", "/api/conversations", {"content": b"[" * 100_000}, 400, "malformed"),
        ("POST", "/api/conversations", {"content": b"[" * 65 + b"]" * 65}, 400, "malformed"),
        ("POST", "/api/conversations", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "malformed"),
        ("POST", "/api/conversations", {"json": {"titel": "x"}}, 422, "invalid_input"),
        ("POST", "/api/conversations", {"json": {"title": 5}}, 422, "invalid_input"),
        ("POST", "/api/conversations", {"json": []}, 422, "invalid_input"),
        ("POST", "/api/conversations", {"json": {"title": "\ud800"}}, 400, "malformed"),
        ("POST", "/api/conversations", {"json": {"tags": {str(n): "" for n in range(10_000)}}}, 422, "invalid_input"),
        ("POST", "/api/conversations", {"json": {"limits": {"requests": -1}}}, 422, "invalid_input"),
        ("POST", "/api/conversations", {"json": {"title": "x" * 11_000_000}}, 413, "too_large"),
        ("GET", "/api/conversations/search", {"params": {"limit": 0}}, 422, "invalid_input"),
        ("GET", "/api/conversations/search", {"params": {"limmit": 1}}, 422, "invalid_input"),
        ("GET", "/api/conversations/search", {"params": {"page_id": "!"}}, 422, "invalid_input"),
        ("GET", "/api/conversations/search", {"params": {"tag": "x"}}, 422, "invalid_input"),
        ("GET", "/api/conversations", {"params": {"ids": ["x"]}}, 422, "invalid_input"),
        ("POST", "/api/conversations/{id}/events", {"json": {"content": ""}}, 422, "invalid_input"),
        ("POST", "/api/conversations/{id}/events", {"json": {"content": "x" * 2_000_000}}, 413, "too_large"),
        ("GET", "/api/conversations/{id}/events/x", {}, 422, "invalid_input"),
        ("GET", "/api/conversations/{id}/events/{other}", {}, 404, "not_found"),
        ("GET", "/api/conversations/{id}/events/search", {"params": {"limit": 101}}, 422, "invalid_input"),
        ("GET", "/api/conversations/{id}/events/search", {"params": {"page_id": str(uuid4())}}, 422, "invalid_input"),
        ("POST", "/api/conversations/{id}/navigate", {}, 501, "not_supported"),
        ("POST", "/api/conversations/{other}/navigate", {}, 404, "not_found"),
        ("POST", "/api/conversations/{id}/whatever", {}, 404, "not_found"),
        ("DELETE", "/api/conversations/{id}", {"params": {"mode": "gone"}}, 422, "invalid_input"),
        ("GET", "/health", {"headers": {"Host": "evil.example"}}, 403, "permission_denied"),
        ("PATCH", "/api/conversations/{id}", {"json": {}, "headers": EVIL}, 403, "permission_denied"),
        ("GET", "/api/conversations/{id}/events/stream", {"headers": {"Origin": "null"}}, 403, "permission_denied"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_problem(
    one_server: Any, method: str, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    client, id = one_server
    if "json" in options:  # the client refuses to write lone surrogates itself
        options = dict(options)
        options["content"] = json.dumps(options.pop("json")).encode()
    if "content" in options:
        options = {**options, "headers": {"Content-Type": "application/json", **options.get("headers", {})}}
    answer = client.request(method, path.format(id=id, other=uuid4()), **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"] == f"urn:bough:error:{code}"
    assert problem["instance"] == f"/requests/{answer.headers['request-id']}"


def test_what_the_server_says_of_itself(serving: Any) -> None:
    with serving() as server, server.client() as client:
        assert client.get("/health").json() == client.get("/alive").json() == {"status": "ok"}
        assert client.get("/ready").json()["checks"]["store"] == "ok"
        said = client.get("/server_info").json()
        assert said["version"] == said["sdk_version"] == "1.58.2", "clients compare it with a minimum, in three parts"
        assert said["bough_version"] == bough.__version__
        page = client.get("/docs").text
        assert "<script" not in page
        assert "/api/conversations/{id}/fork" in page
        assert "bough_http_requests_total" in client.get("/metrics").text
        assert client.get("/api/agents/default").json()["model"] == "openai:test"
        assert client.get("/api/agents/nobody").status_code == 404
