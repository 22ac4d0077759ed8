"""The form of a fork: what it tells before, what it makes, what it refuses; with and without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import NewPage
from .site import Site, open_site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}


def list_messages(site: Site, id: str) -> list[int]:
    """Return the seqs of the messages that began the turns."""
    return [turn["start"] for turn in site.client.get(f"/api/conversations/{id}/turns").json()["items"]]


def read_log(site: Site, id: str) -> list[dict[str, Any]]:
    headers = {"Accept": "application/vnd.bough.event+json"}
    return site.client.get(f"/api/conversations/{id}/events/search?limit=500", headers=headers).json()["items"]


def start_two_turns(site: Site, **fields: Any) -> tuple[str, int]:
    """Return a finished conversation of two turns, and the seq of its second message."""
    id = site.start("hello", title="Two turns", **fields)
    site.say(id, "and again")
    return id, list_messages(site, id)[1]


@pytest.mark.parametrize("scripts", [True, False])
def test_a_message_is_edited_and_run_in_a_fork(new_page: NewPage, site: Site, scripts: bool) -> None:
    id, seq = start_two_turns(site)
    before = read_log(site, id)
    page = new_page(java_script_enabled=scripts, quiet=False)
    page.goto(f"{site.url}/c/{id}/fork?at={seq}&edit=1")
    expect(page.get_by_role("heading", name="Edit and run from here")).to_be_visible()
    message = page.locator("[name=message]")
    expect(message).to_have_value("and again")
    expect(page.locator("#inherits")).to_contain_text(f"{seq} of {len(before)}")
    message.fill("something else")
    page.get_by_role("button", name="Fork and run").click()
    page.wait_for_url(lambda url: "/fork" not in url)
    fork = page.url.split("/c/")[1][:36]
    assert fork != id
    site.client.post(f"/api/conversations/{fork}/run", json={"wait": 60})
    info = site.client.get(f"/api/conversations/{fork}").json()
    assert (info["lineage"]["at"], info["title"]) == (seq, "Two turns (2)")
    said = [event["content"][0]["text"] for event in read_log(site, fork) if event["kind"] == "UserMessage"]
    assert said == ["hello", "something else"]
    assert read_log(site, id) == before, "the source is unchanged"


def post(site: Site, id: str, **fields: str) -> Any:
    """Send the form of a fork as a browser does; return the response, not followed."""
    form = {"id": id, "fork_id": "", "files": "shared", "pending": "close", "title": "", **fields}
    form["fork_id"] = (
        form["fork_id"]
        or site.client.get(f"/c/{id}/fork", headers=HTML).text.split('name="fork_id" value="')[1].split('"')[0]
    )
    return site.client.post("/do/fork", data=form, headers=HTML, follow_redirects=False)


def test_a_form_that_is_sent_twice_makes_one_fork(site: Site) -> None:
    id, seq = start_two_turns(site)
    fork_id = "0199c0de-0000-7000-8000-00000000f00d"
    answers = [post(site, id, at=str(seq), cut="after", fork_id=fork_id) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert {answer.headers["location"] for answer in answers} == {f"/c/{fork_id}"}
    beside = post(site, id, at=str(seq), cut="after", beside="1").headers["location"]
    assert beside.startswith(f"/c/{id}/compare/")


def test_choices_become_those_of_the_fork(site: Site) -> None:
    id, seq = start_two_turns(site)
    fields = {"title": "Stricter", "policy": "always", "usd": "$0.25", "files": "readonly"}
    made = post(site, id, at=str(seq), cut="before", **fields)
    assert made.status_code == 303, made.text
    info = site.client.get(f"/api/conversations{made.headers['location'][2:]}").json()
    assert (info["title"], info["workspace_policy"], info["lineage"]["at"]) == ("Stricter", "readonly", seq)
    assert (info["confirmation_policy"], info["limits"]["cost_usd"]) == ({"kind": "AlwaysConfirm"}, 0.25)


def test_a_refused_form_marks_its_field_and_keeps_what_was_typed(site: Site) -> None:
    id, seq = start_two_turns(site)
    rows = site.client.get("/api/conversations/count").json()
    wrong: list[tuple[dict[str, str], int, str]] = [
        ({"usd": "much"}, 422, 'name="usd" value="much"'),
        ({"title": "x" * 201}, 422, "title-error"),
        ({"agent": "nobody"}, 422, "no agent has that name"),
        ({"files": "worktree"}, 422, "not in a git repository"),
        ({"fork_id": "x"}, 422, "Fork"),
    ]
    for fields, status, text in wrong:
        answer = post(site, id, **{"at": str(seq), "cut": "before", "message": "typed <b>", **fields})
        assert answer.status_code == status, (fields.keys(), answer.text[-2000:])
        assert text in answer.text, fields.keys()
        assert "message" in fields or "typed &lt;b&gt;" in answer.text
    assert site.client.get("/api/conversations/count").json() == rows, "nothing was made"
    assert post(site, "0199c0de-0000-7000-8000-000000000404", fork_id=id, at="0", cut="before").status_code == 404


def test_a_refused_message_leaves_no_fork(folder: Path) -> None:
    with open_site(folder, server={"message_bytes": 1024}) as site:
        id = site.start("hello")
        answer = post(site, id, at="2", cut="after", message="long " * 300)
        assert answer.status_code == 413
        assert "longer than 1024 bytes" in answer.text
        assert site.client.get("/api/conversations/count").json() == 1


def test_what_a_worktree_would_be_refused_for_is_told_before(page: Page, site: Site) -> None:
    id, seq = start_two_turns(site)
    page.goto(f"{site.url}/c/{id}/fork?at={seq}")
    page.get_by_label("New worktree").check()
    expect(page.locator("#inherits")).to_contain_text("not in a git repository")
    page.get_by_label("Same folder").check()
    expect(page.locator("#inherits")).not_to_contain_text("not in a git repository")
    page.locator("[name=cut]").select_option("before")
    expect(page.locator("#inherits")).to_contain_text(f"{seq} of")


def test_the_form_opens_over_a_screen_and_gives_the_focus_back(page: Page, site: Site) -> None:
    id, _ = start_two_turns(site)
    page.goto(f"{site.url}/c/{id}/tree")
    link = page.get_by_role("link", name="Fork", exact=True)
    link.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(link).to_be_focused()
    assert page.url.endswith("/tree")


def test_a_waiting_call_can_be_carried_into_the_fork(site: Site) -> None:
    id = site.start_waiting("run true")
    text = site.client.get(f"/c/{id}/fork", headers=HTML).text
    assert "run_command (closed)" in text
    assert "Keep them, and ask again" in text
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    made = post(site, id, at=str(head - 1), cut="after", pending="carry")
    info = site.client.get(f"/api/conversations{made.headers['location'][2:]}").json()
    assert info["execution_status"] == "waiting_for_confirmation"
