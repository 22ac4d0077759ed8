"""Seed 001 over HTTP: create, message, run, fork with every field, continue with both, compare."""

from __future__ import annotations

import sqlite3
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
            ({"moment": "never"}, 422, "invalid_input"),
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


def count_rows(settings: Settings) -> dict[str, int]:
    """Return the number of rows of every table of the store."""
    with sqlite3.connect(settings.home / "bough.db") as db:
        tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
        return {name: db.execute(f'select count(*) from "{name}"').fetchone()[0] for name in tables}


def test_a_dry_run_describes_the_fork_and_writes_nothing(serving: Any, settings: Settings) -> None:
    call = Answer(calls=(ServerCall(tool="run_command", arguments={"command": "true"}, id="c1"),))
    with serving("hello", call, tools="run", policy="ask") as server, server.client() as client:
        id = start(client, title="t", secrets={"TOKEN": "hidden"})
        say(client, id, "hi")
        head = client.get(f"/api/conversations/{id}").json()["head"]
        assert say(client, id, "run it")["status"] == "waiting_for_confirmation"
        path, dry = f"/api/conversations/{id}/fork", {"dry_run": "true"}
        before, folders = count_rows(settings), sorted(settings.home.glob("workspaces/*"))
        whole = client.post(path, params=dry)
        assert whole.status_code == 200, whole.text
        preview = whole.json()
        assert preview["at"] == preview["head"] > head
        assert (preview["turns"], preview["secrets"], preview["inherited"]["requests"]) == (2, ["TOKEN"], 2)
        calls = [{"tool_call_id": "c1", "tool": "run_command", "started": False, "outcome": "closed"}]
        assert preview["open_calls"] == calls
        bodies: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"at": head}, {"at": head, "turns": 1, "open_calls": []}),
            ({"pending": "carry"}, {"open_calls": [calls[0] | {"outcome": "carried"}]}),
            ({"pending": "drop"}, {"open_calls": []}),
            ({"overrides": {"confirmation_policy": {"kind": "AlwaysConfirm"}}}, {}),
            ({"overrides": {"limits": {"requests": 3}}}, {}),
            ({"agent": {"model": "offline", "system_prompt": "Be brief."}}, {"has_new_prompt": True}),
            ({"workspace": "copy"}, {"workspace": {"kind": "LocalWorkspace", "working_dir": None, "policy": "copy"}}),
        ]
        for body, expected in bodies:
            answer = client.post(path, params=dry, json=body)
            assert answer.status_code == 200, (body, answer.text)
            assert answer.json() | expected == answer.json(), body
        assert count_rows(settings) == before
        assert sorted(settings.home.glob("workspaces/*")) == folders
        for body, _ in bodies:
            described, made = client.post(path, params=dry, json=body).json(), client.post(path, json=body).json()
            assert made["lineage"]["at"] == described["at"], body
            assert made["limits"] == described["limits"], body
            assert made["confirmation_policy"] == described["confirmation_policy"], body
            assert made["inherited"]["requests"] == described["inherited"]["requests"], body
            assert made["workspace_policy"] == described["workspace"]["policy"], body
            assert made["spec"]["model"] == described["model"], body


def test_a_dry_run_refuses_what_the_fork_would_refuse(serving: Any, settings: Settings) -> None:
    with serving(limits={"conversations": 1}) as server, server.client() as client:
        id = start(client)
        path = f"/api/conversations/{id}/fork"
        before = count_rows(settings)
        for dry_run in ("true", "false"):
            refused = client.post(path, params={"dry_run": dry_run}, json={})
            assert (refused.status_code, refused.json()["code"]) == (429, "limit_exceeded")
        assert count_rows(settings) == before
    with serving() as server, server.client() as client:
        id = start(client, confirmation_policy={"kind": "AlwaysConfirm"})
        path = f"/api/conversations/{id}/fork"
        before = count_rows(settings)
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"at": 99}, 422),
            ({"from_event_id": str(uuid4())}, 404),
            ({"id": id}, 409),
            ({"agent": "nobody"}, 422),
            ({"overrides": {"confirmation_policy": {"kind": "NeverConfirm"}}}, 422),
            ({"workspace": "worktree"}, 422),
            ({"moment": "never"}, 422),
        ]
        for body, status in wrong:
            dry, real = (client.post(path, params={"dry_run": value}, json=body) for value in ("true", "false"))
            assert dry.status_code == real.status_code == status, (body, dry.text)
            assert {**dry.json(), "instance": ""} == {**real.json(), "instance": ""}, body
        stale = client.post(path, params={"dry_run": "true"}, headers={"If-Match": '"99"'})
        assert stale.status_code == 412
        assert client.post(path, params={"dry_run": "perhaps"}).status_code == 422
        assert count_rows(settings) == before


