"""What a tenant may use in a day: what its log used counts, and the day after it may again."""

from __future__ import annotations

from typing import Any

from bough.server.settings import TenantLimits


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
