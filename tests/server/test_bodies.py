"""The two kinds of agents in the body of `POST /api/conversations`, and the digests that recorded requests have."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter

from bough.server.bodies.conversations import AnyStart, StartConversation
from bough.server.bounds.etag import compute_digest

LLM = {"model": "openai/x", "api_key": "k"}
OPENHANDS = {"kind": "Agent", "llm": LLM}


@pytest.mark.parametrize(
    ("agent", "is_openhands"),
    [
        (OPENHANDS, True),
        ({"llm": LLM}, True),
        ({"model": "openai:x"}, False),
        ("default", False),
        (None, False),
    ],
    ids=["a kind and a model", "a model alone", "ours", "a name", "none"],
)
def test_the_form_of_the_agent_is_the_form_of_the_body(agent: Any, is_openhands: bool) -> None:
    body = TypeAdapter[Any](AnyStart).validate_python({"agent": agent, "tags": {"a": "b"}})
    assert isinstance(body, StartConversation) == is_openhands


@pytest.mark.parametrize(
    ("body", "digest"),
    [
        ({}, "0dd25e7a4500517c4bc501174826a3c6bae824705bb08249a138c43858c8e8bd"),
        (
            {"agent": "default", "title": "t"},
            "944e7a26a0ec7cf4a006db721c3b0f0750bde969e6c4cb7fa156ae2663c50cfb",
        ),
        (
            {"agent": {"model": "openai:x", "api_key": "any"}},
            "30838ff53af7c6783577a3080d7c9f84c5f452044509af441aa91e0f9652f294",
        ),
        ({"agent": OPENHANDS}, "ecdf5cb088b6c9b8c1fcf4914c92df671a4c611775bd2bff3072f54064de7e7e"),
        (
            {"agent": OPENHANDS, "observability_tags": ["a"]},
            "ecdf5cb088b6c9b8c1fcf4914c92df671a4c611775bd2bff3072f54064de7e7e",
        ),
        (
            {"agent": OPENHANDS, "secrets": {"A": "any"}},
            "090b35ea57756963e4d2daac4bf4897f0ed9697b96ffaed6c532a7b80119fe6a",
        ),
    ],
    ids=["empty", "a name", "ours", "openhands", "observed", "secrets"],
)
def test_a_request_sent_again_has_the_digest_that_is_recorded(body: dict[str, Any], digest: str) -> None:
    """Rows keep these digests: another one makes a client's retry a conflict."""
    assert compute_digest(TypeAdapter[Any](AnyStart).validate_python(body).digestible()) == digest


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent": {"kind": "Agent"}}, "agent.llm"),
        ({"agent": OPENHANDS | {"llm": {"model": ""}}}, "agent.llm.model"),
        ({"agent": "default", "conversation_id": "0190a5d0-0000-7000-8000-000000000000"}, "conversation_id"),
    ],
    ids=["no model", "a blank model", "a field of the other form"],
)
def test_a_problem_names_the_field_without_the_form(
    one_server: tuple[httpx2.Client, str], body: dict[str, Any], field: str
) -> None:
    client, _ = one_server
    problem = client.post("/api/conversations", json=body)
    assert (problem.status_code, problem.json()["errors"][0]["field"]) == (422, field)
