"""The frame of every screen: addresses, headers, errors."""

from __future__ import annotations

import httpx2
import pytest
from playwright.sync_api import Page, expect

from .site import Site

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
