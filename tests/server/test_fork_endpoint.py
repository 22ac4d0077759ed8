"""Seed 001 over HTTP: create, message, run, fork with every field, continue with both, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from bough.server.bodies.base import OUR_EVENTS
from bough.settings import Settings
from bough.testing import Answer, ServerCall

OURS = {"Accept": OUR_EVENTS}


def start(client: httpx2.Client, **body: Any) -> str:
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def say(client: httpx2.Client, id: str, text: str) -> dict[str, Any]:
    sent = client.post(f"/api/conversations/{id}/events", json={"content": text})
    assert sent.status_code == 200, sent.text
    ran = client.post(f"/api/conversations/{id}/run", json={"wait": 60})
    assert ran.status_code == 200, ran.text
    return ran.json()


def log(client: httpx2.Client, id: str) -> list[dict[str, Any]]:
    return client.get(f"/api/conversations/{id}/events/search", params={"limit": 500}, headers=OURS).json()["items"]


def test_seed_001(serving: Any) -> None:
    with (
        serving("the first answer", "another answer", "on the fork", "on the source") as server,
        server.client() as client,
    ):
        id = start(client, title="Nightly report", tags={"run": "41"})
        assert say(client, id, "Write the report.")["output"] == "the first answer"
        assert say(client, id, "Shorter.")["status"] == "finished"
        before = log(client, id)
        first_answer = next(event for event in before if event["kind"] == "ModelResponded")

        wanted = str(uuid4())
        body = {
            "id": wanted,
            "title": "What if",
            "tags": {"asked-by": "ada"},
            "agent": {"name": "critic", "model": "offline", "system_prompt": "You are critical."},
            "reset_metrics": True,
            "from_event_id": first_answer["id"],
            "snap": "exact",
            "pending": "close",
            "overrides": {"limits": {"requests": 3}},
            "inherit_tags": True,
            "workspace": "readonly",
            "reason": "a follow-up question",
        }
        made = client.post(f"/api/conversations/{id}/fork", json=body)
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"/api/conversations/{wanted}"
        fork = made.json()
        assert fork["id"] == wanted
        assert fork["title"] == "What if"
        assert fork["tags"] == {"run": "41", "asked-by": "ada"}
        assert fork["execution_status"] == "idle"
        assert fork["forked_from_conversation_id"] == id
        assert fork["forked_from_event_id"] == first_answer["id"]
        assert fork["own"]["requests"] == 0
        assert fork["inherited"]["requests"] == 1
        assert fork["limits"]["requests"] == 3
        assert fork["workspace_policy"] == "readonly"
        assert fork["spec"]["name"] == "critic"
        assert fork["lineage"]["at"] == first_answer["seq"] + 1
        assert fork["lineage"]["reason"] == "a follow-up question"
        assert fork["lineage"]["actor"] == "local"
        assert made.headers["etag"] == f'"{fork["head"]}"'

        again = client.post(f"/api/conversations/{id}/fork", json=body)
        assert again.status_code == 200
        assert again.json()["id"] == wanted
        other = client.post(f"/api/conversations/{id}/fork", json=body | {"title": "Another"})
        assert other.status_code == 409
        assert other.json()["code"] == "conflict"

        assert log(client, id) == before, "a fork changes nothing of its source"
        assert say(client, wanted, "Why?")["status"] == "finished"
        assert log(client, id) == before
        say(client, id, "Continue.")
        assert log(client, wanted)[: first_answer["seq"] + 1] == before[: first_answer["seq"] + 1]

        compared = client.get(f"/api/conversations/{id}/compare/{wanted}").json()
        assert compared["common"] == first_answer["seq"] + 1
        assert compared["a"]["head"] > compared["common"] < compared["b"]["head"]
        line = client.get(f"/api/conversations/{wanted}/lineage").json()["items"]
        assert [item["id"] for item in line] == [id, wanted]


def test_a_fork_without_a_body_keeps_everything(serving: Any) -> None:
    with serving("one") as server, server.client() as client:
        id = start(client, title="t")
        say(client, id, "hello")
        info = client.get(f"/api/conversations/{id}").json()
        fork = client.post(f"/api/conversations/{id}/fork").json()
        assert fork["lineage"]["at"] == info["head"]
        assert fork["title"] == "t"


def test_what_is_wrong_with_a_fork_is_a_problem(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = start(client)
        head = client.get(f"/api/conversations/{id}").json()["head"]
        wrong: list[tuple[dict[str, Any], int, str]] = [
            ({"from_event_id": str(uuid4())}, 404, "not_found"),
            ({"from_event_id": "x"}, 422, "invalid_input"),
            ({"at": head + 1}, 422, "invalid_input"),
            ({"at": -1}, 422, "invalid_input"),
            ({"at": 0, "from_event_id": str(uuid4())}, 422, "invalid_input"),
            ({"id": id}, 409, "conflict"),
            ({"agent": "nobody"}, 422, "invalid_input"),
            ({"agent": {"model": "nobody:1"}}, 422, "invalid_input"),
            ({"agent": {"kind": "ACPAgent", "llm": {"model": "offline"}}}, 422, "invalid_input"),
            ({"overrides": {"model": "nonsense"}}, 422, "invalid_input"),
            ({"overrides": {"allow_list": ["Read", ")"]}}, 422, "invalid_input"),
            ({"overrides": {"hooks": []}}, 422, "invalid_input"),
            ({"titel": "x"}, 422, "invalid_input"),
            ({"title": " "}, 422, "invalid_input"),
            ({"tags": {str(n): "" for n in range(10_000)}}, 422, "invalid_input"),
            ({"moment": "then"}, 501, "not_supported"),
        ]
        for body, status, code in wrong:
            answer = client.post(f"/api/conversations/{id}/fork", json=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code), (body.keys(), answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        assert client.post(f"/api/conversations/{uuid4()}/fork", json={}).status_code == 404
        near = client.post(f"/api/conversations/{id}/fork", json={"titel": "x"}).json()
        assert near["errors"] == [{"field": "titel", "rule": "unknown field", "near": "title"}]


def test_an_idempotency_key_makes_one_fork(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = start(client)
        key = {"Idempotency-Key": "once"}
        first = client.post(f"/api/conversations/{id}/fork", json={"title": "a"}, headers=key)
        second = client.post(f"/api/conversations/{id}/fork", json={"title": "a"}, headers=key)
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.headers["idempotency-replayed"] == "true"
        assert first.json()["id"] == second.json()["id"]
        assert client.post(f"/api/conversations/{id}/fork", json={"title": "b"}, headers=key).status_code == 409


def test_a_stale_etag_forks_nothing(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = start(client)
        seen = client.get(f"/api/conversations/{id}").headers["etag"]
        client.patch(f"/api/conversations/{id}", json={"title": "changed"})
        answer = client.post(f"/api/conversations/{id}/fork", headers={"If-Match": seen})
        assert answer.status_code == 412
        assert answer.json()["details"]["head"] == int(seen.strip('"')) + 1


def test_a_copy_is_removed_with_its_fork_and_with_the_source_of_it(serving: Any, settings: Settings) -> None:
    with serving(runs="workers") as server, server.client() as client:
        for forked_twice in (False, True):
            id = start(client)
            client.post(f"/api/conversations/{id}/file/upload", params={"path": "a"}, files={"file": ("a", b"a")})
            made = client.post(f"/api/conversations/{id}/fork", json={"workspace": "copy"}).json()
            copy = Path(made["workspace"]["working_dir"])
            assert (copy / "a").read_bytes() == b"a"
            assert copy.is_relative_to(settings.home)
            if not forked_twice:
                assert client.delete(f"/api/conversations/{made['id']}").status_code == 200
                assert not copy.exists()
                continue
            client.post(f"/api/conversations/{made['id']}/events", json={"content": "hi", "run": True})
            cascade = {"mode": "cascade"}
            assert client.delete(f"/api/conversations/{id}", params=cascade).status_code == 409, "the fork runs"
            client.post(f"/api/conversations/{made['id']}/interrupt")
            assert client.delete(f"/api/conversations/{id}", params=cascade).status_code == 200
            assert not copy.exists()


def test_a_copy_is_not_made_in_the_folder_of_a_tenant_with_the_name_of_an_id(serving: Any, new_key: Any) -> None:
    name = str(uuid4())
    red, other = new_key(tenant="red", role="admin"), new_key(tenant=name, role="admin")
    with serving() as server, server.client(red.text) as client, server.client(other.text) as theirs:
        theirs.post(
            f"/api/conversations/{start(theirs)}/file/upload", params={"path": "a"}, files={"file": ("a", b"a")}
        )
        answer = client.post(f"/api/conversations/{start(client)}/fork", json={"id": name, "workspace": "copy"})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
        assert client.get(f"/api/conversations/{name}").status_code == 404


def test_a_recorded_turn_is_said_again_in_a_fork_and_compared_turn_by_turn(serving: Any) -> None:
    calls = [Answer(calls=(ServerCall(tool="list_files", arguments={}, id=id),)) for id in ("c1", "c2", "c3")]
    with (
        serving("hello", calls[0], "two files", "bye", *calls[1:], "as before", tools="read") as server,
        server.client() as client,
    ):
        id = start(client)
        for text in ("hi", "which files?", "thanks"):
            say(client, id, text)
        cut = next(
            event["seq"]
            for event in log(client, id)
            if event.get("content") == [{"type": "text", "text": "which files?"}]
        )
        body = {"at": cut, "overrides": {"tools": "recorded"}}
        fork = client.post(f"/api/conversations/{id}/fork", json=body).json()["id"]
        path, chosen = f"/api/conversations/{fork}/repeat", str(uuid4())
        turn = {"conversation": id, "turn": 2, "id": chosen}
        sent = client.post(path, json=turn)
        assert (sent.status_code, sent.json()["event_id"]) == (200, chosen)
        assert client.post(path, json=turn).json()["head"] == sent.json()["head"], "sent once"
        assert client.post(f"/api/conversations/{fork}/run", json={"wait": 60}).json()["output"] == "as before"
        ends = [event["kind"] for event in log(client, fork) if event["kind"] in ("ToolReturned", "ToolRejected")]
        assert ends == ["ToolReturned", "ToolRejected"]
        compared = client.get(f"/api/conversations/{id}/compare/{fork}").json()
        assert (compared["a"]["own"]["requests"], compared["b"]["own"]["requests"]) == (2, 3)
        assert compared["a"]["stop"] < compared["a"]["head"]
        until = client.get(f"/api/conversations/{id}/compare/{fork}", params={"until": 3}).json()
        assert (until["a"]["own"]["requests"], until["a"]["stop"]) == (3, until["a"]["head"])
        for wrong in ({"turn": 0}, {"turn": 4}, {"turn": -1}, {"turn": 2**70}, {"turn": "2"}, {}):
            refused = client.post(path, json=wrong)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), wrong
        other = start(client, initial_message="unrelated")
        assert client.post(path, json={"conversation": other, "turn": 1}).status_code == 422
        assert client.post(path, json={"conversation": str(uuid4()), "turn": 1}).status_code == 404
        assert client.get(f"/api/conversations/{id}/compare/{fork}", params={"until": 9}).status_code == 422
        wrong_mode = {"overrides": {"tools": "run"}}
        assert client.post(f"/api/conversations/{id}/fork", json=wrong_mode).status_code == 422


def test_turns_come_in_pages(serving: Any) -> None:
    call = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))
    with serving("hello", call, "no files", "bye", tools="read") as server, server.client() as client:
        id = start(client)
        path = f"/api/conversations/{id}/turns"
        assert client.get(path).json() == {"items": [], "next_page_id": None}
        for text in ("hi", "which files?", "thanks"):
            say(client, id, text)
        whole = client.get(path).json()
        assert whole["next_page_id"] is None
        assert [(turn["number"], turn["output"]) for turn in whole["items"]] == [
            (1, "hello"),
            (2, "no files"),
            (3, "bye"),
        ]
        assert [call["tool"] for call in whole["items"][1]["calls"]] == ["list_files"]
        pages, page_id = list[Any](), "1"
        while page_id is not None:
            page = client.get(path, params={"limit": 1, "page_id": page_id}).json()
            pages += page["items"]
            page_id = page["next_page_id"]
        assert pages == whole["items"]
        assert client.get(path, params={"page_id": "4"}).json() == {"items": [], "next_page_id": None}
        for wrong in ({"page_id": "0"}, {"page_id": "x"}, {"limit": 0}, {"limit": 101}, {"page": "1"}):
            assert client.get(path, params=wrong).status_code == 422, wrong
