"""The main screens on Postgres, with the runs on a server in another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect
from tests.server.processes import Cluster, client_of

from bough.testing.postgres import make_database

from .site import Site, open_site

pytestmark = [pytest.mark.needs("chromium", "postgres"), pytest.mark.slow]
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def store(postgres: str) -> str:
    return make_database(postgres)


@pytest.fixture(scope="module")
def site(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server whose page is looked at."""
    with open_site(tmp_path_factory.mktemp("site"), store=store, env={"BOUGH_SECRET_KEY": "k" * 40}) as site:
        yield site


@pytest.fixture(scope="module")
def other(store: str, site: Site) -> Iterator[httpx2.Client]:
    """A client of a server in another process, which runs what it is asked to run."""
    cluster = Cluster(site.settings.home.parent, store)
    try:
        process = cluster.start("serve", "--port", "0", "--agents", "tests.web.site:agent", BOUGH_POLICY="allow")
        address = process.wait_for("listening on ").split("listening on ")[1].strip()
        with client_of(address) as client:
            yield client
    finally:
        cluster.close()


def start(other: httpx2.Client, folder: Path, message: str, **fields: Any) -> str:
    """Start a conversation on the other server, run it there until it ends or waits, and return its id."""
    body = {"initial_message": message, "workspace": {"working_dir": str(folder)}, **fields}
    made = other.post("/api/conversations", json=body)
    assert made.status_code == 201, made.text
    id = made.json()["id"]
    run(other, id)
    return id


def run(other: httpx2.Client, id: str) -> None:
    answer = other.post(f"/api/conversations/{id}/run", json={"wait": 60})
    assert answer.status_code in (200, 202), answer.text


def say(other: httpx2.Client, id: str, message: str) -> None:
    assert other.post(f"/api/conversations/{id}/events", json={"content": message}).status_code == 200
    run(other, id)


def test_rows_of_a_run_elsewhere_come_live_and_the_list_follows(
    page: Page, site: Site, other: httpx2.Client, tmp_path: Path
) -> None:
    id = start(other, tmp_path, "write notes.txt", title="Runs elsewhere")
    with page.expect_response("**/api/updates"):
        page.goto(site.url)
    row = page.locator(f'tr[data-id="{id}"]')
    expect(row).to_have_attribute("data-status", "done")
    events = row.locator("td.num").first
    before = events.inner_text()
    say(other, id, "again")
    expect(events).not_to_have_text(before)
    with page.expect_response("**/live?**"):
        row.get_by_role("link").first.click()
    say(other, id, "edit notes.txt")
    expect(page.locator("del")).to_have_text("two")
    expect(page.locator("#status")).to_contain_text("Done")
    head = other.get(f"/api/conversations/{id}").json()["head"]
    expect(page.locator(".log [id^=e]")).to_have_count(head)


def test_a_run_elsewhere_is_forked_and_compared_while_it_goes_on(
    page: Page, site: Site, other: httpx2.Client, tmp_path: Path
) -> None:
    id = start(other, tmp_path, "hello", title="Forked here")
    say(other, id, "and again")
    seq = other.get(f"/api/conversations/{id}/turns").json()["items"][1]["start"]
    page.goto(f"{site.url}/c/{id}/fork?at={seq}&edit=1")
    page.locator("[name=message]").fill("something else")
    page.get_by_role("button", name="Fork and run").click()
    page.wait_for_url(lambda url: "/c/" in url and id not in url)
    expect(page.locator("article.step").last).to_contain_text("You said: something else")
    fork = page.url.split("/c/")[1][:36]
    with page.expect_response("**/events/stream?**"):
        page.goto(f"{site.url}/c/{fork}/compare/{id}")
    say(other, id, "a word that comes later")
    expect(page.locator(".pair .you").last).to_contain_text("a word that comes later")


def test_a_call_of_a_run_elsewhere_is_approved_here(
    page: Page, site: Site, other: httpx2.Client, tmp_path: Path
) -> None:
    id = start(other, tmp_path, "write b.txt", confirmation_policy={"kind": "AlwaysConfirm"}, title="Waits")
    page.goto(f"{site.url}/approvals")
    approve = page.get_by_role("button", name="Approve").first
    expect(approve).to_be_enabled()
    approve.click()
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    page.goto(f"{site.url}/c/{id}")
    expect(page.locator("article.step").last).to_contain_text("Finished: write_file.")
    assert (tmp_path / "b.txt").read_text() == "one\ntwo\n"
