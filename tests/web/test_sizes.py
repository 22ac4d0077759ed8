"""Bytes and requests of the page: what a first visit costs."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Request

import bough.web

from .conftest import NewPage
from .screens import SCREENS, Stories, find_address
from .site import Site

STATIC = Path(bough.web.__file__).parent / "static"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
MAX_REQUESTS = 8


def test_modules_and_sheet_stay_small() -> None:
    modules = {path.name: path.stat().st_size for path in STATIC.glob("*.js")}
    assert sum(modules.values()) < 40_000, modules
    assert (STATIC / "style.css").stat().st_size < 20_000
    assert (STATIC / "icons.svg").stat().st_size < 5_000


def test_colours_of_text_have_the_contrast_that_is_wanted() -> None:
    """Each pair of tokens that stand on each other, light and dark, computed from the sheet."""
    sheet = (STATIC / "style.css").read_text("utf-8")
    pairs = dict(re.findall(r"--([a-z]+):light-dark\((#[0-9a-f]{3,6},#[0-9a-f]{3,6})\)", sheet))
    for theme in (0, 1):
        tokens = {name: luminance(colours.split(",")[theme]) for name, colours in pairs.items()}
        for text in ("text", "dim", "accent", "good", "warn", "bad", "key", "str"):
            for ground in ("ground", "panel", "fill", "soft"):
                assert contrast(tokens[text], tokens[ground]) >= 4.5, (text, ground, theme)
        for ground in ("ground", "panel"):
            assert contrast(tokens["edge"], tokens[ground]) >= 3, (ground, theme)
        assert contrast(tokens["ground"], tokens["accent"]) >= 4.5


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_axe_is_the_file_that_was_released() -> None:
    digest = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
    assert sha256(AXE.read_bytes()).hexdigest() == digest


@pytest.mark.needs("chromium")
def test_a_first_visit_makes_few_requests_to_this_server_alone(new_page: NewPage, site: Site, stories: Stories) -> None:
    page = new_page(quiet=False)
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    for name in SCREENS:
        requests.clear()
        address = find_address(site, stories, name)
        page.goto(address, wait_until="load")
        urls = [request.url for request in requests]
        assert len(urls) <= MAX_REQUESTS, (name, urls)
        assert all(urlsplit(url).netloc == urlsplit(address).netloc for url in urls), (name, urls)
        html = page.content().encode()
        assert len(gzip.compress(html)) <= 40_000, name


def test_a_second_visit_asks_for_no_script_again(site: Site) -> None:
    page = site.client.get("/", headers={"Accept": "text/html"})
    for url in re.findall(r'(?:src|href)="(/static/[^"#]+)"', page.text):
        file = site.client.get(url)
        assert (file.status_code, "immutable" in file.headers["Cache-Control"]) == (200, True), url
    assert page.headers["Cache-Control"] == "no-store"
