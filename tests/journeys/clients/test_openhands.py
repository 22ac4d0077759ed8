"""A user of `openhands-sdk` who posts a model key and no base URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.journeys.clients.responses_server import serve_responses
from tests.journeys.conftest import Person

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("openhands_client.py")


def test_a_posted_key_without_an_address_reaches_the_provider(person: Person, openhands_python: list[str]) -> None:
    with serve_responses("hello to you") as provider:
        # OpenAI's own variable moves the provider to this machine; the server has no key of its own.
        person.environment |= {"OPENAI_BASE_URL": provider.url, "OPENHANDS_SUPPRESS_BANNER": "1"}
        person.environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        key = person.bough("keys", "create", "k", "--tenant", "red", "--role", "admin", "--json").json()["key"]
        folder = person.home / ".bough" / "workspaces" / "red" / "project"
        folder.mkdir(parents=True)
        with person.serve() as server:
            result = person.try_command([*openhands_python, PROGRAM, server.url, key, "sk-of-the-user", folder])
            assert result.code == 0, f"{result.stdout[-3000:]}{result.stderr[-3000:]}"
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts == {"version": "1.58.2", "status": "finished", "answers": ["hello to you"]}
    assert set(provider.keys) == {"Bearer sk-of-the-user"}
    assert "sk-of-the-user" not in server.log.read_text()
    stored = b"".join(file.read_bytes() for file in (person.home / ".bough").rglob("*") if file.is_file())
    assert b"sk-of-the-user" not in stored
