"""Find a finished run, edit its second message, run from there, approve a call, compare: the source is unchanged.

Once with the keyboard alone, and once without scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from bough.server.services import Services

from .conftest import NewPage
from .site import Site

pytestmark = pytest.mark.needs("chromium")
_MAX_STOPS = 150


def read_log(site: Site, id: str) -> list[dict[str, Any]]:
    headers = {"Accept": "application/vnd.bough.event+json"}
    return site.client.get(f"/api/conversations/{id}/events/search?limit=500", headers=headers).json()["items"]


def press_tab_until(page: Page, focused: str) -> None:
    """Press Tab until an element that a selector names has the focus."""
    for _ in range(_MAX_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", focused):
            return
    raise AssertionError(f"Tab never reaches {focused}")


def use_keyboard(page: Page, selector: str) -> None:
    press_tab_until(page, selector)
    page.keyboard.press("Enter")


def use_mouse(page: Page, selector: str) -> None:
    page.locator(selector).first.click()


def start_finished_run(site: Site) -> str:
    id = site.start("hello", title="Nightly report")
    site.say(id, "write report.txt")
    return id


def wait_for_status(site: Site, id: str, after: int, status: str) -> None:
    """Follow a log after an event until the conversation has a status."""

    async def follow(services: Services) -> None:
        async for stored in services.store.subscribe(UUID(id), after):
            event = stored.as_json()
            if event["kind"] == "StateChanged" and event["changes"].get("status") == status:
                return

    site.call(follow)


@pytest.mark.parametrize(("scripts", "use"), [(True, use_keyboard), (False, use_mouse)])
def test_a_finished_run_is_forked_at_its_second_message(
    new_page: NewPage, site: Site, scripts: bool, use: Callable[[Page, str], None]
) -> None:
    id = start_finished_run(site)
    before = read_log(site, id)
    seq = [event["seq"] for event in before if event["kind"] == "UserMessage"][1]
    page = new_page(java_script_enabled=scripts, quiet=scripts)
    page.goto(site.url)
    use(page, f'main a[href^="/c/{id}"]')
    page.wait_for_url(f"**/c/{id}*")

    use(page, f'a[href*="/c/{id}/fork?at={seq}&edit=1"]')
    message = page.locator("[name=message]").last
    expect(message).to_be_focused()
    message.press("Control+a")
    message.press_sequentially("write summary.txt")
    policy = page.locator("[name=policy]").last
    if scripts:
        press_tab_until(page, "[name=policy]")
        page.keyboard.press("End")
        press_tab_until(page, "form[action='/do/fork'] button.main")
        page.keyboard.press("Enter")
    else:
        policy.select_option("always")
        page.locator("form[action='/do/fork'] button.main").click()
    page.wait_for_url(lambda url: "/c/" in url and id not in url)
    fork = page.url.split("/c/")[1][:36]
    wait_for_status(site, fork, seq, "waiting_for_confirmation")

    use(page, 'header a[href="/approvals"]')
    card = page.locator("article.ask").filter(has_text="summary.txt")
    approve = card.locator("footer button[name=approve]")
    expect(approve).to_be_enabled()
    if scripts:
        press_tab_until(page, "article.ask")
        page.keyboard.press("a")
    else:
        approve.click()
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    wait_for_status(site, fork, seq, "finished")
    assert [event["kind"] for event in read_log(site, fork)].count("ToolReturned") == 1

    page.goto(f"{site.url}/c/{fork}")
    use(page, f'.tabs a[href$="/c/{fork}/compare"]')
    page.wait_for_url(f"**/c/{fork}/compare/{id}")
    expect(page.locator(".pair .you ins, .pair .you del").first).to_be_visible()
    expect(page.locator(".cmp tbody tr")).to_have_count(2)
    assert read_log(site, id) == before, "the source is unchanged"
