"""What asks no model makes no client of one."""

from __future__ import annotations

import ssl
from typing import Any

import pytest


def test_creating_a_conversation_with_a_posted_agent_loads_no_certificates(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = {"model": "openai/gpt-5", "api_key": "k", "base_url": "http://127.0.0.1:9/v1"}
    workspace = {"kind": "LocalWorkspace", "working_dir": "workspace/project"}
    body = {"agent": {"llm": llm, "tools": []}, "workspace": workspace}
    loaded: list[ssl.SSLContext] = []
    load = ssl.SSLContext.load_verify_locations

    def record(context: ssl.SSLContext, *args: Any, **options: Any) -> None:
        loaded.append(context)
        load(context, *args, **options)

    with serving("unused") as server, server.client() as client:
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", record)
        for _ in range(3):
            created = client.post("/api/conversations", json=body)
            assert created.status_code == 201, created.text
    assert loaded == []
