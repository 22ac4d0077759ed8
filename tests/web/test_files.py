"""The footer of a turn: what its steps did to files, and taking it back, with and without scripts."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .site import Site

HTML = {"Accept": "text/html"}
HOSTILE = "<img src=x onerror=window.canary=1>\u202e.txt"


def get(site: Site, address: str, status: int = 200) -> str:
    answer = site.client.get(address, headers=HTML)
    assert answer.status_code == status, answer.text[-2000:]
    return answer.text


def read_workspace(site: Site, id: str) -> Path:
    return Path(site.client.get(f"/api/conversations/{id}").json()["workspace"]["working_dir"])


def find_links(site: Site, id: str, label: str) -> list[str]:
    """Return the links of this label in the footers of all turns."""
    html = "".join(re.findall(r'<footer class="sum.*?</footer>', get(site, f"/c/{id}"), re.DOTALL))
    return [unescape(href) for href in re.findall(rf'href="([^"]+)">{label}<', html)]


def start_edited(site: Site) -> str:
    """Start a conversation that writes a file in its first turn, and changes it in its second."""
    id = site.start("write notes.txt")
    site.say(id, "edit notes.txt")
    return id


def test_a_footer_leads_to_what_its_turn_changed(site: Site) -> None:
    id = start_edited(site)
    first, second = find_links(site, id, "Diff")
    html = get(site, first)
    assert "1 file changed" in html
    assert '<ins data-n="1">one</ins>' in html
    html = get(site, second)
    assert '<del data-n="2">two</del>' in html
    assert '<ins data-n="2">three</ins>' in html
    assert '<span data-n="1">one</span>' in html


def test_a_turn_that_only_talks_offers_no_files(site: Site) -> None:
    id = site.start("hello")
    assert "No files changed" in get(site, f"/c/{id}")
    assert find_links(site, id, "Restore") == []
    assert "No file was changed" in get(site, f"/c/{id}/files?from=0")


def test_a_file_that_a_command_changed_is_named(site: Site) -> None:
    id = site.start("run printf made > made.txt")
    assert len(find_links(site, id, "Diff")) == 1
    assert "made.txt" in get(site, f"/c/{id}").split('class="sum')[1]


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("scripts", [True, False])
def test_a_restore_is_shown_first_and_taken_back(new_page: NewPage, site: Site, scripts: bool) -> None:
    id = start_edited(site)
    notes = read_workspace(site, id) / "notes.txt"
    page = new_page(java_script_enabled=scripts)
    page.goto(f"{site.url}/c/{id}")
    page.get_by_role("link", name="Restore").last.click()
    expect(page.get_by_role("heading", name="1 file will be written")).to_be_visible()
    assert notes.read_text() == "one\nthree\n"
    page.get_by_role("button", name="Restore 1 file").click()
    expect(page.locator("main").get_by_role("status")).to_contain_text("1 file restored")
    expect(page.get_by_role("heading", name="Nothing to restore")).to_be_visible()
    assert notes.read_text() == "one\ntwo\n"
    page.get_by_role("button", name="Take it back").click()
    expect(page.locator("main").get_by_role("status")).to_contain_text("1 file brought back")
    assert notes.read_text() == "one\nthree\n"
    page.get_by_role("link", name="After event").click()
    expect(page.get_by_role("heading", name="Nothing to restore")).to_be_visible()
    page.get_by_role("link", name="Back to the timeline").or_(page.get_by_role("link", name="Cancel")).click()
    expect(page.locator("footer.sum").last).to_be_visible()


def test_what_others_changed_stays_unless_a_person_says_so(site: Site) -> None:
    id = start_edited(site)
    notes = read_workspace(site, id) / "notes.txt"
    notes.write_text("mine\n")
    address = find_links(site, id, "Restore")[-1]
    html = get(site, address)
    assert "Others changed 1 of these files" in html
    fields = {"id": id, "at": re.findall(r'name="at" value="(\d+)"', html)[0], "from": "0", "to": "9"}
    refused = site.client.post("/do/restore", data=fields, headers=HTML)
    assert refused.status_code == 409
    assert notes.read_text() == "mine\n"
    assert site.client.post("/do/restore", data=fields | {"conflicts": "leave"}).status_code == 303
    assert notes.read_text() == "mine\n"
    assert site.client.post("/do/restore", data=fields | {"conflicts": "force"}).status_code == 303
    assert notes.read_text() == "one\ntwo\n"
    assert site.client.post("/do/redo", data=fields).status_code == 303
    assert notes.read_text() == "mine\n"


@pytest.mark.needs("chromium")
def test_hostile_names_and_contents_stay_text(page: Page, site: Site) -> None:
    id = site.start(f"write {HOSTILE}")
    (read_workspace(site, id) / HOSTILE).write_text(
        "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n<script>x</script>\n"
    )
    site.say(id, f"run printf '%s\\n' '<b>--- a/other' >> '{HOSTILE}'")
    for label in ("Diff", "Restore"):
        for address in find_links(site, id, label):
            page.goto(site.url + address)
            assert page.evaluate("window.canary") is None
            expect(page.locator("main")).to_contain_text("<img src=x onerror=window.canary=1>⟦202E⟧")
            assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize(
    ("address", "status"),
    [("files?from=x", 422), ("restore?from=-1", 422), ("files?from=999999&to=9", 200), ("restore?from=999999", 200)],
)
def test_a_wrong_place_is_a_clients_mistake_or_the_end(site: Site, address: str, status: int) -> None:
    get(site, f"/c/{site.start('hello')}/{address}", status)
