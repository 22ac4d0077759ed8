"""The tree of forks: the list has every branch in the rows of the drawing, and says what each became."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .site import Site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}


def make_tree(site: Site) -> list[str]:
    """Return a root, a fork that is kept, a fork that failed and was discarded, and one without own events."""
    root = site.start("hello", title="Root <i>", tags={"team": "red"})
    kept = site.fork(root, title="Kept one", tags={"kept": ""})
    site.say(kept, "more")
    discarded = site.fork(root, at=2, title="Lost one", tags={"discarded": ""})
    site.say(discarded, "fail now")
    return [root, kept, discarded, site.fork(kept, title="Empty one")]


def test_the_list_and_the_drawing_have_the_same_rows(page: Page, site: Site) -> None:
    _, kept, *_ = make_tree(site)
    page.goto(f"{site.url}/c/{kept}/tree")
    rows = page.get_by_role("list", name="Branches").get_by_role("listitem")
    expect(rows).to_have_count(4)
    expect(page.locator(".graph g")).to_have_count(4)
    expect(page.locator("[aria-current=true]")).to_contain_text("Kept one")
    expect(rows.nth(0)).to_contain_text("Root <i>")
    expect(rows.filter(has_text="Kept one")).to_contain_text("kept")
    lost = rows.filter(has_text="Lost one")
    expect(lost).to_contain_text("failed")
    expect(lost).to_contain_text("discarded")
    assert page.get_by_text("red", exact=True).count() == 1, "a tag stands where it was given, not on each fork"
    boxes = [rows.nth(number).bounding_box() for number in range(4)]
    drawing = page.locator(".graph").bounding_box()
    assert drawing is not None
    heights = {round(box["height"]) for box in boxes if box is not None}
    assert heights == {round(drawing["height"] / 4)}


def test_branches_without_own_events_can_be_hidden(page: Page, site: Site) -> None:
    root, *_ = make_tree(site)
    page.goto(f"{site.url}/c/{root}/tree")
    page.get_by_label("Hide branches without own events").check()
    page.wait_for_url("**own=1**")
    rows = page.get_by_role("list", name="Branches").get_by_role("listitem")
    expect(rows).to_have_count(3)
    page.get_by_text("Forks only").click()
    page.wait_for_url("**points=forks**")
    expect(rows).to_have_count(3)


def test_arrow_keys_go_from_branch_to_branch(page: Page, site: Site) -> None:
    root, *_ = make_tree(site)
    page.goto(f"{site.url}/c/{root}/tree")
    links = page.locator("#branches a")
    links.nth(0).focus()
    page.keyboard.press("ArrowDown")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()


def test_many_branches_come_in_pages_of_200(site: Site) -> None:
    root = site.start("hello", title="Wide")
    for number in range(205):
        site.fork(root, title=f"Branch {number}")
    first = site.client.get(f"/c/{root}/tree", headers=HTML).text
    assert first.count("<li>") == 200
    second = site.client.get(f"/c/{root}/tree?page_id=200", headers=HTML).text
    assert second.count("<li>") == 7, "the root, and the six that are left"
    assert "Branches 201 to 206 of 206" in second
    for wrong in ("x", "-1", "9" * 30):
        assert site.client.get(f"/c/{root}/tree?page_id={wrong}", headers=HTML).status_code == 200
    assert site.client.get(f"/c/{root}/tree?page_id=999", headers=HTML).text.count("<li>") == 0


def test_a_tree_of_nobody_is_not_found(site: Site) -> None:
    for id in ("0199c0de-0000-7000-8000-000000000404", "x"):
        answer = site.client.get(f"/c/{id}/tree", headers=HTML)
        assert answer.status_code == 404
        assert "<h1>" in answer.text
