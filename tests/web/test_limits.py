"""A limit that ended a run is raised on a page of its own, and the run continues."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .conftest import NewPage
from .site import Site

HTML = {"Accept": "text/html"}


def read_limits(site: Site, id: str) -> dict[str, object]:
    return site.client.get(f"/api/conversations/{id}").json()["limits"]


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("scripts", [True, False])
def test_a_limit_is_raised_and_the_run_continues(new_page: NewPage, site: Site, scripts: bool) -> None:
    id = site.start("write notes.txt", limits={"steps": 1, "total_tokens": 5000, "depth": 2})
    page = new_page(quiet=False, java_script_enabled=scripts)
    page.goto(f"{site.url}/c/{id}")
    expect(page.locator("article.line").filter(has_text="Limit reached")).to_contain_text("1 of 1 steps")
    page.get_by_role("link", name="Raise limit").click()
    steps = page.get_by_label("Steps")
    expect(steps).to_have_value("1")
    steps.fill("many")
    page.get_by_role("button", name="Save and continue").click()
    expect(page.get_by_role("alert").first).to_contain_text("steps")
    steps.fill("9")
    page.get_by_role("button", name="Save and continue").click()
    watcher = new_page()
    watcher.goto(f"{site.url}/c/{id}")
    expect(watcher.locator("article.step").last).to_contain_text("Finished: write_file.")
    assert read_limits(site, id) == {"per": "run", "steps": 9, "total_tokens": 5000, "depth": 2, "tasks": 100}


def test_an_empty_field_is_no_limit_and_saving_starts_nothing(site: Site) -> None:
    id = site.start(limits={"steps": 3, "wall_seconds": 50})
    answer = site.client.post("/do/limits", data={"id": id, "steps": "", "wall_seconds": "2.5"}, headers=HTML)
    assert answer.status_code == 303
    limits = read_limits(site, id)
    assert "steps" not in limits
    assert limits["wall_seconds"] == 2.5
    assert site.client.get(f"/api/conversations/{id}").json()["execution_status"] == "idle"
