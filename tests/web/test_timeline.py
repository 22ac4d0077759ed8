"""The timeline: rows as they come, search, places, filters, forms, with and without JavaScript."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .site import Site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}
CANARY = "<script>window.canary=1</script><img src=x onerror=window.canary=1> \u202e [go](javascript:window.canary=1)"


def get(site: Site, address: str) -> str:
    answer = site.client.get(address, headers=HTML)
    assert answer.status_code == 200, answer.text[-2000:]
    return answer.text


def test_a_conversation_is_shown_in_turns_with_its_totals(page: Page, site: Site) -> None:
    id = site.start("write notes.txt")
    site.say(id, "edit notes.txt")
    page.goto(f"{site.url}/c/{id}")
    expect(page.get_by_role("region", name="Turn 2")).to_contain_text("edit_file")
    expect(page.locator("del")).to_have_text("two")
    expect(page.locator("footer.sum").last).to_contain_text("1 file +1 −1")
    expect(page.get_by_role("navigation", name="Outline").get_by_role("link")).to_have_count(2)
    expect(page.get_by_role("link", name="Edit and run from here").first).to_have_attribute(
        "href", re.compile(rf"^/c/{id}/fork\?at=\d+&edit=1$")
    )


def test_a_message_is_sent_and_its_rows_come_without_a_reload(page: Page, site: Site) -> None:
    id = site.start("hello")
    page.goto(f"{site.url}/c/{id}")
    page.evaluate("window.stayed = true")
    site.say(id, "write later.txt")
    expect(page.locator("article.call summary")).to_contain_text("later.txt")
    expect(page.locator("#status")).to_contain_text("Done")
    assert page.evaluate("window.stayed")
    page.get_by_label("Message", exact=True).fill("from the page")
    page.keyboard.press("Control+Enter")
    expect(page.locator("article.you").last).to_contain_text("from the page")
    expect(page.locator("article.step").last).to_contain_text("You said: from the page")
    expect(page.locator("#status")).to_contain_text("Done")
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    expect(page.locator(".log [id^=e]")).to_have_count(head)
    seqs = page.locator(".log [id^=e]").evaluate_all("rows => rows.map((row) => Number(row.id.slice(1)))")
    assert sorted(seqs) == list(range(head))


@pytest.mark.parametrize("scripts", [True, False])
def test_a_failed_run_is_run_again(new_page: NewPage, site: Site, scripts: bool) -> None:
    id = site.start("fail now")
    page = new_page(quiet=False, java_script_enabled=scripts)
    page.goto(f"{site.url}/c/{id}")
    again = page.get_by_role("button", name="Run again")
    expect(page.locator("article[data-error]")).to_have_count(1)
    again.click()
    watcher = new_page(quiet=False)
    watcher.goto(f"{site.url}/c/{id}")
    expect(watcher.locator("article[data-error]")).to_have_count(2)
    expect(watcher.get_by_role("button", name="Run again")).to_be_visible()
    site.say(id, "hello")
    expect(watcher.locator("#status")).to_contain_text("Done")
    expect(watcher.get_by_role("button", name="Run again")).to_be_hidden()


def test_hostile_contents_run_nothing(page: Page, site: Site) -> None:
    id = site.start(CANARY)
    site.say(id, f"write {CANARY}")
    page.goto(f"{site.url}/c/{id}")
    expect(page.locator("article.you").first).to_contain_text("<script>window.canary=1</script>")
    expect(page.locator("article.you").first).to_contain_text("⟦202E⟧")
    assert page.evaluate("window.canary") is None
    assert page.locator(".log img, .log script, .log a[href^=javascript]").count() == 0


def test_a_word_is_found_and_jumped_to(page: Page, site: Site) -> None:
    id = site.start("run printf zebra")
    for number in range(3):
        site.say(id, f"message {number}")
    page.goto(f"{site.url}/c/{id}")
    page.get_by_label("Find in this conversation").fill("Zebra")
    page.keyboard.press("Enter")
    expect(page.locator("#matches")).to_contain_text("1 of ")
    expect(page.locator("article:focus")).to_contain_text("zebra")
    page.get_by_label("Find in this conversation").fill("#0")
    page.keyboard.press("Enter")
    expect(page.locator("article:focus")).to_have_id("e0")


def test_everything_works_without_scripts(new_page: NewPage, site: Site) -> None:
    id = site.start("first")
    page = new_page(java_script_enabled=False)
    page.goto(f"{site.url}/c/{id}")
    page.get_by_label("Message", exact=True).fill("second")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article.you").last).to_contain_text("second")
    page.goto(f"{site.url}/c/{id}?find=first")
    expect(page.locator(".matches")).to_contain_text("match")
    page.goto(f"{site.url}/c/{id}?find=nowhere")
    expect(page.locator(".matches")).to_contain_text("Nothing contains “nowhere”")
    page.goto(f"{site.url}/c/{id}/e/1")
    expect(page.get_by_role("heading", name="Event 1")).to_be_visible()


def test_only_some_kinds_are_shown(site: Site) -> None:
    id = site.start("run false")
    site.say(id, "thanks")
    assert 'article class="row call"' not in get(site, f"/c/{id}?kinds=messages")
    assert 'article class="row you"' not in get(site, f"/c/{id}?kinds=calls")
    assert get(site, f"/c/{id}?kinds=errors").count("<article") == 1
    fine = site.start("hello")
    assert "No errors here" in get(site, f"/c/{fine}?kinds=errors")


@pytest.mark.parametrize(
    ("address", "status"),
    [("?at=x", 422), ("?turn=-1", 422), ("/rows?from=0", 422), ("/rows?from=0&to=9999", 422),
     ("/rows?from=9&to=2", 422),
     ("/find?text=", 422), ("/live?after=99999", 422), ("/e/99999", 404), ("/e/x", 404), ("/e/1?field=none", 404),
     ("/e/1?offset=x", 422)],
)  # fmt: skip
def test_a_wrong_address_is_a_clients_mistake(site: Site, address: str, status: int) -> None:
    id = site.start("hello")
    assert site.client.get(f"/c/{id}{address}", headers=HTML).status_code == status


def test_an_unknown_conversation_is_not_found(site: Site) -> None:
    for address in ("/c/none", "/c/01a00000-0000-7000-8000-000000000000", "/c/none/rows?from=0&to=1"):
        assert site.client.get(address, headers=HTML).status_code == 404


def test_keys_fork_from_a_row_and_compare_conversations(page: Page, site: Site) -> None:
    id = site.start("hello")
    fork = site.fork(id)
    page.goto(f"{site.url}/c/{id}?at=1")
    expect(page.locator("#e1")).to_be_focused()
    for key, button in (("f", "Fork"), ("F", "Fork beside")):
        page.keyboard.press(key)
        expect(page.get_by_role("dialog")).to_contain_text("After event 1")
        expect(page.get_by_role("dialog").locator("button.main")).to_contain_text(button)
        page.keyboard.press("Escape")
        expect(page.locator("#e1")).to_be_focused()
    page.keyboard.press("c")
    expect(page.locator("#matches")).to_have_text("marked")
    page.goto(f"{site.url}/c/{fork}")
    page.keyboard.press("c")
    page.wait_for_url(f"**/c/{id}/compare/{fork}")


def test_a_message_that_is_sent_twice_is_one_message(site: Site) -> None:
    id = site.start("hello")
    key = get(site, f"/c/{id}").split('name="request_key" value="')[1].split('"')[0]
    fields = {"id": id, "message": "only once", "request_key": key}
    assert [site.client.post("/do/send", data=fields).status_code for _ in range(2)] == [303, 303]
    assert get(site, f"/c/{id}").count('<div class="prose"><p>only once</p>') == 1
