"""What the holders of keys may do on a server, and what none of them may: rules, paths, wrong keys."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.journeys.conftest import BOUGH, Person

from bough.testing import Answer, OpenAIServer, ServerCall

_ALWAYS = {"kind": "AlwaysConfirm"}
_NEVER = {"kind": "NeverConfirm"}


def _create_key(person: Person, name: str, *options: str) -> str:
    return person.bough("keys", "create", name, *options).stdout.strip()


def _create(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_key_that_may_not_approve_does_not_widen_the_rules_of_a_conversation(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="write_file", arguments={"path": "note.txt", "content": "written"}, id="c1")
    model = openai_server(Answer(calls=(call,)), "done")
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    boss = _create_key(person, "boss")
    writer = _create_key(person, "writer", "--role", "write", "--scope", "conversations")
    with person.serve() as server, server.client(boss) as admin, server.client(writer) as client:
        made = _create(
            admin,
            confirmation_policy=_ALWAYS,
            security_analyzer={"kind": "RuleAnalyzer", "risks": {"write_file": "HIGH"}},
            limits={"steps": 10},
            initial_message="write a note",
            workspace={"working_dir": "notes"},
        )
        path = f"/api/conversations/{made['id']}"
        ended = admin.post(f"{path}/run", json={"wait": 60}).json()
        assert ended["status"] == "waiting_for_confirmation"
        before = admin.get(path).json()
        refused = [
            client.post(f"{path}/confirmation_policy", json={"policy": _NEVER}),
            client.post(f"{path}/confirmation_policy", json={"policy": {"kind": "ConfirmRisky"}}),
            client.post(f"{path}/security_analyzer", json={"security_analyzer": {"kind": "RuleAnalyzer"}}),
            client.post(f"{path}/security_analyzer", json={"security_analyzer": None}),
            client.post(f"{path}/limits", json={"steps": 11}),
            client.post(f"{path}/limits", json={"steps": None}),
            client.post(f"{path}/run"),
        ]
        # A run without a body approves in the peer's form alone: here it starts nothing.
        assert [answer.status_code for answer in refused] == [403] * 6 + [200], [each.text for each in refused]
        assert all("approve" in answer.json()["detail"] + answer.json()["hint"] for answer in refused[:6])
        after = admin.get(path).json()
        same = ("execution_status", "confirmation_policy", "limits", "waiting", "head")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        assert not (person.home / ".bough" / "workspaces" / "local" / "notes" / "note.txt").exists()

        # What asks as often, or is stricter, needs no scope; nor does a fork, which keeps the rules.
        assert client.post(f"{path}/confirmation_policy", json={"policy": _ALWAYS}).status_code == 200
        assert client.post(f"{path}/limits", json={"steps": 9}).status_code == 200
        fork = client.post(f"{path}/fork", json={"at": 1, "agent": {"name": "other"}}).json()
        assert (fork["confirmation_policy"], fork["limits"]["steps"]) == (_ALWAYS, 9)
        # With the scope the rules may become wider again.
        assert admin.post(f"{path}/limits", json={"steps": 20}).status_code == 200
        assert admin.post(f"{path}/confirmation_policy", json={"policy": _NEVER}).status_code == 200


def test_a_tenant_reads_no_file_outside_of_its_folder(person: Person) -> None:
    secret = person.folder / "secret"
    (secret / "skills" / "hosts").mkdir(parents=True)
    (secret / "prompt.txt").write_text("words of the host")
    (secret / "skills" / "hosts" / "SKILL.md").write_text("---\nname: hosts\ndescription: words of the host\n---\nx")
    _create_key(person, "boss")
    red = _create_key(person, "red", "--tenant", "red", "--role", "admin")
    with person.serve() as server, server.client(red) as client:
        for field in ({"system_prompt_path": str(secret / "prompt.txt")}, {"skill_roots": [str(secret / "skills")]}):
            agent = {"name": "mine", "model": "offline", **field}
            refused = client.post("/api/conversations", json={"agent": agent})
            assert refused.status_code == 403, refused.text
            assert f"agent.{next(iter(field))}" in refused.json()["detail"]
            assert refused.json()["hint"]
            made = _create(client)
            forked = client.post(f"/api/conversations/{made['id']}/fork", json={"agent": agent})
            assert forked.status_code == 403, forked.text
        assert "words of the host" not in json.dumps(client.get("/api/conversations/search?full=true").json())


@pytest.mark.needs("bubblewrap")
def test_a_workspace_that_became_a_link_leads_nowhere_else(person: Person) -> None:
    (person.folder / "secret.txt").write_text("words of the host")
    _create_key(person, "boss")
    red = _create_key(person, "red", "--tenant", "red", "--role", "admin")
    with person.serve() as server, server.client(red) as client:
        made = _create(
            client, agent={"model": "offline", "workspace_access": "run"}, workspace={"working_dir": "inner"}
        )
        path = f"/api/conversations/{made['id']}"
        command = f"rm -rf inner && ln -s {person.folder} inner && echo replaced"
        ran = client.post("/api/bash/execute_bash_command", json={"command": command})
        assert "replaced" in ran.text, ran.text
        answers = [
            client.get(f"{path}/file/download", params={"path": "secret.txt"}),
            client.get(f"{path}/file/list", params={"path": "."}),
            client.post(f"{path}/file/upload", params={"path": "new.txt"}, files={"file": b"x"}),
            client.post(f"{path}/bash/execute_bash_command", json={"command": "cat secret.txt"}),
            client.post(f"{path}/bash/start_bash_command", json={"command": "cat secret.txt"}),
            client.get(f"{path}/git/changes", params={"path": "."}),
            client.post("/api/bash/execute_bash_command", json={"command": "cat secret.txt", "cwd": "inner"}),
            client.post(f"{path}/fork", json={"workspace": "copy"}),
            client.post(f"{path}/run", json={"wait": 60}),
        ]
        assert "words of the host" not in "".join(answer.text for answer in answers)
        assert [answer.status_code for answer in answers[:-1]] == [403] * (len(answers) - 1)
        assert not Path(person.folder / "new.txt").exists()


def test_wrong_keys_lock_nobody_out_who_has_a_valid_one(person: Person) -> None:
    valid = _create_key(person, "boss")
    path = "/api/conversations/search"
    with person.serve() as server, server.client() as client:
        codes = [client.get(path, headers={"X-Session-API-Key": f"wrong{n}"}).status_code for n in range(15)]
        assert codes == [401] * 10 + [429] * 5
        assert client.get(path, headers={"X-Session-API-Key": valid}).status_code == 200
        assert client.get(path, headers={"Authorization": f"Bearer {valid}"}).status_code == 200
        throttled = client.get(path, headers={"X-Session-API-Key": "wrong"})
        assert (throttled.status_code, throttled.json()["details"]["limit"]) == (429, "wrong_keys")


def test_the_key_is_checked_before_the_body_is_read(person: Person) -> None:
    _create_key(person, "boss")
    head = (
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        "X-Session-API-Key: wrong\r\nContent-Length: {length}\r\n\r\n"
    )
    requests = [
        ("/api/conversations", "application/json", 9_000_000),
        ("/api/file/upload?path=a", "multipart/form-data; boundary=b", 90_000_000),
        ("/api/conversations/import", "application/octet-stream", 90_000_000),
        ("/mcp", "application/json", 9_000_000),
        ("/a2a/default", "application/json", 9_000_000),
    ]
    with person.serve() as server:
        url = urlsplit(server.url)
        for path, kind, length in requests:
            with socket.create_connection((url.hostname, url.port), 20) as connection:
                connection.sendall(head.format(path=path, kind=kind, length=length).encode())
                assert b" 401 " in connection.recv(65_536).split(b"\r\n")[0], path  # no byte of the body was sent


def test_a_page_of_a_listed_origin_calls_the_server_and_no_other_page_does(person: Person) -> None:
    page, other = "https://app.example", "https://elsewhere.example"
    person.environment |= {"BOUGH_SERVER_ORIGINS": page}
    key = _create_key(person, "page")
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-session-api-key,if-match,idempotency-key",
    }
    with person.serve() as server, server.client() as stranger, server.client(key) as client:
        answer = stranger.options("/api/conversations", headers={"Origin": page, **asked})
        assert answer.status_code == 204, answer.text
        assert answer.headers["access-control-allow-origin"] == page
        allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
        assert set(asked["Access-Control-Request-Headers"].split(",")) <= allowed
        assert "POST" in answer.headers["access-control-allow-methods"]

        made = client.post("/api/conversations", json={}, headers={"Origin": page})
        exposed = made.headers["access-control-expose-headers"].lower()
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, page)
        assert "etag" in exposed
        assert "access-control-allow-credentials" not in made.headers
        refused = stranger.get("/api/conversations/search", headers={"Origin": page})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, page)

        for answer in (
            stranger.options("/api/conversations", headers={"Origin": other, **asked}),
            client.get("/api/conversations/search", headers={"Origin": other}),
            client.post("/api/conversations", json={}, headers={"Origin": other}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")], answer.request.url
            assert "origin" in answer.headers["vary"].lower()
        assert answer.status_code == 403


def test_small_answers_are_right(person: Person) -> None:
    key = _create_key(person, "boss", "--scope", "conversations", "--scope", "files", "--expires", "90d")
    shown = person.bough("keys", "list").stdout
    assert "conversations,files" in shown
    assert "until 20" in shown
    with person.serve() as server, server.client(key) as client, server.client() as stranger:
        # A field of another body is not its own hint.
        unknown = client.post("/api/conversations", json={"overrides": {}}).json()
        assert "overrides" in unknown["detail"]
        assert "did you mean" not in unknown["hint"]
        assert "did you mean `title`?" in client.post("/api/conversations", json={"titel": "x"}).json()["hint"]

        wrong = client.put("/api/conversations", json={})
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")

        # What is refused leaves no folder.
        agent = {"model": "nonsense:model"}
        assert client.post("/api/conversations", json={"agent": agent}).status_code == 422
        deep = {"agent": agent, "workspace": {"working_dir": "deep/er"}}
        assert client.post("/api/conversations", json=deep).status_code == 422
        root = person.home / ".bough" / "workspaces" / "local"
        assert list(root.iterdir() if root.exists() else []) == []

        # Several keys in one request are refused, whichever headers they are in.
        path = "/api/conversations/search"
        other = ("X-Session-API-Key", "another")
        for headers in ([("X-Session-API-Key", key), other], [("Authorization", f"Bearer {key}"), other]):
            assert stranger.get(path, headers=headers).status_code == 401, headers
            assert stranger.get(path, headers=headers[:1]).status_code == 200

        # Events do not say what the machine of a worker is called.
        made = _create(client, agent={"model": "offline"}, initial_message="hello")
        client.post(f"/api/conversations/{made['id']}/run", json={"wait": 60})
        ours = {"Accept": "application/vnd.bough.event+json"}
        events = client.get(f"/api/conversations/{made['id']}/events/search", headers=ours).json()["items"]
        workers = {event["worker"] for event in events if event.get("worker")}
        assert workers
        assert socket.gethostname() not in {worker.rpartition("/")[2] for worker in workers}

        # A proxy on this machine passes on what comes from elsewhere.
        assert stranger.get("/metrics").status_code == 200
        assert stranger.get("/metrics", headers={"X-Forwarded-For": "203.0.113.7"}).status_code == 401


def test_a_server_whose_keys_open_none_of_its_secrets_does_not_start(person: Person) -> None:
    with person.serve() as server, server.client() as client:
        made = _create(client, secrets={"TOKEN": "a secret value"})
        assert client.get(f"/api/conversations/{made['id']}").status_code == 200
    person.environment |= {"BOUGH_SECRET_KEY": "another key that is long enough for it"}
    result = person.try_command([BOUGH, "serve", "--port", "0"], timeout=30)
    assert result.code != 0
    assert "encrypted with keys that are missing" in result.output
    assert "Traceback" not in result.output
