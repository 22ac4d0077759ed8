"""Changes and rules of a wrong form, as an imported log may contain: each is a row, and no screen fails."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from bough.events.model import StateChanged
from bough.server.services import Services

from .site import Site

HTML = {"Accept": "text/html"}
JUNK: tuple[Any, ...] = (7, "x", ["x"], {"x": 1}, {"x": {"request": "z", "risk": 1}}, None, True, [None])
PAGES = ("", "/rows?from=0&to=2", "/find?text=lunch", "/tree", "/fork", "/limits", "/files", "/restore")
NAMES = (
    "waiting", "approved", "edited", "policies", "workspace", "workspace_policy", "agent", "instructions", "spent",
    "recorded",
)  # fmt: skip
RULES = ("policy", "analyzer", "limits", "total", "allow_list", "budgets", "keep_files", "sealed", "hooks", "secrets")
CHANGES = (*NAMES, *(f"policies.{name}" for name in RULES))


def make_changes(name: str, junk: Any) -> dict[str, Any]:
    change, _, rule = name.partition(".")
    return {change: {rule: junk} if rule else junk}


def list_failures(site: Site, id: str) -> dict[str, int]:
    """Return the status of each address that fails by the server's fault."""
    addresses = [*(f"/c/{id}{page}" for page in PAGES), f"/c/{id}/compare/{id}", "/", "/approvals"]
    statuses = {address: site.client.get(address, headers=HTML).status_code for address in addresses}
    for address in (f"/api/conversations/{id}", "/api/approvals", f"/api/conversations/{id}/turns"):
        statuses[address] = site.client.get(address).status_code
    return {address: status for address, status in statuses.items() if status >= 500}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_wrong_form_are_rows(site: Site, name: str) -> None:
    for junk in JUNK:
        id = site.start()
        event = StateChanged(changes=make_changes(name, junk), reason="lunch")

        async def append(services: Services, id: str = id, event: StateChanged = event) -> None:
            await services.store.append(UUID(id), [event])

        site.call(append)
        assert list_failures(site, id) == {}, junk
        assert "lunch" in site.client.get(f"/c/{id}", headers=HTML).text
        assert site.client.get(f"/c/{id}/find?text=lunch").json()["matches"] == [1]