def list_files(id: str, path: str = ".") -> Answer:
    return Answer(calls=(ServerCall(tool="list_files", arguments={"path": path}, id=id),))


def test_turns_of_two_branches_are_compared_in_pages(serving: Any) -> None:
    source_steps = [list_files("c1"), "no files", "bye"]
    fork_steps = [list_files("c1"), list_files("c2", "data"), "nothing at all", "and goodbye", "more"]
    with serving("hello", *source_steps, *fork_steps, tools="read") as server, server.client() as client:
        id = start(client)
        say(client, id, "hi")
        cut = client.get(f"/api/conversations/{id}").json()["head"]
        say(client, id, "which files?")
        say(client, id, "thanks")
        fork = client.post(f"/api/conversations/{id}/fork", json={"at": cut}).json()["id"]
        for text in ("which files?", "thank you", "and now?"):
            say(client, fork, text)
        path = f"/api/conversations/{id}/compare/{fork}/turns"
        whole = client.get(path)
        assert whole.status_code == 200, whole.text
        body = whole.json()
        assert (body["common"], body["next_page_id"]) == (cut, None)
        assert [turn["number"] for turn in body["items"]] == [2, 3, 4]
        second, third, fourth = body["items"]
        kinds = [[step["kind"] for step in second[side]["items"]] for side in ("a", "b")]
        assert kinds == [["message", "call", "answer"], ["message", "call", "call", "answer"]]
        assert second["steps"] == [
            {"a": 0, "b": 0, "same": True},
            {"a": 1, "b": 1, "same": True},
            {"a": None, "b": 2, "same": False},
            {"a": 2, "b": 3, "same": False},
        ]
        assert second["b"]["items"][2]["arguments"] == {"path": "data"}
        assert (second["a"]["usage"]["requests"], second["b"]["usage"]["requests"]) == (2, 3)
        assert [pair["same"] for pair in third["steps"]] == [False, False]
        assert (fourth["a"], fourth["b"]["items"][0]["text"]) == (None, "and now?")
        pages, page_id = list[Any](), None
        while True:
            options = {"limit": 1} | ({} if page_id is None else {"page_id": page_id})
            page = client.get(path, params=options).json()
            pages += page["items"]
            page_id = page["next_page_id"]
            if page_id is None:
                break
        assert pages == body["items"]
        short = client.get(path, params={"cut": 3}).json()["items"][0]["a"]["items"]
        assert [(step["text"], step["cut"], step["result"]) for step in short[::2]] == [
            ("whi", 12, None),
            ("no ", 8, None),
        ]
        assert client.get(path, params={"page_id": "9"}).json()["items"] == []
        for wrong in ({"page_id": "0"}, {"page_id": "x"}, {"limit": 21}, {"cut": -1}, {"page": "1"}):
            assert client.get(path, params=wrong).status_code == 422, wrong
        itself = client.get(f"/api/conversations/{id}/compare/{id}/turns")
        assert (itself.status_code, itself.json()["code"]) == (422, "invalid_input")
        assert client.get(f"/api/conversations/{id}/compare/{uuid4()}/turns").status_code == 404


def test_the_turns_after_a_cut_within_a_turn_begin_at_the_cut(serving: Any) -> None:
    with serving(list_files("c1"), "no files", "done", tools="read") as server, server.client() as client:
        id = start(client)
        say(client, id, "which files?")
        call = next(event for event in log(client, id) if event["kind"] == "ToolReturned")
        fork = client.post(f"/api/conversations/{id}/fork", json={"at": call["seq"]}).json()["id"]
        client.post(f"/api/conversations/{fork}/run", json={"wait": 60})
        (turn,) = client.get(f"/api/conversations/{id}/compare/{fork}/turns").json()["items"]
        assert turn["number"] == 1
        sides = [[(step["kind"], step["ended"]) for step in turn[side]["items"]] for side in ("a", "b")]
        assert sides == [
            [("call", "ToolReturned"), ("answer", "")],
            [("call", "ToolInterrupted"), ("answer", "")],
        ]
        assert turn["steps"] == [{"a": 0, "b": 0, "same": False}, {"a": 1, "b": 1, "same": False}]
