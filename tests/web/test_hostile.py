"""Hostile contents in every field of every kind of event, on every screen, in Chromium and in Firefox.

Nothing of them runs, opens a dialog, asks another server, or is refused by the page's policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

import pytest
from playwright.sync_api import Dialog, Page
from pydantic import ValidationError

from bough.events.codec import decode
from bough.events.model import BaseEvent, UserMessage
from bough.server.services import Services
from bough.types import new_id

from .conftest import NewPage
from .firefox import open_firefox
from .site import Site

GOLDEN = Path(__file__).parents[1] / "golden" / "events"
CANARY = (
    'lunch<script>window.canary=1</script><img src=x onerror=canary=1>"\' onmouseover="canary=1" {{ 7*7 }} {% x %}'
    "</pre></script></style><svg/onload=canary=1> [go](javascript:canary=1) ![i](https://evil.example/i.png) <!-- ]]> "
    "\u202e\u200b\U000e0041 <header class=top>bough</header><meta http-equiv=refresh content='0;url=https://evil.example'>"
)
TITLE = CANARY[:200]
WATCH = """() => {
  globalThis.refused = [];
  addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective + event.blockedURI));
}"""
READ = "({canary: globalThis.canary ?? null, refused, scripts: document.getElementById('show-keys')?.hidden ?? false})"
DECISIVE = ("kind", "changes", "policies")
"""Fields that decide how the whole conversation is read."""

SAFE: dict[str, Any] = {"canary": None, "refused": [], "scripts": False}
"""`scripts` is whether the button stayed hidden that a script of each screen shows."""


def replace_one_by_one(value: dict[str, Any] | list[Any], is_valid: Callable[[], bool]) -> None:
    """Replace each text in a document by the canary, but for those without which it would not be valid."""
    fields: Any = value
    places: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    for place in places:
        item: Any = fields[place]
        if place in DECISIVE:
            continue
        if isinstance(item, dict | list):
            replace_one_by_one(cast("list[Any]", item), is_valid)
        elif isinstance(item, str):
            fields[place] = CANARY
            if not is_valid():
                fields[place] = item


def can_be_read(kind: type[BaseEvent], fields: dict[str, Any]) -> bool:
    try:
        kind.model_validate_json(json.dumps(fields))
    except ValidationError:
        return False
    return True


def make_hostile_events() -> list[Any]:
    """Return an event of each kind, from its newest golden file."""
    files = {path.stem: path for path in sorted(GOLDEN.glob("*/*.json"))}
    events: list[Any] = []
    for kind, path in files.items():
        golden = json.loads(path.read_text())
        moment = datetime.fromisoformat(golden["ts"])
        event = decode(0, UUID(golden["id"]), kind, moment, golden["raw"].encode())
        fields = json.loads(event.model_dump_json())
        fields["id"] = str(new_id())
        replace_one_by_one(fields, partial(can_be_read, type(event), fields))
        events.append(type(event).model_validate_json(json.dumps(fields)))
    return events


@pytest.fixture(scope="module")
def addresses(site: Site) -> Sequence[str]:
    """The addresses of all screens with hostile contents."""
    calls = site.start(f"write {CANARY}", title=TITLE, tags={"team": TITLE})
    site.say(calls, f"run printf '%s' {quote(CANARY)} {CANARY}")
    fork = site.fork(calls, title=TITLE)
    site.say(fork, CANARY)
    waiting = site.start_waiting(f"run {CANARY}", title=TITLE)
    (ask,) = site.client.get(f"/api/approvals?conversation={waiting}").json()["items"]
    kinds = site.start(title=TITLE)
    events = make_hostile_events()
    long_line = UserMessage.text("x" * 1_000_000)
    head = site.client.get(f"/api/conversations/{kinds}").json()["head"]

    async def append(services: Services) -> None:
        await services.store.append(UUID(kinds), [*events, long_line])

    site.call(append)
    text = quote(CANARY)
    return [
        "/", f"/?text={text}", "/new", "/approvals", f"/approvals/{waiting}/{ask['tool_call_id']}", f"/nothing/{text}",
        *(f"/c/{id}{path}" for id in (calls, kinds, waiting) for path in ("", "/tree", "/fork?at=1&edit=1")),
        f"/c/{kinds}?find=lunch%3Cscript", f"/c/{kinds}?kinds=messages", f"/c/{calls}?find={text[:100]}",
        f"/c/{calls}/compare/{fork}", f"/c/{calls}/compare/{kinds}",
        *(f"/c/{kinds}/e/{head + number}" for number in range(len(events) + 1)),
    ]  # fmt: skip


@pytest.mark.needs("chromium")
def test_nothing_of_them_runs_in_chromium(new_page: NewPage, site: Site, addresses: Sequence[str]) -> None:
    page: Page = new_page(quiet=False)
    page.add_init_script(f"({WATCH})()")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    dialogs: list[Dialog] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    for address in addresses:
        page.goto(site.url + address)
        page.evaluate("document.querySelectorAll('main details').forEach((details) => { details.open = true; })")
        assert page.evaluate(READ) == SAFE, address
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, address
    assert [url for url in asked if not url.startswith(site.url)] == []
    assert dialogs == []


@pytest.mark.slow
@pytest.mark.needs("firefox")
def test_nothing_of_them_runs_in_firefox(site: Site, addresses: Sequence[str], tmp_path: Path) -> None:
    with open_firefox(tmp_path) as firefox:
        firefox.run_before_pages(WATCH)
        for address in addresses:
            firefox.open(site.url + address)
            assert firefox.evaluate(READ) == SAFE, address
        asked = [
            event["params"]["request"]["url"]
            for event in firefox.events
            if event["method"] == "network.beforeRequestSent" and event["params"]["context"] is not None
        ]
        assert len(asked) > len(addresses)
        assert [url for url in asked if not url.startswith((site.url, "data:"))] == []
        assert [event for event in firefox.events if event["method"] == "browsingContext.userPromptOpened"] == []
