"""Agents over HTTP: conversations of a registered agent with Python tools when it changes, and posted model keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
from tests.journeys.conftest import Person, ServerProcess

from bough.testing import Answer, OpenAIServer, ServerCall

_TOOLS = """
from bough import AgentSpec

def count_words(text: str) -> str:
    "Count words."
    return str(len(text.split())) + " words"

def {extra}(text: str) -> str:
    "Another tool."
    return text

agent = AgentSpec(name="counter", model="openai:test", base_url="{url}", system_prompt="{prompt}",
                  tools=[count_words, {extra}], skills=[], workspace_access="write")
"""


def _write_agent(person: Person, model: OpenAIServer, *, extra: str = "first", prompt: str = "Count.") -> None:
    person.write({"mytools.py": _TOOLS.format(url=model.url, extra=extra, prompt=prompt)})


def _serve(person: Person) -> Any:
    person.environment["PYTHONPATH"] = str(person.folder)
    return person.serve("--agents", "mytools:agent")


def _create(client: httpx2.Client, **body: Any) -> str:
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def _say(client: httpx2.Client, id: str, text: str) -> str:
    sent = client.post(f"/api/conversations/{id}/events", json={"content": text})
    assert sent.status_code == 200, sent.text
    ran = client.post(f"/api/conversations/{id}/run", json={"wait": 20})
    assert ran.status_code == 200, ran.text
    assert ran.json()["status"] == "finished", ran.text
    return ran.json()["output"]


def test_a_conversation_goes_on_when_its_registered_agent_changes(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    model = openai_server(
        Answer(calls=(ServerCall(tool="count_words", arguments={"text": "a b c"}),)), "three",
        "before the change",
        Answer(calls=(ServerCall(tool="count_words", arguments={"text": "a b"}),)), "two",
        "on the fork", "with another model",
    )  # fmt: skip
    _write_agent(person, model)
    with _serve(person) as server, server.client() as client:
        id = _create(client, agent="counter")
        assert _say(client, id, "Count a b c.") == "three"
        assert client.post(f"/api/conversations/{id}/model", json={"model": "openai:test-2"}).status_code == 200
        assert _say(client, id, "Once more.") == "before the change"
    _write_agent(person, model, extra="second", prompt="Count well.")
    with _serve(person) as server, server.client() as client:
        head = client.get(f"/api/conversations/{id}").json()["head"]
        overrides = {"system_prompt": "Count backwards."}
        forked = client.post(f"/api/conversations/{id}/fork", json={"overrides": overrides})
        assert forked.status_code == 201, forked.text
        assert client.get(f"/api/conversations/{id}").json()["head"] == head, "forking changed its source"
        assert _say(client, id, "Count a b.") == "two"
        info = client.get(f"/api/conversations/{id}").json()
        assert info["spec"]["model"] == "openai:test-2"
        assert info["spec"]["system_prompt"] == "Count."
        assert "mytools:second" in info["spec"]["tools"]
        assert _say(client, forked.json()["id"], "Now you.") == "on the fork"
        asked = model.received[-1].body["messages"][0]["content"]
        assert asked.startswith("Count backwards.")
        assert client.post(f"/api/conversations/{id}/model", json={"model": "openai:test-3"}).status_code == 200
        assert _say(client, id, "And now?") == "with another model"


def test_a_tenant_with_narrower_access_runs_a_registered_agent(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    model = openai_server("served")
    _write_agent(person, model)
    settings = person.home / ".bough"
    settings.mkdir()
    (settings / "bough.yaml").write_text("server:\n  tenants:\n    acme: {access: read}\n")
    key = person.bough("keys", "create", "k", "--tenant", "acme", "--role", "write", "--json").json()["key"]
    with _serve(person) as server, server.client(key) as client:
        id = _create(client, agent="counter")
        assert client.get(f"/api/conversations/{id}").json()["spec"]["workspace_access"] == "read"
        assert _say(client, id, "Hello.") == "served"


def test_a_fork_with_another_agent_does_not_need_the_old_one(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    model = openai_server("first answer")
    _write_agent(person, model)
    with _serve(person) as server, server.client() as client:
        id = _create(client, agent="counter")
        assert _say(client, id, "Hello.") == "first answer"
    with person.serve() as server, server.client() as client:
        copy = client.post(f"/api/conversations/{id}/fork", json={})
        assert copy.status_code == 201, "it is written as its source is recorded, and runs where that agent is served"
        refused = client.post(f"/api/conversations/{copy.json()['id']}/events", json={"content": "Hello again."})
        assert refused.status_code == 422, refused.text
        assert "counter" in refused.json()["detail"] + refused.json().get("hint", "")
        forked = client.post(f"/api/conversations/{id}/fork", json={"agent": {"model": "offline"}})
        assert forked.status_code == 201, forked.text
        _say(client, forked.json()["id"], "Hello again.")


def _post_key(server: ServerProcess, agent: dict[str, Any]) -> httpx2.Response:
    with server.client() as client:
        return client.post("/api/conversations", json={"agent": agent})


def test_a_posted_model_key_is_enough(person: Person) -> None:
    models = [
        "openai/gpt-5", "openai:gpt-5", "openai-responses:gpt-5", "litellm_proxy/gpt-5", "anthropic/claude-sonnet-4-5",
        "gemini/gemini-2.5-pro", "deepseek/deepseek-chat", "openrouter/some/model",
    ]  # fmt: skip
    with person.serve() as server:
        for model in models:
            llm = {"model": model, "api_key": "posted-key-1", "usage_id": "agent"}
            answer = _post_key(server, {"kind": "Agent", "llm": llm, "tools": []})
            assert answer.status_code == 201, (model, answer.text)
            assert "posted-key-1" not in answer.text
        without = _post_key(
            server, {"kind": "Agent", "llm": {"model": "openai/gpt-5", "usage_id": "agent"}, "tools": []}
        )
        assert without.status_code == 503, without.text


def test_our_own_form_takes_a_model_key(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    model = openai_server("with the posted key", "on the fork")
    with person.serve() as server, server.client() as client:
        agent = {"model": "openai:test", "base_url": model.url, "api_key": "posted-key-2"}
        id = _create(client, agent=agent)
        assert _say(client, id, "Hello.") == "with the posted key"
        assert model.received[-1].headers["authorization"] == "Bearer posted-key-2"
        forked = client.post(f"/api/conversations/{id}/fork", json={"agent": {**agent, "api_key": "posted-key-3"}})
        assert forked.status_code == 201, forked.text
        assert "posted-key" not in forked.text
        assert _say(client, forked.json()["id"], "Hello.") == "on the fork"
        assert model.received[-1].headers["authorization"] == "Bearer posted-key-3"
