"""Imports over HTTP: where the model of a conversation from elsewhere is asked, and who may decide that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

_ELSEWHERE = """
import sys
from bough import AgentSpec, Conversation
from bough.guard import NeverConfirm

def count_words(text: str) -> str:
    "Count words."
    return str(len(text.split()))

tools = [count_words] if sys.argv[2] == "counter" else []
spec = AgentSpec(name=sys.argv[2], model="openai:theirs", base_url=sys.argv[1], api_key="their-key", tools=tools)
with Conversation(spec) as conversation:
    conversation.send_message("the confidential question")
    conversation.run()
    print(conversation.id)
"""

_AGENT = """
from bough import AgentSpec

def count_words(text: str) -> str:
    "Count words."
    return str(len(text.split()))

agent = AgentSpec(name="counter", model="openai:ours", tools=[count_words])
"""


def _export(sender: Person, address: str, name: str, file: Path) -> bytes:
    conversation = sender.python(_ELSEWHERE, address, name).stdout.split()[-1]
    sender.bough("conv", "export", conversation, "--output", file)
    return file.read_bytes()


def _import(client: httpx2.Client, bundle: bytes) -> str:
    answer = client.post("/api/conversations/import", content=bundle, params={"accept_unknown": True})
    assert answer.status_code == 201, answer.text
    return f"/api/conversations/{answer.json()['id']}"


def _say(client: httpx2.Client, path: str, text: str) -> httpx2.Response:
    sent = client.post(f"{path}/events", json={"content": text})
    assert sent.status_code == 200, sent.text
    return client.post(f"{path}/run", json={"wait": 30})


def test_a_tenants_import_is_asked_nowhere_before_its_owner_chooses_a_model(
    new_person: Callable[[], Person], openai_server: Callable[..., OpenAIServer]
) -> None:
    theirs, ours = openai_server("one", "two", *["from elsewhere"] * 3), openai_server(*["from us"] * 3)
    sender, owner = new_person(), new_person()
    bundle = _export(sender, theirs.url, "house", sender.folder / "a.bough")
    with_tools = _export(sender, theirs.url, "counter", sender.folder / "b.bough")
    owner.environment |= {"OPENAI_API_KEY": "operators-key", "BOUGH_MODEL": "openai:ours", "BOUGH_BASE_URL": ours.url}
    owner.environment |= {"PYTHONPATH": str(owner.folder)}
    owner.write({"mytools.py": _AGENT})
    key = owner.bough("keys", "create", "k", "--tenant", "red", "--role", "admin").stdout.strip()
    with owner.serve("--agents", "mytools:agent") as server, server.client(key) as client:
        for file in (bundle, with_tools):
            path = _import(client, file)
            assert client.get(path).json()["spec"]["base_url"] == theirs.url
            asked = client.post(f"{path}/ask_agent", json={"question": "what?"})
            ran = _say(client, path, "and once more")
            adopted = client.post(f"{path}/adopt")
            cut = client.post(f"{path}/fork", json={"at": 1}).json()["id"]
            forked = client.post(f"/api/conversations/{cut}/adopt")
            for answer in (asked, adopted, forked):
                assert (answer.status_code, answer.json().get("code")) == (403, "permission_denied"), answer.text
                assert "POST {id}/model" in answer.json()["hint"]
                assert theirs.url in answer.json()["detail"]
            assert ran.json()["steps"] == 0, ran.text
            assert theirs.url in ran.json()["reason"], ran.text
            assert ours.received == [], "nobody has chosen the operator's provider"
            unsaid = {"model": "openai:theirs", "base_url": theirs.url}
            assert client.post(f"{path}/model", json=unsaid).status_code == 403
            if file is bundle:
                assert client.post(f"{path}/model", json={"model": "openai:ours"}).status_code == 200
                assert client.post(f"{path}/adopt").status_code == 200
                assert _say(client, path, "now").json()["output"] == "from us"
                (request,) = ours.received
                assert request.headers["authorization"] == "Bearer operators-key"
                ours.received.clear()
    assert len(theirs.received) == 2, "the sender's server heard of nothing after the export"
    assert "operators-key" not in json.dumps([dict(request.headers) for request in theirs.received])
