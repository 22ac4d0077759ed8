"""Commands, files, git and secrets over HTTP, in OpenHands' form."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.server.processes import POLL_SECONDS

from bough.server.bodies.base import OUR_EVENTS
from bough.settings import Settings
from bough.testing import OpenAIServer
from bough.testing.openai_server import Received, Reply

BODY = {"agent": {"kind": "Agent", "llm": {"model": "offline"}, "tools": []}}
OFTEN = {"requests_per_second": 100_000}
"""Of tests that ask as fast as they can until a command has ended."""

CANARY = "canary-4711-very-secret"


def output_of(client: httpx2.Client, prefix: str, command: str, **body: Any) -> dict[str, Any]:
    started = client.post(f"{prefix}/bash/start_bash_command", json={"command": command, **body}).json()
    params = {"kind__eq": "BashOutput", "command_id__eq": started["id"]}
    until = time.monotonic() + 60
    while time.monotonic() < until:
        items = client.get(f"{prefix}/bash/bash_events/search", params=params).json()["items"]
        if items:
            assert [item["order"] for item in items] == list(range(len(items)))
            return items[-1]
        time.sleep(POLL_SECONDS)
    raise AssertionError("the command did not end")


def test_commands_run_in_the_sandbox(serving: Any) -> None:
    with serving(limits=OFTEN) as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        for prefix in ("/api", f"/api/conversations/{id}"):
            ran = output_of(client, prefix, "echo hi; echo no >&2; exit 3")
            assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "hi\n", "no\n")
        late = output_of(client, "/api", "sleep 60", timeout=1)
        assert late["exit_code"] == -1
        whole = client.post("/api/bash/execute_bash_command", json={"command": "pwd"}).json()
        assert whole["stdout"] == "/work\n"
        started = client.post("/api/bash/start_bash_command", json={"command": "sleep 60"}).json()
        assert client.post(f"/api/bash/bash_commands/{started['id']}/stop").json() == {"success": True}
        assert client.post(f"/api/bash/bash_commands/{uuid4()}/stop").status_code == 404
        assert client.post("/api/bash/start_bash_command", json={"command": ""}).status_code == 422


def test_a_command_makes_a_repository_and_cannot_change_what_git_runs_in_one(serving: Any) -> None:
    with serving(limits=OFTEN) as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        prefix = f"/api/conversations/{id}"
        assert output_of(client, prefix, "git init -q && echo x >.git/made")["exit_code"] == 0
        again = output_of(client, prefix, "cat .git/made; echo y >.git/config")
        assert (again["exit_code"], again["stdout"]) == (1, "x\n")


def test_files_go_up_and_come_down(serving: Any, settings: Settings) -> None:
    with serving(upload_bytes=2048) as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        prefix = f"/api/conversations/{id}/file"
        params = {"path": "sub/a.bin"}
        assert (
            client.post(f"{prefix}/upload", params=params, files={"file": ("a", b"0123456789")}).json()["file_size"]
            == 10
        )
        got = client.get(f"{prefix}/download", params=params)
        assert got.content == b"0123456789"
        assert got.headers["content-disposition"] == 'attachment; filename="a.bin"'
        part = client.get(f"{prefix}/download", params=params, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        assert client.get(f"{prefix}/download", params=params, headers={"Range": "bytes=20-"}).status_code == 416
        big = client.post(f"{prefix}/upload", params=params, files={"file": ("a", b"x" * 5000)})
        assert big.status_code == 413
        assert client.post(f"{prefix}/create_directory", params={"path": "made"}).json() == {"success": True}
        names = [Path(item["path"]).name for item in client.get(f"{prefix}/list", params={"path": "."}).json()["items"]]
        assert names == ["made", "sub"]
        assert client.get(f"{prefix}/download", params={"path": "nothing"}).status_code == 404
        assert client.get(f"{prefix}/download", params={"path": "sub"}).status_code == 422
        folder = settings.home / "workspaces" / "local" / id
        (folder / "link").symlink_to("/etc/passwd")
        assert client.get(f"{prefix}/download", params={"path": "link"}).status_code in (403, 404)


def test_git_says_what_changed(serving: Any, settings: Settings) -> None:
    with serving() as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        folder = settings.home / "workspaces" / "local" / id
        prefix = f"/api/conversations/{id}/git"
        assert client.get(f"{prefix}/changes", params={"path": str(folder)}).json() == []

        def git(*words: str) -> None:
            named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"]
            subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)

        git("init", "-q")
        (folder / "below").mkdir()
        for name in ("kept", "gone", "moved", "below/deep"):
            (folder / name).write_text(f"{Path(name).name} was long enough to be found again\n")
        git("add", ".")
        git("commit", "-q", "-m", "first")
        (folder / "kept").write_text("now\n")
        os.remove(folder / "gone")
        git("mv", "moved", "there")
        (folder / "new").write_text("new\n")
        changes = client.get(f"{prefix}/changes", params={"path": str(folder)}).json()
        assert {change["path"]: change["status"] for change in changes} == {
            "gone": "DELETED", "kept": "UPDATED", "new": "ADDED", "there": "MOVED",
        }  # fmt: skip
        shown = client.get(f"{prefix}/diff", params={"path": "kept"}).json()
        assert shown == {"modified": "now\n", "original": "kept was long enough to be found again\n"}
        assert client.get(f"{prefix}/diff", params={"path": "new"}).json() == {"modified": "new\n", "original": None}
        shown = client.get(f"{prefix}/diff", params={"path": "below/deep"}).json()
        assert shown["original"] == "deep was long enough to be found again\n", "the repository begins above its folder"
        assert client.get(f"{prefix}/diff", params={"path": "never"}).status_code == 404
        assert client.get(f"{prefix}/diff", params={"path": "kept", "ref": "--output=x"}).status_code == 422


def test_secrets_are_nowhere_in_clear(serving: Any, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with serving() as server, server.client() as client:
        body = {**BODY, "secrets": {"ONE": f"{CANARY}-1"}}
        body["agent"] = {
            **BODY["agent"],
            "llm": {"model": "openai/test", "base_url": server.model_url, "api_key": f"{CANARY}-2"},
        }
        made = client.post("/api/conversations", json=body)
        assert made.status_code == 201, made.text
        id = made.json()["id"]
        posted = {"TWO": f"{CANARY}-3", "THREE": {"kind": "StaticSecret", "value": f"{CANARY}-4"}}
        answer = client.post(f"/api/conversations/{id}/secrets", json={"secrets": posted})
        assert answer.json() == {"success": True}
        client.post(f"/api/conversations/{id}/events", json={"content": f"the key is {CANARY}-1"})
        info = client.get(f"/api/conversations/{id}").json()
        assert sorted(info["secret_registry"]["secret_sources"]) == ["ONE", "THREE", "TWO"]
        assert info["agent"]["llm"]["api_key"] == "**********"
        fork = client.post(f"/api/conversations/{id}/fork").json()
        assert sorted(fork["secret_registry"]["secret_sources"]) == ["ONE", "THREE", "TWO"]
        looked_up = {"X": {"kind": "LookupSecret", "url": f"http://{CANARY}/"}}
        wrong = [
            client.post(f"/api/conversations/{id}/secrets", json={"secrets": looked_up}),
            client.post(f"/api/conversations/{id}/secrets", json={"secrets": {"not a name": f"{CANARY}-5"}}),
            client.post(f"/api/conversations/{id}/secrets", json={"secrets": {"SHORT": "abc"}}),
            client.post("/api/conversations", json={**body, "secrets": f"{CANARY}-6"}),
        ]
        assert {each.status_code for each in wrong} == {422}
        other = {"model": "openai:other", "base_url": server.model_url, "api_key": f"{CANARY}-7"}
        changed = client.post(f"/api/conversations/{id}/model", json=other)
        assert changed.json() == {"success": True}
        for named in ({"model": "nonsense:x"}, {"api_key": [f"{CANARY}-8"]}):
            wrong.append(client.post(f"/api/conversations/{id}/model", json=other | named))
            assert wrong[-1].status_code == 422
        events = client.get(f"/api/conversations/{id}/events/search").text
        shown = [client.post(f"/api/conversations/{id}/export", json={"format": form}) for form in ("jsonl", "bundle")]
        assert CANARY.encode() not in b"".join(each.content for each in shown)
        said = [made.text, events, client.get("/metrics").text, *(each.text for each in wrong), caplog.text]
        assert not [text for text in said if CANARY in text]
    stored = b"".join(file.read_bytes() for file in settings.home.rglob("*") if file.is_file())
    assert CANARY.encode() not in stored
    assert (settings.home / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_models_key_is_for_its_provider_and_address(serving: Any, new_key: Any) -> None:
    keys: list[str | None] = []
    reached, going = threading.Event(), threading.Event()

    def hear(received: Received) -> Reply:
        keys.append(received.headers.get("authorization"))
        return "heard"

    def wait(received: Received) -> Reply:
        reached.set()
        going.wait(60)
        return hear(received)

    writer = new_key(tenant="red", role="write")
    with serving(hear, hear, hear, wait) as server, server.client(writer.text) as client:
        path = f"/api/conversations/{client.post('/api/conversations', json={}).json()['id']}"

        def ask(**model: Any) -> int:
            changed = client.post(f"{path}/model", json=model)
            client.post(f"{path}/events", json={"content": "hello"})
            client.post(f"{path}/run", json={"wait": 60})
            return changed.status_code

        address = {"base_url": server.model_url}
        assert ask(model="openai:one", api_key="key-of-one", **address) == 200
        assert ask(model="openai:two") == 200
        assert keys == ["Bearer key-of-one"] * 2
        assert ask(model="offline") == 200
        assert ask(model="openai:three", **address) == 200
        assert keys[2] != "Bearer key-of-one", "it ended with the model that it was posted for"
        assert (
            client.post(f"{path}/model", json={"model": "openai:x", "base_url": "https://x.example"}).status_code == 403
        )
        client.post(f"{path}/events", json={"content": "hello", "run": True})
        assert reached.wait(60)
        assert client.post(f"{path}/model", json={"model": "openai:one", "api_key": "key-of-one"}).status_code == 409
        going.set()


def test_a_fork_has_the_key_that_was_posted_for_its_model(serving: Any) -> None:
    keys: list[str | None] = []

    def hear(received: Received) -> Reply:
        keys.append(received.headers.get("authorization"))
        return "heard"

    with OpenAIServer([hear]) as elsewhere, serving(hear, hear, hear, hear, hear) as server, server.client() as client:
        address = {"base_url": server.model_url}
        llm = {"model": "openai/one", "api_key": "key-of-the-source", **address}
        body = {**BODY, "agent": {**BODY["agent"], "llm": llm}}
        source = client.post("/api/conversations", json=body).json()["id"]

        def fork(**asked: Any) -> dict[str, Any]:
            made = client.post(f"/api/conversations/{source}/fork", json=asked)
            assert made.status_code == 201, made.text
            path = f"/api/conversations/{made.json()['id']}"
            client.post(f"{path}/events", json={"content": "hello"})
            assert client.post(f"{path}/run", json={"wait": 60}).json()["status"] == "finished"
            return client.get(path).json()

        own = {"agent": {**body["agent"], "llm": {**llm, "api_key": "key-of-the-fork"}}, "id": str(uuid4())}
        assert fork(**own)["agent"]["llm"]["api_key"] == "**********"
        assert client.post(f"/api/conversations/{source}/fork", json=own).status_code == 200, "the same request"
        fork(overrides={"model": "openai:two"})
        fork(agent={"model": "openai:two", **address})
        assert keys == ["Bearer key-of-the-fork", "Bearer key-of-the-source", "Bearer key-of-the-source"]
        fork(agent={"model": "openai:two", "base_url": elsewhere.url})
        assert keys.pop() != "Bearer key-of-the-source", "another address is somebody else"
        fork(overrides={"model": "offline"})
        changed = {"model": "openai:two", "api_key": "key-of-two", **address}
        assert client.post(f"/api/conversations/{source}/model", json=changed).status_code == 200
        fork(at=1)
        assert keys.pop() == "Bearer key-of-two", "a fork has the present model, and its key"


def test_a_fork_has_the_condenser_of_a_posted_agent(serving: Any) -> None:
    with serving() as server, server.client() as client:
        source = client.post("/api/conversations", json=BODY).json()["id"]

        def fork(condenser: dict[str, Any]) -> httpx2.Response:
            agent = {**BODY["agent"], "condenser": condenser}
            return client.post(f"/api/conversations/{source}/fork", json={"agent": agent})

        made = fork({"kind": "LLMSummarizingCondenser", "max_size": 77})
        assert made.status_code == 201, made.text
        events = client.get(
            f"/api/conversations/{made.json()['id']}/events/search",
            params={"limit": 500},
            headers={"Accept": OUR_EVENTS},
        ).json()["items"]
        assert events[-1]["changes"]["policies"]["condenser"]["max_events"] == 77
        assert fork({"kind": "Other"}).json()["detail"].startswith("agent.condenser.kind")


@pytest.mark.parametrize("key", [None, "key-of-two"])
def test_a_change_of_the_model_loses_no_secret_that_is_added_meanwhile(serving: Any, key: str | None) -> None:
    with serving() as server, server.client() as client:
        body = {"agent": {"model": "offline"}}
        path = f"/api/conversations/{client.post('/api/conversations', json=body).json()['id']}"
        address = {"base_url": server.model_url}
        assert client.post(f"{path}/model", json={"model": "openai:one", "api_key": "key-of-one", **address}).is_success
        services = server.app.state.services
        is_live = services.runs.is_live

        async def add_a_secret_first(id: Any) -> bool:
            services.runs.is_live = is_live
            await asyncio.to_thread(client.post, f"{path}/secrets", json={"secrets": {"TOKEN": CANARY}})
            return await is_live(id)

        services.runs.is_live = add_a_secret_first
        other = {"model": "openai:two", "base_url": f"{server.model_url}/", "api_key": key}
        refused = client.post(f"{path}/model", json={name: value for name, value in other.items() if value is not None})
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict"), refused.text


def test_what_a_body_of_the_peer_cannot_say_is_named(serving: Any) -> None:
    agent = BODY["agent"]
    with serving() as server, server.client() as client:
        for body, field in [
            ({**BODY, "plugins": [{"source": "x"}]}, "plugins"),
            ({**BODY, "client_tools": [{"name": "x"}]}, "client_tools"),
            ({**BODY, "hook_config": {"x": 1}}, "hook_config"),
            ({**BODY, "agent_definitions": [{"name": "x"}]}, "agent_definitions"),
            ({"agent": {**agent, "kind": "ACPAgent"}}, "agent.kind"),
            ({"agent": {**agent, "tools": [{"name": "terminl"}]}}, "agent.tools.0.name"),
            ({"agent": {**agent, "tools": [{"name": "terminal", "params": {"a": 1}}]}}, "agent.tools.0.params"),
            ({"agent": {**agent, "mcp_config": {"mcpServers": {"x": {}}}}}, "agent.mcp_config"),
            ({"agent": {**agent, "llm": {"model": "offline", "aws_role_name": "x"}}}, "agent.llm.aws_role_name"),
            *(
                ({"agent": {**agent, "llm": {"model": "offline", name: value}}}, f"agent.llm.{name}")
                for name, value in [
                    ("temperature", 3),
                    ("temperature", "warm"),
                    ("top_p", 1.5),
                    ("max_output_tokens", 0),
                    ("seed", 0.5),
                    ("timeout", -1),
                    ("reasoning_effort", "huge"),
                    ("extended_thinking_budget", 5000),
                    ("num_retries", -1),
                    ("retry_max_wait", "long"),
                    ("presence_penalty", 0.5),
                    ("api_version", "2024"),
                ]
            ),
            ({**BODY, "stuck_detection": False}, "stuck_detection"),
            ({**BODY, "stuck_detection_thresholds": {"monologue": 9}}, "stuck_detection_thresholds"),
            ({"agent": {**agent, "condenser": {"kind": "Other"}}}, "agent.condenser.kind"),
            ({**BODY, "security_analyzer": {"kind": "GraySwanAnalyzer"}}, "security_analyzer.kind"),
            ({**BODY, "new_field_of_theirs": 1}, "new_field_of_theirs"),
        ]:
            answer = client.post("/api/conversations", json=body)
            assert answer.status_code == 422, (field, answer.text)
            assert answer.json()["detail"].startswith(field), answer.text
        near = client.post("/api/conversations", json={"agent": {**agent, "tools": [{"name": "terminl"}]}}).json()
        assert "terminal" in near["hint"]
        empty = {**BODY, "plugins": None, "client_tools": [], "hook_config": None, "new_field_of_theirs": None}
        made = client.post("/api/conversations", json={**empty, "tool_module_qualnames": {"terminal": "a.b"}})
        assert made.json()["tool_module_qualnames"] == {"terminal": "a.b"}


def test_settings_of_a_posted_model_reach_it(serving: Any) -> None:
    asked = {"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 77, "seed": 7, "num_retries": 0}
    peers = {"reasoning_effort": "high", "extended_thinking_budget": 200_000, "stream": False, "usage_id": "agent"}
    with OpenAIServer(["done"]) as model, serving() as server, server.client() as client:
        llm = {"model": "openai/test", "base_url": model.url, **asked, **peers}
        message = {"content": [{"type": "text", "text": "hi"}]}
        body = {"agent": {"kind": "Agent", "llm": llm}, "initial_message": message}
        made = client.post("/api/conversations", json=body)
        assert made.status_code == 201, made.text
        client.post(f"/api/conversations/{made.json()['id']}/run", json={"wait": 60})
        [request] = model.received
        sent = {name: request.body.get(name) for name in ("temperature", "top_p", "max_completion_tokens", "seed")}
        assert sent == {"temperature": 0.25, "top_p": 0.5, "max_completion_tokens": 77, "seed": 7}
        assert made.json()["spec"]["retry"]["attempts"] == 1
        assert made.json()["agent"]["llm"] == llm, "given back as it was posted"
