"""What a tenant may use in a day: what its log used counts, and the day after it may again."""

from __future__ import annotations

import sqlite3
from typing import Any

from tests.server.conftest import Running

from bough.agents.spec import AgentSpec
from bough.server.settings import ServerSettings, TenantLimits
from bough.settings import Settings
from bough.testing import Answer, OpenAIServer, ServerCall


def test_a_tenant_that_used_its_tokens_waits_for_the_next_day(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    tenants = {"red": TenantLimits(tokens_a_day=1)}
    with serving("one", "two", tenants=tenants) as server, server.client(red.text) as ours:
        made = ours.post("/api/conversations", json={"initial_message": "hi"}).json()
        path = f"/api/conversations/{made['id']}"
        assert ours.post(f"{path}/run", json={"wait": 60}).json()["status"] == "finished"
        head = ours.get(path).json()["head"]
        for refused in (
            ours.post(f"{path}/events", json={"content": "more", "run": True}),
            ours.post(f"{path}/run"),
            ours.post(f"{path}/ask_agent", json={"question": "what?"}),
            ours.post("/api/conversations", json={"initial_message": "x", "run": True}),
        ):
            assert refused.status_code == 429, refused.text
            assert refused.json()["details"]["limit"] == "tokens_a_day"
            assert 0 < int(refused.headers["Retry-After"]) <= 24 * 60 * 60
        assert ours.get(path).json()["head"] == head, "nothing is kept of what is refused"
        assert ours.post(f"{path}/events", json={"content": "more"}).status_code == 200, "saying costs nothing"
        with server.client(blue.text) as theirs:
            other = theirs.post("/api/conversations", json={"initial_message": "hi"}).json()["id"]
            ran = theirs.post(f"/api/conversations/{other}/run", json={"wait": 60}).json()
            assert (ran["status"], ran["output"]) == ("finished", "two")


def test_a_run_ends_at_the_step_before_which_its_tenant_has_used_up_its_day(serving: Any, new_key: Any) -> None:
    red = new_key(tenant="red", role="admin")
    tenants = {"red": TenantLimits(tokens_a_day=1)}
    listing = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))
    with serving(listing, "never said", tools="read", tenants=tenants) as server, server.client(red.text) as client:
        id = client.post("/api/conversations", json={"initial_message": "look"}).json()["id"]
        ran = client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()
        assert (ran["status"], ran["steps"]) == ("paused", 1)
        events = client.get(
            f"/api/conversations/{id}/events/search",
            params={"kinds": "LimitReached,ToolReturned"},
            headers={"Accept": "application/vnd.bough.event+json"},
        ).json()["items"]
        assert [(event["kind"], event.get("limit")) for event in events] == [
            ("ToolReturned", None), ("LimitReached", "tokens_a_day"),
        ], "its call has its result, and nothing is asked after it"  # fmt: skip


def test_a_key_that_used_its_tokens_waits_and_another_one_of_its_tenant_does_not(serving: Any, new_key: Any) -> None:
    one, two = (new_key(name, tenant="red", role="admin") for name in ("one", "two"))
    tenants = {"red": TenantLimits(key_tokens_a_day=1)}
    with serving("a", "b", "c", tenants=tenants) as server, server.client(one.text) as first:
        path = f"/api/conversations/{first.post('/api/conversations', json={'initial_message': 'hi'}).json()['id']}"
        assert first.post(f"{path}/run", json={"wait": 60}).json()["output"] == "a"
        for refused in (
            first.post(f"{path}/events", json={"content": "more", "run": True}),
            first.post(f"{path}/run"),
            first.post(f"{path}/ask_agent", json={"question": "what?"}),
            first.post("/api/tasks", json={"input": "x"}),
        ):
            assert (refused.status_code, refused.json()["details"]["limit"]) == (429, "key_tokens_a_day"), refused.text
            assert 0 < int(refused.headers["Retry-After"]) <= 24 * 60 * 60
        with server.client(two.text) as second:
            asked = second.post(f"{path}/ask_agent", json={"question": "what?"})
            assert asked.json() == {"response": "b"}, "what the other key used in the same conversation is not its own"
            again = second.post(f"{path}/ask_agent", json={"question": "what?"})
            assert again.json()["details"]["limit"] == "key_tokens_a_day", "what is asked aside is charged to who asks"


def test_a_run_ends_at_the_step_before_which_the_key_that_asked_for_it_has_used_up_its_day(
    serving: Any, new_key: Any
) -> None:
    one, two = (new_key(name, tenant="red", role="admin") for name in ("one", "two"))
    tenants = {"red": TenantLimits(key_tokens_a_day=1)}
    listing = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))
    with (
        serving(listing, listing, tools="read", tenants=tenants) as server,
        server.client(one.text) as first,
        server.client(two.text) as second,
    ):
        id = first.post("/api/conversations", json={"initial_message": "look"}).json()["id"]
        for client, steps in ((first, 1), (second, 1)):
            ran = client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()
            assert (ran["status"], ran["steps"]) == ("paused", steps)
        events = first.get(
            f"/api/conversations/{id}/events/search",
            params={"kinds": "LimitReached"},
            headers={"Accept": "application/vnd.bough.event+json"},
        ).json()["items"]
        assert [event["limit"] for event in events] == ["key_tokens_a_day"] * 2


