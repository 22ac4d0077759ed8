"""Runs of several tenants on one server: each has its share, and what is more waits its turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

_POLL_SECONDS = 0.05
_WAIT_SECONDS = 60


def test_a_tenant_that_has_its_share_of_runs_waits_and_others_do_not(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    released, started = threading.Event(), threading.Semaphore(0)

    def hold(_: Any) -> str:
        started.release()
        released.wait(_WAIT_SECONDS)
        return "done"

    model = openai_server(*[hold] * 5)
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    settings = person.home / ".bough" / "bough.yaml"
    settings.parent.mkdir()
    settings.write_text("server: {limits: {runs: 1}}\n")
    red, blue = (
        person.bough("keys", "create", tenant, "--tenant", tenant).stdout.strip() for tenant in ("red", "blue")
    )
    body = {"initial_message": "hello", "run": True}
    with person.serve() as server, server.client(red) as ours, server.client(blue) as theirs:
        try:
            answers = [ours.post("/api/conversations", json=body) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [201] * 4, [answer.text for answer in answers]
            assert theirs.post("/api/conversations", json=body).status_code == 201
            assert all(started.acquire(timeout=_WAIT_SECONDS) for _ in range(2))
            assert len(model.received) == 2, "one run of each tenant"
            states = [task["state"] for task in ours.get("/api/tasks").json()["items"]]
            assert sorted(states) == ["pending"] * 3 + ["running"]
        finally:
            released.set()
        end = time.monotonic() + _WAIT_SECONDS
        while {task["state"] for task in ours.get("/api/tasks").json()["items"]} != {"completed"}:
            assert time.monotonic() < end, ours.get("/api/tasks").text
            time.sleep(_POLL_SECONDS)  # a poll: nothing tells of all of them at once
    assert len(model.received) == 5
