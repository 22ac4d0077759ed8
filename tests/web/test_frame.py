"""The frame of every screen: addresses, headers, errors."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from bough.server.services import Services
from bough.web.signin import read_next

from .conftest import NewPage
from .site import Site, open_site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}


def test_the_list_is_shown(page: Page, site: Site) -> None:
    site.start("hello")
    page.goto(site.url)
    expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
    expect(page.get_by_role("link", name="hello")).to_be_visible()


def test_programs_get_json_at_the_same_address(site: Site) -> None:
    assert site.client.get("/").json()["title"] == "bough agent server"
    answer = site.client.get("/", headers=HTML)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    static: httpx2.Response = site.client.get(answer.text.split('<use href="')[1].split("#")[0])
    assert (static.status_code, static.headers["Content-Type"]) == (200, "image/svg+xml")
    assert "immutable" in static.headers["Cache-Control"]


def test_signing_in_and_out_by_the_form(new_page: NewPage, tmp_path: Path) -> None:
    with open_site(tmp_path) as site:
        key = site.call(lambda services: services.keys.table.create("laptop")).text
        site.call(forget_keys)
        page = new_page(quiet=False)
        page.goto(site.url + "/?status=running")
        field = page.get_by_label("Key")
        expect(field).to_be_focused()
        expect(page.get_by_text("bough 0.")).to_have_count(0)
        field.fill("bough_00000000_" + "0" * 43)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("The key is not valid.")).to_be_visible()
        field.fill(key)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Conversations", exact=True)).to_be_visible()
        page.get_by_label("Account").click()
        expect(page.get_by_text("laptop")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(field).to_be_visible()
        page.goto(site.url)
        expect(field).to_be_visible()


async def forget_keys(services: Services) -> None:
    services.keys.forget()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/c/1?at=2", "/c/1?at=2"), ("//evil.example", "/"), ("/\\evil.example", "/"), ("https://evil.example/", "/"),
        ("", "/"), ("/signin", "/"), ("/a\nb", "/"), ("javascript:alert(1)", "/"), ("/[", "/["),
    ],
)  # fmt: skip
def test_only_a_path_of_this_server_follows_a_sign_in(path: str, expected: str) -> None:
    assert read_next(path) == expected
