"""What a screen says while it is open: the server is away, newer, or has ended the session or the conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from bough.server.services import Services

from .conftest import NewPage
from .proxy import Proxy, open_proxy
from .site import Site, open_site

pytestmark = pytest.mark.needs("chromium")
LOST = re.compile(r"Connection lost\. Retrying in \d+ s\. What you see is from \d\d:\d\d:\d\d\.")


@pytest.fixture
def proxy(site: Site) -> Iterator[str]:
    with open_proxy(site.running.port, is_honest=True) as url:
        yield url


def test_a_timeline_says_that_the_server_is_away_and_adds_what_happened(
    new_page: NewPage, site: Site, proxy: str
) -> None:
    id = site.start("hello")
    page = new_page(quiet=False)
    with page.expect_response("**/live?**"):
        page.goto(f"{proxy}/c/{id}")
    page.get_by_label("Message", exact=True).fill("half a thought")
    Proxy.go_away()
    banner = page.locator("#offline")
    expect(banner).to_contain_text(LOST)
    expect(page.get_by_role("alert").first).to_contain_text("Connection lost.")
    site.say(id, "while nobody saw it")
    expect(page.locator("article.you")).to_have_count(1)
    Proxy.is_away = False
    banner.get_by_role("button", name="Retry now").click()
    expect(page.locator("article.you").last).to_contain_text("while nobody saw it")
    expect(banner).to_have_count(0)
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    expect(page.locator(".log [id^=e]")).to_have_count(head)
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")


def test_a_list_says_that_the_server_is_away_and_draws_its_rows_again(
    new_page: NewPage, site: Site, proxy: str
) -> None:
    id = site.start(title="Changes meanwhile")
    page = new_page(quiet=False)
    with page.expect_response("**/api/updates"):
        page.goto(proxy)
    row = page.locator(f'tr[data-id="{id}"]')
    expect(row).to_have_attribute("data-status", "idle")
    Proxy.go_away()
    expect(page.locator("#offline")).to_contain_text(LOST)
    site.say(id, "hello")
    Proxy.is_away = False
    page.locator("#offline").get_by_role("button", name="Retry now").click()
    expect(row).to_have_attribute("data-status", "done")
    expect(page.locator("#offline")).to_have_count(0)


def test_a_server_that_comes_back_newer_asks_for_a_reload(new_page: NewPage, site: Site, proxy: str) -> None:
    id = site.start("hello")
    page = new_page(quiet=False)
    for path in ("/", f"/c/{id}"):
        with page.expect_response(re.compile("/live|/api/updates")):
            page.goto(proxy + path)
        Proxy.go_away()
        expect(page.locator("#offline")).to_be_visible()
        Proxy.version, Proxy.is_away = "newer", False
        banner = page.locator("#newer")
        expect(banner).to_contain_text("The server was updated. Reload to continue.")
        Proxy.version = None
        banner.get_by_role("button", name="Reload").click()
        expect(banner).to_have_count(0)


def test_a_conversation_that_is_deleted_while_it_is_looked_at_says_so(page: Page, site: Site) -> None:
    for path in ("", "/compare/{fork}"):
        id = site.start("hello", title="Short life")
        fork = site.fork(id)
        with page.expect_response(re.compile("/live|/events/stream")):
            page.goto(f"{site.url}/c/{id}{path.format(fork=fork)}")
        assert site.client.delete(f"/api/conversations/{fork}?mode=tombstone").status_code == 200
        assert site.client.delete(f"/api/conversations/{id}?mode=tombstone").status_code == 200
        banner = page.locator("#over")
        expect(banner).to_contain_text("The conversation was deleted.")
        for button in page.locator("#talk button").all():
            expect(button).to_be_disabled()
        banner.get_by_role("button", name="All conversations").click()
        expect(page.get_by_role("heading", name="Conversations", exact=False)).to_be_visible()


async def forget_keys(services: Services) -> None:
    services.keys.forget()


def test_a_session_that_ends_asks_for_the_key_over_the_screen(new_page: NewPage, folder: Path) -> None:
    with open_site(folder) as site:
        id = site.start("hello")
        key = site.call(lambda services: services.keys.table.create("laptop")).text
        site.call(forget_keys)
        page = new_page(quiet=False)
        page.goto(f"{site.url}/c/{id}?find=hello")
        page.get_by_label("Key").fill(key)
        with page.expect_response("**/live?**"):
            page.keyboard.press("Enter")
        assert page.url.endswith(f"/c/{id}?find=hello"), "the whole address is opened after the sign-in"
        page.get_by_label("Message", exact=True).fill("half a thought")
        for text in (key, None):
            page.context.clear_cookies()
            page.evaluate("dispatchEvent(new Event('online'))")  # the browser has another network
            dialog = page.get_by_role("dialog", name="Your session has ended")
            if text is None:
                dialog.get_by_role("button", name="Close").click()
                break
            dialog.get_by_label("Key").fill("bough_00000000_" + "0" * 43)
            page.keyboard.press("Enter")
            expect(dialog.locator(".bad")).to_contain_text("not valid")
            dialog.get_by_label("Key").fill(text)
            with page.expect_response("**/live?**"):
                page.keyboard.press("Enter")
            expect(dialog).to_have_count(0)
            expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
        expect(page.locator("#over")).to_contain_text("Your session has ended.")
        page.locator("#over").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Sign in to bough")).to_be_visible()
