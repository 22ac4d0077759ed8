"""The list of conversations: groups, filters, pages, comparison, live rows; and the form of a new conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .site import Site, open_site

pytestmark = pytest.mark.needs("chromium")
EVIL = "<script>window.canary = 1</script>\u202e' \" &amp;"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def stories(site: Site) -> dict[str, str]:
    """Conversations of each kind, by name."""
    done = site.start("profile the csv", title="Profile sales", tags={"team": "retail"})
    return {
        "done": done,
        "fork": site.fork(done, title="Profile again"),
        "waiting": site.start_waiting(title="Remove the build"),
        "failed": site.start("fail now", title="Port the settings"),
        "evil": site.start(title=EVIL),
    }


def test_rows_are_grouped_by_what_they_need(page: Page, site: Site, stories: dict[str, str]) -> None:
    page.goto(site.url)
    row = page.locator(f'tr[data-id="{stories["waiting"]}"]')
    expect(row).to_contain_text("1 call requires approval")
    expect(row.locator("xpath=..")).to_contain_text("Waiting for you 1")
    expect(page.locator(f'tr[data-id="{stories["failed"]}"]')).to_have_attribute("data-status", "failed")
    expect(page.locator(f'tr[data-id="{stories["fork"]}"]')).to_contain_text("from Profile sales")
    assert page.locator(f'tr[data-id="{stories["evil"]}"] a').inner_text().startswith("<script>")
    assert page.evaluate("window.canary") is None
    expect(page).to_have_title(re.compile(r"^\(1\) Conversations: bough$"))


def test_filters_narrow_the_list_by_links_alone(new_page: NewPage, site: Site, stories: dict[str, str]) -> None:
    page = new_page(java_script_enabled=False, quiet=False)
    page.goto(site.url)
    page.get_by_label("Search conversations").fill("profile")
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    page.locator("summary", has_text="Status").click()
    page.get_by_role("link", name="Done").click()
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.get_by_label("Search conversations")).to_have_value("profile")
    page.goto(f"{site.url}/?tag=team:retail&status=failed")
    expect(page.get_by_text("No conversation matches")).to_be_visible()
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator("tr[data-id]")).to_have_count(len(stories))
    page.goto(f"{site.url}/?status=nonsense")
    expect(page.get_by_text("one of: waiting, running")).to_be_visible()


def test_two_ticked_rows_are_compared_by_a_form(new_page: NewPage, site: Site, stories: dict[str, str]) -> None:
    page = new_page(java_script_enabled=False, quiet=False)
    page.goto(site.url)
    button = page.get_by_role("button", name="Compare")
    expect(button).to_be_hidden()
    for name in ("done", "fork"):
        page.locator(f'tr[data-id="{stories[name]}"] input').check()
    button.click()
    assert stories["done"] in page.url and stories["fork"] in page.url, page.url


def test_a_row_moves_with_its_conversation_and_new_ones_are_announced(page: Page, site: Site) -> None:
    id = site.start(title="Live one")
    with page.expect_response("**/api/updates"):
        page.goto(site.url)
    row = page.locator(f'tr[data-id="{id}"]')
    expect(row).to_have_attribute("data-status", "idle")
    site.say(id, "hello")
    expect(row).to_have_attribute("data-status", "done")
    expect(row.locator(".sr").first).to_have_text("done")
    waiting = site.start_waiting(title="Arrives later")
    expect(page.locator("#news")).to_contain_text("show")
    expect(page.locator(f'tr[data-id="{waiting}"]')).to_have_count(0)
    expect(page.locator("#waiting-count")).to_contain_text("2")
    page.locator("#news a").click()
    expect(page.locator(f'tr[data-id="{waiting}"]')).to_be_visible()


def test_pages_of_fifty_rows_show_each_conversation_once(new_page: NewPage, tmp_path: Path) -> None:
    with open_site(tmp_path) as site:
        ids = {site.start(title=f"number {number}") for number in range(120)}
        page = new_page(java_script_enabled=False)
        page.goto(site.url)
        shown: list[str] = []
        for rows in (50, 50, 20):
            expect(page.locator("tr[data-id]")).to_have_count(rows)
            shown += page.locator("tr[data-id]").evaluate_all("rows => rows.map(row => row.dataset.id)")
            older = page.get_by_role("link", name="Older")
            if older.count():
                older.click()
        assert len(shown) == 120 and set(shown) == ids
        page.get_by_role("link", name="Newest").click()
        expect(page.locator("tr[data-id]").first).to_contain_text("number 119")


def test_an_empty_store_says_how_to_start_one(new_page: NewPage, tmp_path: Path) -> None:
    with open_site(tmp_path) as site:
        page = new_page(java_script_enabled=False, quiet=False)
        page.goto(site.url)
        expect(page.get_by_text("No conversations yet")).to_be_visible()
        page.get_by_role("link", name="New conversation").click()
        page.get_by_label("Message").fill("greet everybody")
        page.get_by_text("More: title").click()
        page.get_by_label("US dollars").fill("a lot")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#refusal")).to_contain_text("cost_usd")
        expect(page.get_by_label("Message")).to_have_value("greet everybody")
        assert site.client.get("/api/conversations/count").json() == 0, "what was refused started nothing"
        page.get_by_label("US dollars").fill("")
        page.get_by_label("Steps").fill("5")
        page.get_by_label("Policy").select_option("Ask before every call")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/c/*")
        [item] = site.client.get("/api/conversations/search", params={"full": True}).json()["items"]
        assert page.url.endswith(item["id"])
        assert item["confirmation_policy"] == {"kind": "AlwaysConfirm"}
        assert item["limits"]["steps"] == 5
        fields = {"message": "greet everybody", "request_key": "the same"}
        answers = [site.client.post("/do/start", data=fields) for _ in range(2)]
        places = {answer.headers["Location"] for answer in answers}
        assert len(places) == 1, "the same form sent twice starts one"
        assert site.client.get("/api/conversations/count").json() == 2
