"""Tasks, approvals, sums of what was used and trees over HTTP; each within one tenant."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.server.conftest import Running
from tests.server.processes import POLL_SECONDS

from bough.agents.spec import AgentSpec
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.testing import Answer, OpenAIServer, ServerCall

ASKS = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))


def ended(client: httpx2.Client, task: str) -> dict[str, Any]:
    """Return a task once its events have ended."""
    with client.stream("GET", f"/api/tasks/{task}/events", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert next(event["payload"]["state"] for event in data if event["event_type"] == "state_change") == "pending"
    return client.get(f"/api/tasks/{task}").json()


def test_a_task_is_submitted_followed_and_listed(serving: Any) -> None:
    with serving("forty-two", "hi") as server, server.client() as client:
        body = {"input": "what is it?", "agent": "default", "id": str(uuid4()), "priority": 3}
        made = client.post("/api/tasks", json=body)
        assert (made.status_code, made.json()["id"]) == (201, body["id"])
        task = ended(client, body["id"])
        assert (task["state"], task["result"], task["priority"], task["conversation"]) == (
            "completed", "forty-two", 3, body["id"],
        )  # fmt: skip
        again = client.post("/api/tasks", json=body)
        assert (again.status_code, again.json()["state"]) == (200, "completed"), "the same request, the same task"
        assert client.post("/api/tasks", json=body | {"input": "other"}).status_code == 409
        assert client.post("/api/tasks", json={"input": "x", "agent": "nobody"}).status_code == 422
        listed = client.get("/api/tasks", params={"state": "completed", "root": body["id"]}).json()
        assert [item["id"] for item in listed["items"]] == [body["id"]]
        assert client.get("/api/tasks", params={"state": "failed"}).json()["items"] == []
        started = client.post("/api/conversations", json={"agent": "default", "initial_message": "hi", "run": True})
        run = client.get("/api/tasks", params={"root": started.json()["id"]}).json()["items"][0]
        assert run["agent"] == "default", "a run over HTTP is that of its conversation's agent"
        of_agent = client.get("/api/tasks", params={"agent": "default"}).json()["items"]
        assert [item["id"] for item in of_agent] == [run["id"], body["id"]], "the newest first"
        assert client.get("/api/tasks", params={"agent": "nobody"}).json()["items"] == []
        events = client.get(f"/api/tasks/{body['id']}/events", params={"after": task["usage"]["requests"]}).json()
        assert events[-1]["payload"]["state"] == "completed"
        assert client.post(f"/api/tasks/{body['id']}/retry").status_code == 409, "it completed"
        assert client.post(f"/api/tasks/{body['id']}/cancel").json()["state"] == "completed"
        assert client.get(f"/api/tasks/{uuid4()}").status_code == 404


def test_a_task_that_is_asked_for_again_is_the_one_that_is_there(serving: Any) -> None:
    with serving(runs="workers") as server, server.client() as client:
        key, body = {"Idempotency-Key": "once"}, {"input": "what is it?"}
        made, again = (client.post("/api/tasks", json=body, headers=key) for _ in range(2))
        assert (made.status_code, again.status_code) == (201, 200), again.text
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.json() == made.json()
        assert (made.json()["state"], made.json()["input"]) == ("pending", "what is it?")
        assert client.post("/api/tasks", json={"input": "other"}, headers=key).status_code == 409
        head = client.get(f"/api/conversations/{made.json()['id']}").json()["head"]
        assert client.post("/api/tasks", json=body, headers=key).status_code == 200
        assert client.get(f"/api/conversations/{made.json()['id']}").json()["head"] == head, "nothing is said twice"


def test_what_waits_is_listed_and_answered_call_by_call(serving: Any) -> None:
    with serving(ASKS, "refused then", ASKS, "looked", tools="read") as server, server.client() as client:
        body = {"confirmation_policy": {"kind": "AlwaysConfirm"}, "initial_message": "look"}
        id = client.post("/api/conversations", json=body).json()["id"]
        path = f"/api/conversations/{id}"
        client.post(f"{path}/run", json={"wait": 60})
        [waiting] = client.get("/api/approvals").json()["items"]
        assert (waiting["conversation"], waiting["tool_call_id"], waiting["tool"]) == (id, "c1", "list_files")
        assert client.get("/api/approvals", params={"conversation": id}).json()["items"] == [waiting]
        assert client.post(f"{path}/approvals/none", json={"decision": "approve"}).status_code == 404
        wrong = {"decision": "reject", "arguments": {"path": "."}}
        assert client.post(f"{path}/approvals/c1", json=wrong).status_code == 422
        seen = {"If-Match": f'"{waiting["head"] - 1}"'}
        assert client.post(f"{path}/approvals/c1", json={"decision": "approve"}, headers=seen).status_code == 412
        answer = client.post(f"{path}/approvals/c1", json={"decision": "reject", "reason": "not now"})
        assert answer.status_code == 200, answer.text
        task = client.get(path).json()["run"]["task"]
        assert ended(client, task)["result"] == "refused then"
        late = client.post(f"{path}/approvals/c1", json={"decision": "approve"})
        assert (late.status_code, late.json()["details"]["decision"]) == (409, "reject")
        assert late.json()["details"]["by"] == "local"
        assert client.get("/api/approvals").json()["items"] == []
        client.post(f"{path}/events", json={"content": "look again"})
        task = client.post(f"{path}/run", json={"wait": 60}).json()["task"]
        assert client.get(f"/api/tasks/{task}").json()["request"]["calls"][0]["id"] == "c1"
        client.post(f"/api/tasks/{task}/input", json={"answer": True})
        assert ended(client, task)["result"] == "looked"


def test_what_was_used_is_summed_and_a_tree_shows_it(serving: Any) -> None:
    with serving("one", "two", "three") as server, server.client() as client:
        id = client.post("/api/conversations", json={"initial_message": "a"}).json()["id"]
        client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        fork = client.post(f"/api/conversations/{id}/fork", json={"title": "other"}).json()["id"]
        below = client.post(f"/api/conversations/{fork}/fork").json()["id"]
        client.post(f"/api/conversations/{fork}/events", json={"content": "b"})
        client.post(f"/api/conversations/{fork}/run", json={"wait": 60})
        by = {key: client.get("/api/usage", params={"by": key}).json() for key in ("day", "agent", "model", "tree")}
        assert {key: [row["requests"] for row in rows] for key, rows in by.items()} == {key: [2] for key in by}
        assert (by["tree"][0]["key"], by["agent"][0]["key"]) == (id, "default")
        each = client.get("/api/usage", params={"by": "conversation"}).json()
        assert {row["key"]: row["requests"] for row in each} == {id: 1, fork: 1}
        assert client.get("/api/usage", params={"from": "2100-01-01"}).json() == []
        assert client.get("/api/usage", params={"by": "colour"}).status_code == 422
        tree = client.get(f"/api/conversations/{below}/tree", params={"limit": 2}).json()
        assert tree["root"] == id
        rest = client.get(f"/api/conversations/{below}/tree", params={"page_id": tree["next_page_id"]}).json()
        items = [*tree["items"], *rest["items"]]
        assert [(item["id"], item["parent"], item["own"]["requests"]) for item in items] == [
            (id, None, 1), (fork, id, 1), (below, fork, 0),
        ]  # fmt: skip
        part = client.get(f"/api/conversations/{fork}/tree", params={"root": False}).json()["items"]
        assert [item["id"] for item in part] == [fork, below]


@pytest.mark.parametrize("tenants", [("red", "blue")])
def test_tasks_and_sums_stay_within_a_tenant(serving: Any, new_key: Any, tenants: tuple[str, str]) -> None:
    red, blue = (new_key(tenant=tenant) for tenant in tenants)
    with serving("done") as server, server.client(red.text) as client, server.client(blue.text) as other:
        id = client.post("/api/tasks", json={"input": "x"}).json()["id"]
        assert ended(client, id)["state"] == "completed"
        assert other.get("/api/tasks").json()["items"] == []
        assert other.get("/api/usage").json() == []
        assert [other.get(path).status_code for path in (f"/api/tasks/{id}", f"/api/tasks/{id}/events")] == [404, 404]
        for action, body in (("cancel", None), ("retry", None), ("input", {"answer": True})):
            assert other.post(f"/api/tasks/{id}/{action}", json=body).status_code == 404
        for name in ("parent", "root"):
            assert other.get("/api/tasks", params={name: id}).status_code == 404
        assert other.get(f"/api/conversations/{id}/tree").status_code == 404
        assert other.get("/api/approvals", params={"conversation": id}).status_code == 404
        assert [row["requests"] for row in client.get("/api/usage").json()] == [1]


def test_a_conversation_that_is_deleted_while_tasks_are_listed_does_not_fail_the_list(serving: Any) -> None:
    with serving("one", "two") as server, server.client() as client:
        ids = [client.post("/api/conversations", json={"initial_message": "hi"}).json()["id"] for _ in range(2)]
        for id in ids:
            client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        services = server.app.state.services
        store, listing = services.runs.broker.store, services.runs.broker.store.list

        async def list_then_delete(*given: Any) -> Any:
            page = await listing(*given)
            await services.store.delete(UUID(ids[0]))
            return page

        store.list = list_then_delete
        listed = client.get("/api/tasks")
        assert listed.status_code == 200, listed.text
        assert ids[1] in {item["conversation"] for item in listed.json()["items"]}


def read_metrics(client: httpx2.Client) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")


def test_figures_of_runs_are_counted(serving: Any) -> None:
    with serving("a long answer", "another long answer") as server, server.client() as client:
        for _ in range(2):
            assert ended(client, client.post("/api/tasks", json={"input": "x"}).json()["id"])["state"] == "completed"
        while float((lines := read_metrics(client)).get("bough_run_seconds_count", 0)) < 2:
            time.sleep(POLL_SECONDS)  # a run is counted once it is over here, which is after its end is in the log
        assert float(lines["bough_run_seconds_count"]) == 2
        assert float(lines["bough_steps_total"]) == 2
        assert min(float(lines[f'bough_tokens_total{{direction="{way}"}}']) for way in ("input", "output")) > 0
        asked = 'bough_http_requests_total{method="POST",route="/api/tasks",status="201"}'
        assert float(lines[asked]) == 2
        assert float(lines['bough_runs{state="running"}']) == 0


def test_a_sub_agents_conversation_is_its_tenants(settings: Settings, new_key: Any) -> None:
    red, operators = new_key(tenant="red", role="admin"), new_key(role="admin")
    delegate = Answer(calls=(ServerCall(tool="delegate", arguments={"agent_name": "helper", "prompt": "do"}, id="c1"),))
    with OpenAIServer([delegate, "helped", "done"]) as model:
        helper = AgentSpec(name="helper", model="openai:test", base_url=model.url, skills=())
        agent = AgentSpec(name="default", model="openai:test", base_url=model.url, skills=(), sub_agents=(helper,))
        server = Running(settings, ServerSettings(shutdown_seconds=5), [agent])
        with server, server.client(red.text) as client, server.client(operators.text) as other:
            id = client.post("/api/conversations", json={"initial_message": "go"}).json()["id"]
            assert client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()["output"] == "done"
            [child] = client.get(f"/api/conversations/{id}").json()["sub_conversation_ids"]
            assert client.get(f"/api/conversations/{child}").json()["own"]["requests"] == 1
            assert other.get(f"/api/conversations/{child}").status_code == 404
            assert [row["requests"] for row in client.get("/api/usage").json()] == [3], "its quota counts it too"
            assert other.get("/api/usage").json() == []
