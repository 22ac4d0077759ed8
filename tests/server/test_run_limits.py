"""How many runs a tenant has at once, how many wait, and how often a key may ask: settings, and a queue."""

from __future__ import annotations

import threading
from typing import Any

from bough.server.settings import TenantLimits


def test_runs_beyond_those_that_may_wait_are_refused(serving: Any, new_key: Any) -> None:
    key, released, started = new_key(tenant="red"), threading.Event(), threading.Semaphore(0)

    def hold(_: Any) -> str:
        started.release()
        released.wait(60)
        return "done"

    tenants = {"red": TenantLimits(runs=1, queued_runs=1)}
    with serving(hold, hold, tenants=tenants) as server, server.client(key.text) as client:
        try:
            body = {"initial_message": "hello", "run": True}
            answers = [client.post("/api/conversations", json=body) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [201, 201, 429]
            assert answers[-1].json()["details"]["limit"] == "runs"
            assert started.acquire(timeout=60)
        finally:
            released.set()
        assert started.acquire(timeout=60), "what waited runs when the other one has ended"


def test_how_often_a_key_may_ask_is_a_setting(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant) for tenant in ("red", "blue"))
    tenants = {"red": TenantLimits(key_requests_per_second=0.001), "blue": TenantLimits(key_streams=0)}
    with serving(tenants=tenants) as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        assert ours.get("/api/conversations/search").status_code == 429
        id = theirs.post("/api/conversations", json={}).json()["id"]
        refused = theirs.get(f"/api/conversations/{id}/events/stream", params={"until": "caught_up"})
        assert (refused.status_code, refused.json()["details"]["limit"]) == (429, "streams")
