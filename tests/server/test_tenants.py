"""`bough tenants` and `bough a2a serve` as their users have them: processes beside a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.processes import POLL_SECONDS

from bough.errors import NotFound
from bough.events import open_store
from bough.events.model import TextPart, UserMessage
from bough.events.record import ConversationRecord
from bough.server.auth.owned import OwnedStore
from bough.settings import Settings
from bough.types import new_id

BOUGH = Path(sys.executable).with_name("bough")


def run(settings: Settings, *args: str) -> dict[str, Any]:
    command = [BOUGH, *args, "--home", settings.home, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_a_disabled_tenant_is_refused_until_it_is_enabled(serving: Any, new_key: Any, settings: Settings) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        id = ours.post("/api/conversations", json={}).json()["id"]
        listed = run(settings, "tenants", "list")["data"]["tenants"]
        assert [(each["id"], each["disabled"]) for each in listed] == [("blue", None), ("red", None)]
        run(settings, "tenants", "disable", "red")
        while ours.get(f"/api/conversations/{id}").status_code != 401:
            time.sleep(POLL_SECONDS)  # a verified key is remembered for a second
        assert theirs.get("/api/conversations/count").json() == 0
        run(settings, "tenants", "enable", "red")
        while (again := ours.get(f"/api/conversations/{id}")).status_code == 401:
            time.sleep(5 * POLL_SECONDS)  # the refusal is remembered for a second, and ten wrong keys are enough
        assert again.status_code == 200, "its conversations stayed"
        assert run(settings, "tenants", "disable", "nobody")["error"]["code"] == "not_found"


def test_only_the_operator_sees_the_health_of_the_machine(serving: Any, new_key: Any) -> None:
    keys = new_key(tenant="red", role="admin"), new_key(role="write"), new_key(role="admin")
    with serving() as server, server.client() as client:
        sent = [{"X-Session-API-Key": key.text} for key in keys]
        *refused, answer = [client.get("/api/health", headers=headers) for headers in sent]
        assert [each.status_code for each in refused] == [403, 403]
        health = answer.json()
        found = {(check["part"], check["name"]): check["state"] for check in health["checks"]}
        assert health["works"] is all(each["state"] == "ok" for each in health["checks"] if each["essential"])
        assert (found["server", "store"], found["tasks", "rows"], found["version", "bough"]) == ("ok", "ok", "ok")
        assert {part for part, _ in found} == {"server", "executor", "model", "tasks", "config", "version"}


def test_one_agent_is_served_at_the_root(tmp_path: Path) -> None:
    agent = tmp_path / "greeter.yaml"
    agent.write_text("name: greeter\ndescription: Greets people.\nmodel: offline\n")
    command = [BOUGH, "a2a", "serve", "--agent", agent, "--port", "0", "--home", tmp_path / "home", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stderr is not None
        said = json.loads(serving.stdout.readline())
        with httpx2.Client(base_url=said["data"]["url"], trust_env=False, timeout=60) as client:
            card = client.get("/.well-known/agent-card.json").json()
            assert (card["name"], card["description"]) == ("greeter", "Greets people.")
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            answer = client.post("/", json=body, headers={"A2A-Version": "1.0"}).json()
            assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer
            rest = client.get("/tasks", headers={"A2A-Version": "1.0"}).json()
            assert [task["id"] for task in rest["tasks"]] == [answer["result"]["task"]["id"]]
            settings = tmp_path / "home" / "bough.yaml"
            settings.write_text("server: {limits: {runs: nonsense}}")
            serving.send_signal(signal.SIGHUP)
            while "server setting `limits.runs`" not in serving.stderr.readline():
                assert serving.poll() is None, "what cannot be read changes nothing"
            settings.write_text("server: {limits: {conversations: 1}}")
            serving.send_signal(signal.SIGHUP)
            body["params"] = {"message": message | {"messageId": "other"}}
            while "error" not in (answer := client.post("/", json=body, headers={"A2A-Version": "1.0"}).json()):
                body["params"]["message"]["messageId"] += "r"
            assert "limit_exceeded" in answer["error"]["message"], "the limits hold that the settings say now"
        serving.terminate()
        serving.stderr.read()
    assert serving.returncode == 0


@pytest.mark.anyio
async def test_an_id_that_is_used_again_by_another_tenant_is_theirs_alone(tmp_path: Path) -> None:
    """A session may outlive its conversation; whoever makes one with the same id, or imports it, is its owner."""
    now = 0.0
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    ours, theirs = OwnedStore(store, "red", monotonic=lambda: now), OwnedStore(store, "blue")
    id, noon = new_id(), datetime(2026, 1, 1, 12, tzinfo=UTC)
    record = ConversationRecord(id=id, root=id, created=noon, updated=noon)
    await ours.create(record)
    assert await ours.tail(id, 1) == []
    await store.delete(id)
    await theirs.create(record, events=[UserMessage(content=[TextPart(text="theirs alone")])])
    now += 1.5
    with pytest.raises(NotFound):
        await ours.tail(id, 1)
    await store.aclose()


def test_an_address_of_a_tenant_is_public_and_has_a_key_of_its_own(serving: Any, new_key: Any) -> None:
    red = new_key(tenant="red", role="admin")
    with serving("one") as server, server.client(red.text) as client:
        kept = client.post("/api/conversations", json={}).json()["id"]

        def ask(path: str, base_url: str, **llm: str) -> httpx2.Response:
            agent = {"kind": "Agent", "llm": {"model": "openai/test", "base_url": base_url, **llm}}
            return client.post(path, json={"agent": agent})

        def create(base_url: str, **key: str) -> httpx2.Response:
            return ask("/api/conversations", base_url, **key)

        def fork(base_url: str, **key: str) -> httpx2.Response:
            return ask(f"/api/conversations/{kept}/fork", base_url, **key)

        def change(base_url: str, **key: str) -> httpx2.Response:
            body = {"model": "openai:test", "base_url": base_url, **key}
            return client.post(f"/api/conversations/{kept}/model", json=body)

        for said in (create, fork, change):
            without = said("https://models.example/v1")
            assert (without.status_code, without.json()["code"]) == (403, "permission_denied"), without.text
            assert "base_url needs a model key of its own" in without.json()["detail"], (
                "the operator's is not sent there"
            )
            for inside in ("http://169.254.169.254/", "https://127.0.0.1/v1", "https://[::1]/"):
                refused = said(inside, api_key="a key of the tenant")
                assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied"), refused.text
                assert "base_url: it leads to this machine" in refused.json()["detail"]
        assert create(server.model_url).status_code == 201, "it is the operator's"
