"""What a server says of a conversation is what is in force, in OpenHands' form and in bough's own."""

from __future__ import annotations

import re
from typing import Any

import httpx2
from tests.journeys.conftest import Person

_MODEL = "http://127.0.0.1:9"


def _create(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def _fork(client: httpx2.Client, id: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/conversations/{id}/fork", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def _post(client: httpx2.Client, id: str, what: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/conversations/{id}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return client.get(f"/api/conversations/{id}").json()


def test_documents_say_what_is_in_force(person: Person) -> None:
    llm = {"model": "openai/test", "base_url": _MODEL, "api_key": "key-of-mine", "usage_id": "agent"}
    agent = {"kind": "Agent", "llm": llm, "tools": [{"name": "terminal"}]}
    with person.serve() as server, server.client() as client:
        made = _create(client, agent=agent, max_iterations=40, security_analyzer={"kind": "PolicyRailSecurityAnalyzer"})
        id = made["id"]
        masked = {**agent, "llm": {**llm, "api_key": "**********"}}
        assert (made["agent"], made["max_iterations"]) == (masked, 40)
        assert made["security_analyzer"] == {"kind": "PolicyRailSecurityAnalyzer"}

        assert _post(client, id, "limits", steps=7)["max_iterations"] == 7
        assert _post(client, id, "security_analyzer", security_analyzer=None)["security_analyzer"] is None
        rules = {"kind": "PatternSecurityAnalyzer"}
        risky = _post(client, id, "security_analyzer", security_analyzer=rules)
        assert risky["security_analyzer"]["kind"] in ("PatternSecurityAnalyzer", "PolicyRailSecurityAnalyzer")
        other = _post(client, id, "model", model="anthropic:other", api_key="key-of-other")["agent"]
        assert other["llm"] == {**masked["llm"], "model": "anthropic:other", "base_url": None}
        assert other["tools"] == agent["tools"]

        # A fork has the present agent of its source; forks with other agents have those.
        assert _fork(client, id, at=1)["agent"] == other
        prompted = _fork(client, id, at=1, overrides={"system_prompt": "Answer in one word."})
        assert prompted["agent"]["system_prompt"] == "Answer in one word."
        assert prompted["agent"]["llm"] == other["llm"]
        named = _fork(client, id, agent={"name": "reader", "model": "offline", "workspace_access": "read"})
        assert named["agent"]["llm"]["model"] == named["spec"]["model"] == "offline"
        assert {tool["name"] for tool in named["agent"]["tools"]} == {"glob", "grep"}
        posted = {"kind": "Agent", "llm": {"model": "offline"}, "tools": []}
        forked = _fork(client, id, agent=posted)
        assert forked["agent"] == posted
        assert _fork(client, forked["id"], at=1)["agent"] == posted
        assert _fork(client, id, overrides={"limits": {"steps": 3}})["max_iterations"] == 3


def test_documents_of_own_conversations_say_what_is_in_force(person: Person) -> None:
    analyzer = {"kind": "RuleAnalyzer", "risks": {"write_file": "HIGH"}}
    with person.serve() as server, server.client() as client:
        made = _create(client, security_analyzer=analyzer, limits={"steps": 12})
        assert (made["security_analyzer"], made["max_iterations"]) == (analyzer, 12)
        assert _post(client, made["id"], "security_analyzer", security_analyzer=None)["security_analyzer"] is None
        assert _create(client)["security_analyzer"] is None


def test_a_browser_is_shown_a_page_at_the_root(person: Person) -> None:
    person.bough("keys", "create", "secret-name", "--tenant", "red-tenant")
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    with person.serve() as server, server.client() as client:
        page = client.get("/", headers=browser)
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert 'type="password"' in page.text, "with a key, the page asks for one"
        assert not [text for text in ("red-tenant", "secret-name", str(person.home)) if text in page.text]
        links = {link for link in re.findall(r'href="([^"#]+)', page.text) if link.startswith("/")}
        assert {link: client.get(link).status_code for link in links if link != "/"} == dict.fromkeys(
            links - {"/"}, 200
        )
        for accept in ("*/*", "application/json"):
            answer = client.get("/", headers={"Accept": accept})
            assert answer.json() == client.get("/server_info").json()
            assert answer.json()["title"] == "bough agent server"
