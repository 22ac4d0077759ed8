"""Compare: a table of all branches, the turns of two of them, only differences, live, graft."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .site import Site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}


def make_branches(site: Site) -> tuple[str, str, str]:
    """Return a conversation of two turns, and two forks of it with another second turn."""
    id = site.start("hello", title="Source")
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    site.say(id, "write shop/totals.py")
    forks = [site.fork(id, at=head, title=title) for title in ("Fork one", "Fork two")]
    site.say(forks[0], "write shop/load.py")
    site.say(forks[1], "say <script>alert(1)</script>")
    return id, forks[0], forks[1]


def test_two_branches_stand_side_by_side(page: Page, site: Site) -> None:
    id, fork, third = make_branches(site)
    page.goto(f"{site.url}/c/{id}/compare/{fork}?also={third}")
    rows = page.locator(".cmp tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("Fork one")
    message = page.locator(".pair .you")
    expect(message.nth(0).locator("del")).to_have_text("totals")
    expect(message.nth(1).locator("ins")).to_have_text("load")
    same = page.get_by_text("1 same step: answer")
    expect(same).to_be_visible()
    page.get_by_role("link", name="Only differences").click()
    expect(same).to_have_count(0)
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="Show C in place of B").click()
    expect(page.locator(".over h2").nth(1)).to_contain_text("Fork two")
    expect(page.get_by_text("<script>alert(1)</script>").first).to_be_visible()


@pytest.mark.needs("bubblewrap")
def test_a_command_that_failed_has_the_sign_of_a_failure(page: Page, site: Site) -> None:
    id = site.start("hello")
    fork = site.fork(id)
    site.say(id, "run false")
    site.say(fork, "run true")
    page.goto(f"{site.url}/c/{id}/compare/{fork}")
    calls = page.locator(".pair .call")
    expect(calls.nth(0).get_by_role("img", name="failed")).to_be_visible()
    expect(calls.nth(1).get_by_role("img", name="ok")).to_be_visible()
    expect(page.get_by_role("columnheader", name="common events")).to_be_visible()


def test_the_other_branch_grows_while_it_is_looked_at(page: Page, site: Site) -> None:
    id, fork, _ = make_branches(site)
    page.goto(f"{site.url}/c/{id}/compare/{fork}")
    expect(page.get_by_role("heading", name="Turn 2")).to_be_visible()
    site.say(fork, "a word that comes later")
    expect(page.get_by_role("heading", name="Turn 3")).to_be_visible()
    expect(page.locator(".pair .you").last).to_contain_text("a word that comes later")


def test_a_summary_of_a_branch_is_grafted_into_the_other(new_page: NewPage, site: Site) -> None:
    id, fork, _ = make_branches(site)
    page = new_page(quiet=False)
    page.goto(f"{site.url}/c/{id}/compare/{fork}")
    page.locator("summary", has_text="Graft").click()
    page.get_by_label("Summary").fill("the loader works")
    with page.expect_response("**/do/graft") as sent:
        page.get_by_role("button", name="Graft", exact=True).click()
    assert sent.value.status == 303
    headers = {"Accept": "application/vnd.bough.event+json"}
    log = site.client.get(f"/api/conversations/{id}/events/search?limit=500", headers=headers).json()["items"]
    assert "the loader works" in log[-1]["content"][0]["text"]


def follow(site: Site, path: str) -> Any:
    return site.client.get(path, headers=HTML, follow_redirects=False)


def test_the_ids_of_a_form_become_the_address_of_a_comparison(site: Site) -> None:
    id, fork, third = make_branches(site)
    assert follow(site, f"/compare?id={id}&id={fork}").headers["location"] == f"/c/{id}/compare/{fork}"
    assert follow(site, f"/compare?id={id}&id={fork}&id={third}").headers["location"].endswith(f"?also={third}")
    assert follow(site, f"/c/{fork}/compare").headers["location"] == f"/c/{fork}/compare/{id}"
    assert follow(site, f"/c/{id}/compare").headers["location"].startswith(f"/c/{id}/compare/")


def test_what_cannot_be_compared_is_told(site: Site) -> None:
    id, fork, _ = make_branches(site)
    nobody = "0199c0de-0000-7000-8000-000000000404"
    for path, status in (
        (f"/c/{id}/compare/{id}", 422),
        (f"/c/{id}/compare/x", 422),
        (f"/c/{id}/compare/{nobody}", 404),
        (f"/c/{id}/compare/{fork}?also=x", 422),
        (f"/c/{id}/compare/{fork}?page_id=x", 422),
        (f"/compare?id={id}&id=x", 422),
        ("/compare", 422),
    ):
        assert follow(site, path).status_code == status, path


def test_unrelated_conversations_have_no_event_in_common(site: Site) -> None:
    one, other = site.start("hello"), site.start("hello there")
    text = follow(site, f"/c/{one}/compare/{other}").text
    assert "No event in common" in text