def test_what_a_sub_agent_uses_is_charged_to_the_key_that_asked(settings: Settings, new_key: Any) -> None:
    one = new_key("one", tenant="red", role="admin")
    delegate = Answer(calls=(ServerCall(tool="delegate", arguments={"agent_name": "helper", "prompt": "do"}, id="c1"),))
    limits = {"red": TenantLimits(key_tokens_a_day=10**9)}
    with OpenAIServer([delegate, "helped", "done"]) as model:
        helper = AgentSpec(name="helper", model="openai:test", base_url=model.url, skills=())
        boss = AgentSpec(name="default", model="openai:test", base_url=model.url, skills=(), sub_agents=(helper,))
        server = Running(settings, ServerSettings(tenants=limits, shutdown_seconds=5), [boss])
        with server, server.client(one.text) as client:
            id = client.post("/api/conversations", json={"initial_message": "go"}).json()["id"]
            ran = client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()
            assert ran["output"] == "done", ran
            [used] = client.get("/api/usage").json()
    with sqlite3.connect(settings.home / "bough.db") as database:
        rows = database.execute("select key, sum(tokens), count(*) from server_key_usage group by key").fetchall()
    assert rows == [(one.id, used["input_tokens"] + used["output_tokens"], 2)], "two conversations, one key"


def test_a_tenant_cannot_have_more_conversations_than_its_limit(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    tenants = {"red": TenantLimits(conversations=2)}
    with serving(tenants=tenants) as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        first = ours.post("/api/conversations", json={}).json()["id"]
        bundle = ours.post(f"/api/conversations/{first}/export").content
        assert ours.post(f"/api/conversations/{first}/fork").status_code == 201
        for refused in (
            ours.post("/api/conversations", json={}),
            ours.post(f"/api/conversations/{first}/fork"),
            ours.post("/api/tasks", json={"input": "x"}),
            ours.post("/api/conversations/import?accept_unknown=true", content=bundle),
        ):
            assert (refused.status_code, refused.json()["details"]["limit"]) == (429, "conversations"), refused.text
        assert theirs.post("/api/conversations", json={}).status_code == 201
        assert ours.delete(f"/api/conversations/{first}").status_code == 200
        assert ours.post("/api/conversations", json={}).status_code == 201


def test_a_tenant_without_the_operators_keys_posts_its_own(serving: Any, new_key: Any) -> None:
    red = new_key(tenant="red", role="admin")
    tenants = {"red": TenantLimits(models="none")}
    with serving("with its own key", "with that key", tenants=tenants) as server, server.client(red.text) as client:

        def run(llm: dict[str, str]) -> tuple[str, str | None]:
            body = {"agent": {"kind": "Agent", "llm": {"model": "openai/test", "base_url": server.model_url} | llm}}
            message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
            id = client.post("/api/conversations", json=body | {"initial_message": message}).json()["id"]
            task = client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()["task"]
            return id, client.get(f"/api/tasks/{task}").json()["code"]

        without, code = run({})
        assert code == "permission_denied"
        asked = client.post(f"/api/conversations/{without}/ask_agent", json={"question": "what?"})
        assert (asked.status_code, asked.json()["code"]) == (403, "permission_denied")
        assert run({"api_key": "posted by the tenant"})[1] is None
        other = {"model": "openai:test", "base_url": server.model_url, "api_key": "posted later"}
        assert client.post(f"/api/conversations/{without}/model", json=other).status_code == 200
        asked = client.post(f"/api/conversations/{without}/ask_agent", json={"question": "what?"})
        assert asked.json() == {"response": "with that key"}
        assert client.post("/api/conversations", json={"agent": {"model": "offline"}, "initial_message": "x"}).json()


def test_a_key_of_a_registered_agent_is_the_operators(serving: Any, new_key: Any) -> None:
    red, tenants = new_key(tenant="red", role="admin"), {"red": TenantLimits(models="none")}
    with serving("not billed", tenants=tenants, api_key="the operator's") as server, server.client(red.text) as client:
        id = client.post("/api/conversations", json={"initial_message": "hi"}).json()["id"]
        asked = client.post(f"/api/conversations/{id}/ask_agent", json={"question": "what?"})
        assert (asked.status_code, asked.json()["code"]) == (403, "permission_denied")


def test_a_server_whose_dispatcher_has_ended_is_not_ready(serving: Any) -> None:
    with serving() as server, server.client() as client:
        assert client.get("/ready").json()["checks"]["runs"] == "ok"
        broker = server.app.state.services.runs.broker
        server.call(broker._stopping.set)
        while broker.is_entered:
            pass
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()["checks"]["runs"]) == (503, "not taken any more")
