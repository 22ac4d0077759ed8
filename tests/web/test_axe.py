"""Every screen for people who use it without sight or mouse: axe-core, light and dark, wide and narrow; Tab."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from .conftest import NewPage
from .screens import SCREENS, Stories
from .site import Site
from .test_sizes import AXE

pytestmark = pytest.mark.needs("chromium")
RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(violation =>
  `${violation.id}: ${violation.nodes.map(node => node.html).join(" | ")}`.slice(0, 400))"""


def find_violations(page: Page) -> list[str]:
    """Return what axe-core finds in a page whose context ignores its policy."""
    page.evaluate(AXE.read_text("utf-8"))
    return page.evaluate(RUN)


@pytest.mark.parametrize("name", SCREENS)
def test_axe_finds_nothing(new_page: NewPage, site: Site, stories: Stories, name: str) -> None:
    page = new_page(quiet=False, bypass_csp=True)
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            page.goto(site.url + SCREENS[name](stories))
            page.evaluate("document.querySelectorAll('main details').forEach(details => details.open = true)")
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": min(max(height, 800), 8000)})
            assert find_violations(page) == [], (width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing scrolls sideways"


@pytest.mark.parametrize("name", SCREENS)
def test_tab_reaches_each_stop_in_order_and_shows_it(
    new_page: NewPage, site: Site, stories: Stories, name: str
) -> None:
    page = new_page(quiet=False)
    page.goto(site.url + SCREENS[name](stories))
    stops_of_page = "[...document.querySelectorAll('a[href], button, input, select, textarea, summary')]"
    order = f"{stops_of_page}.indexOf(document.activeElement)"
    stops: list[int] = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(200):
        page.keyboard.press("Tab")
        at: int = page.evaluate(order)
        if at < 0 or at in stops:
            break
        stops.append(at)
        box: dict[str, Any] = page.evaluate(
            "(() => {const box = document.activeElement.getBoundingClientRect();"
            "const style = getComputedStyle(document.activeElement);"
            "return {width: box.width, height: box.height, outline: style.outlineStyle}})()"
        )
        assert box["width"] > 0 and box["height"] > 0 and box["outline"] != "none", (name, stops, box)
    assert len(stops) > 3, (name, stops)
    if SCREENS[name](stories) != "/new":  # the field of its message is focused first
        assert stops == sorted(stops), "the order of Tab is the order of reading"
