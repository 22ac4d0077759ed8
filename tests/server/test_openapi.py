"""The OpenAPI document is true: what it allows is answered as it says, what it does not is refused, never a 500."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = ("/events/stream", "/api/updates")  # followed elsewhere: a stream ends only when it is told to


def operations(server: Any) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if not operation.path.endswith(ENDLESS)]


# The server runs tasks in a thread of this process meanwhile, and they use `random`.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.slow
def test_every_route_answers_as_its_document_says(serving: Any, new_key: Any) -> None:
    answered: set[int] = set()
    headers = {"X-Session-API-Key": new_key(role="admin").text}  # made before: the first key ends the mode without
    with serving(limits={"requests_per_second": 100_000}, read_seconds=5) as server:
        for operation in operations(server):

            @given(case=operation.as_strategy())
            @settings(
                max_examples=10,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def check(case: Any) -> None:
                answered.add(case.call_and_validate(checks=CHECKS, timeout=30, headers=headers).status_code)

            check()
    assert {200, 201, 404, 422} <= answered, "the cases reach the routes"


def test_every_route_is_documented_with_its_refusals(serving: Any) -> None:
    with serving() as server, server.client() as client:
        document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" in operation["responses"], (method, path)
            problem = operation["responses"]["404"]["content"]
            assert list(problem) == ["application/problem+json"], (method, path, problem)
            assert operation.get("description") or operation.get("summary")
            if path.startswith("/api/"):
                assert operation["security"], f"{method} {path} can be used without a key"


def test_head_is_answered_wherever_get_is(one_server: tuple[httpx2.Client, str]) -> None:
    """With the same status and headers; a stream ends where it would begin."""
    client, id = one_server
    paths = [path for path, methods in client.get("/openapi.json").json()["paths"].items() if "get" in methods]
    assert {"/alive", "/api/conversations/{id}/events/stream", "/api/file/download"} <= set(paths)
    for path in (*paths, "/docs", "/openapi.json", "/metrics", "/.well-known/agent-card.json"):
        asked = re.sub(r"\{\w+\}", id, path) + ("?until=caught_up" if path.endswith(ENDLESS) else "")
        read, head = client.get(asked), client.head(asked)
        assert (head.status_code, head.content) == (read.status_code, b""), asked
        for name in ("content-type", "content-length", "etag"):
            if name != "content-length" or path not in ("/metrics", "/server_info", "/"):  # these say what time it is
                assert head.headers.get(name) == read.headers.get(name), (asked, name)
    stream = client.head(f"/api/conversations/{id}/events/stream")
    assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    refused = client.head(f"/api/conversations/{id}/run")
    assert (refused.status_code, client.head("/mcp").status_code) == (405, 405)
    assert client.put("/alive").headers["allow"] == "GET, HEAD"
