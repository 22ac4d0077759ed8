"""Every screen for people who use it without sight or mouse, or enlarged: axe-core, Tab, 400 % zoom."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .screens import SCREENS, Stories, find_address
from .site import Site
from .test_sizes import AXE

pytestmark = pytest.mark.needs("chromium")
ZOOMED = {"width": 320, "height": 200}
"""A window of 1280 × 800 pixels, enlarged to 400 %."""

RUN = """async (rules) => (await axe.run(document, {resultTypes: ["violations"], ...rules})).violations.map(violation =>
  `${violation.id}: ${violation.nodes.map(node => node.html).join(" | ")}`.slice(0, 400))"""

# The texts that are cut at an edge: of the window, or of an element that hides what is beside it.
FIND_CUT_TEXTS = """() => {
  const cut = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = new Range();
  for (let node; (node = walker.nextNode()); ) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, noscript, option, .sr, .skip")) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    let left = 0, right = innerWidth, isReachable = false;
    for (let element = parent; element !== document.body; element = element.parentElement) {
      const { overflowX, textOverflow } = getComputedStyle(element), box = element.getBoundingClientRect();
      isReachable ||= overflowX === "auto" || overflowX === "scroll" || textOverflow === "ellipsis";
      if (overflowX !== "hidden" && overflowX !== "clip") continue;
      [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
    }
    range.selectNodeContents(node);
    const boxes = isReachable ? [] : [...range.getClientRects()];
    if (boxes.some((box) => box.left < left - 1 || box.right > right + 1)) cut.push(node.data.trim().slice(0, 60));
  }
  return cut;
}"""

# What Tab should reach, in the order of reading; and what it reaches, with what is wrong there.
BEGIN_WALK = """() => {
  const controls = "a[href], button, input, select, textarea, summary, [tabindex]";
  const isOneChecked = (name) => document.querySelector(`[name="${CSS.escape(name)}"]:checked`);
  const isStop = (element) => element.tabIndex >= 0 && !element.disabled && element.type !== "hidden" &&
    element.checkVisibility({ visibilityProperty: true }) &&
    (element.type !== "radio" || element.checked || !isOneChecked(element.name));
  const expected = [...document.querySelectorAll(controls)].filter(isStop);
  const describe = (element) => element.outerHTML.slice(0, 90);
  globalThis.walk = { expected: expected.map(describe), stops: [], problems: [] };
  if (globalThis.look) document.removeEventListener("focusin", look);
  globalThis.look = ({ target }) => {
    walk.stops.push(describe(target));
    // Something transparent lies over the label that shows its state.
    const shown = getComputedStyle(target).opacity === "0" ? target.closest("label") ?? target : target;
    const { outlineStyle, outlineWidth } = getComputedStyle(shown), box = shown.getBoundingClientRect();
    const problem = (text) => walk.problems.push(`${text}: ${describe(target)}`);
    if (outlineStyle === "none" || parseFloat(outlineWidth) < 2) problem("no outline");
    if (!box.width || !box.height) problem("no size");
    const x = [box.left + 2, (box.left + box.right) / 2, box.right - 2];
    const y = [box.top + 2, (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2, box.bottom - 2];
    const isSeen = x.some((left) => y.some((top) => {
      const element = document.elementFromPoint(left, top);
      return element && (shown.contains(element) || element.contains(target));
    }));
    if (!isSeen) problem("covered");
  };
  document.addEventListener("focusin", look);
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
  walk.stops = [];
  walk.problems = [];
  return expected.length;
}"""


def find_violations(page: Page, *rules: str) -> list[str]:
    """Return what axe-core finds in a page whose context ignores its policy, by all rules unless some are named."""
    return page.evaluate(RUN, {"runOnly": list(rules)} if rules else {})


@pytest.mark.parametrize("name", SCREENS)
def test_axe_finds_nothing(new_page: NewPage, site: Site, stories: Stories, name: str) -> None:
    page = new_page(quiet=False, bypass_csp=True, reduced_motion="reduce", color_scheme="light")
    page.goto(find_address(site, stories, name))
    page.evaluate(AXE.read_text("utf-8"))
    page.evaluate("document.querySelectorAll('main details').forEach(details => details.open = true)")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": min(max(height, 800), 8000)})
        assert find_violations(page) == [], width
        page.emulate_media(color_scheme="dark")
        assert find_violations(page, "color-contrast") == [], width  # no other rule reads colours
        page.emulate_media(color_scheme="light")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing scrolls sideways"
        assert page.evaluate(FIND_CUT_TEXTS) == [], width


@pytest.mark.parametrize("name", SCREENS)
def test_tab_reaches_each_stop_in_order_and_shows_it_also_enlarged(
    new_page: NewPage, site: Site, stories: Stories, name: str
) -> None:
    page = new_page(quiet=False, reduced_motion="reduce")
    page.goto(find_address(site, stories, name))
    expect(page.locator("button[name]:disabled")).to_have_count(0)  # those of a call wait until it was seen
    for size in ({"width": 1280, "height": 800}, ZOOMED):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(FIND_CUT_TEXTS) == [], size
        for _ in range(page.evaluate(BEGIN_WALK)):
            page.keyboard.press("Tab")
        walk: dict[str, Any] = page.evaluate("walk")
        assert walk["problems"] == [], size
        assert walk["stops"] == walk["expected"], size
        assert len(walk["stops"]) >= 2 or name == "sign-in"
