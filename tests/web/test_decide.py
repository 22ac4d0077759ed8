"""Decisions: one by one and together, twice, too late, without scripts, on a phone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from bough.server.services import Services

from .conftest import NewPage
from .site import Site, open_site

pytestmark = pytest.mark.needs("chromium")
HTML = {"Accept": "text/html"}
NARROW: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(autouse=True)
def nothing_else_waits(site: Site) -> None:
    for ask in list_asks(site):
        site.client.delete(f"/api/conversations/{ask['conversation']}?mode=tombstone")
    assert list_asks(site) == []


def list_asks(site: Site) -> list[dict[str, Any]]:
    return site.client.get("/api/approvals?limit=100").json()["items"]


def find_ask(site: Site, id: str) -> dict[str, Any]:
    (ask,) = (ask for ask in list_asks(site) if ask["conversation"] == id)
    return ask


def make_key(ask: dict[str, Any]) -> str:
    return f"{ask['conversation']}/{ask['head']}/{ask['tool_call_id']}"


def read_outcomes(site: Site, id: str) -> list[str]:
    headers = {"Accept": "application/vnd.bough.event+json"}
    log = site.client.get(f"/api/conversations/{id}/events/search?limit=500", headers=headers).json()["items"]
    return [event["kind"] for event in log if event["kind"] in ("ToolReturned", "ToolRejected")]


def decide(site: Site, **fields: Any) -> Any:
    return site.client.post("/do/decide", data=fields, headers=HTML, follow_redirects=False)


@pytest.mark.parametrize("scripts", [True, False])
def test_one_call_is_approved_and_one_rejected(new_page: NewPage, site: Site, scripts: bool) -> None:
    approved, rejected = site.start_waiting("write a.txt", title="A"), site.start_waiting("write b.txt", title="B")
    page = new_page(java_script_enabled=scripts)
    page.goto(f"{site.url}/approvals")
    cards = page.locator("article.ask")
    expect(cards).to_have_count(2)
    cards.filter(has_text="a.txt").get_by_role("button", name="Approve", exact=False).first.click()
    expect(cards).to_have_count(1)
    cards.get_by_text("Reject with a reason").click()
    cards.get_by_label("Reason").fill("not this file")
    cards.locator("details").get_by_role("button", name="Reject").click()
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    site.client.post(f"/api/conversations/{approved}/run", json={"wait": 60})
    assert (read_outcomes(site, approved), read_outcomes(site, rejected)) == (["ToolReturned"], ["ToolRejected"])


def test_a_button_works_only_after_its_call_was_seen(page: Page, site: Site) -> None:
    site.start_waiting("write a.txt")
    # The timer of the button is kept until the test calls it.
    page.add_init_script(
        "globalThis.timers = []; const start = setTimeout;"
        "globalThis.setTimeout = (call, delay) => delay === 300 ? timers.push(call) : start(call, delay);"
    )
    page.goto(f"{site.url}/approvals")
    button = page.get_by_role("button", name="Approve").first
    page.wait_for_selector("button[name=approve]:disabled")
    while not page.evaluate("timers.length"):
        continue
    expect(button).to_be_disabled()
    page.evaluate("timers[0]()")
    expect(button).to_be_enabled()


def test_keys_act_on_the_focused_call_alone(page: Page, site: Site) -> None:
    first, second = site.start_waiting("write a.txt", title="A"), site.start_waiting("write b.txt", title="B")
    page.goto(f"{site.url}/approvals")
    expect(page.get_by_role("button", name="Approve").first).to_be_enabled()
    page.keyboard.press("a")
    assert len(list_asks(site)) == 2, "no call is focused"
    page.locator("article.ask").filter(has_text="b.txt").focus()
    page.keyboard.press("e")
    expect(page.locator("textarea:focus")).to_have_count(1)
    page.keyboard.press("r")
    assert len(list_asks(site)) == 2, "a letter in a field is text"
    page.locator("article.ask").filter(has_text="b.txt").focus()
    page.keyboard.press("r")
    expect(page.locator("article.ask")).to_have_count(1)
    assert [ask["conversation"] for ask in list_asks(site)] == [first]
    assert read_outcomes(site, second) == ["ToolRejected"]


def test_several_calls_are_ticked_and_decided_together(page: Page, site: Site) -> None:
    for name in ("a", "b", "c"):
        site.start_waiting(f"write {name}.txt", title=name)
    page.goto(f"{site.url}/approvals")
    bulk = page.get_by_role("group", name="Selected calls")
    expect(bulk).to_be_hidden()
    for place in (0, 1):
        page.get_by_role("checkbox").nth(place).check()
    bulk.get_by_role("button", name="Reject").click()
    expect(page.locator("article.ask")).to_have_count(1)
    expect(page.get_by_text("2 calls decided.")).to_be_visible()


def test_edited_arguments_are_those_that_run(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    ask = find_ask(site, id)
    field = f"arguments:{ask['tool_call_id']}"
    for wrong in ("{", "[]"):
        refused = decide(site, edit=make_key(ask), **{field: wrong})
        assert refused.status_code == 409
        assert "JSON" in refused.text
    edited = json.dumps({"path": "b.txt", "content": "other"})
    assert decide(site, edit=make_key(ask), **{field: edited}).status_code == 303
    site.client.post(f"/api/conversations/{id}/run", json={"wait": 60})
    text = site.client.get(f"/api/conversations/{id}/events/search").text
    assert "b.txt" in text


def test_a_form_sent_twice_is_one_decision(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    key = make_key(find_ask(site, id))
    assert [decide(site, reject=key).status_code for _ in range(2)] == [303, 303]
    assert read_outcomes(site, id) == ["ToolRejected"]


def test_a_call_that_was_decided_in_another_tab_says_by_whom(new_page: NewPage, site: Site) -> None:
    id = site.start_waiting("write a.txt", title="Twice")
    pages = [new_page(quiet=False) for _ in range(2)]
    for page in pages:
        page.goto(f"{site.url}/approvals")
        expect(page.get_by_role("button", name="Approve").first).to_be_enabled()
    pages[0].get_by_role("button", name="Reject").last.click()
    expect(pages[0].get_by_text("Nothing waits for you.")).to_be_visible()
    pages[1].get_by_role("button", name="Approve").first.click()
    expect(pages[1].get_by_role("alert").first).to_contain_text("Rejected by local, just now.")
    assert read_outcomes(site, id) == ["ToolRejected"]


def test_of_two_decisions_at_once_one_is_recorded(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    key = make_key(find_ask(site, id))
    with ThreadPoolExecutor(2) as tabs:
        sent = [tabs.submit(decide, site, **{word: key}) for word in ("approve", "reject")]
        answers = [answer.result() for answer in sent]
    assert sorted(answer.status_code for answer in answers) == [303, 409]
    (refused,) = (answer.text for answer in answers if answer.status_code == 409)
    assert 'id="outcomes"' in refused
    assert list_asks(site) == []


def test_a_conversation_that_moved_on_is_shown_again(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    ask = find_ask(site, id)
    site.client.patch(f"/api/conversations/{id}", json={"title": "Another title"})
    stale = decide(site, approve=make_key(ask))
    assert stale.status_code == 409
    assert "The conversation moved on" in stale.text
    assert f'value="{make_key(find_ask(site, id))}"' in stale.text, "the form has the new head"
    assert read_outcomes(site, id) == []


def test_a_deleted_conversation_and_calls_of_nobody_are_told(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    key = make_key(find_ask(site, id))
    site.client.delete(f"/api/conversations/{id}")
    gone = decide(site, approve=key)
    assert "was deleted, or was never here" in gone.text
    for fields in ({"approve": "x"}, {"approve": f"{id}/x/c"}, {"all": "approve"}, {}):
        assert decide(site, **fields).status_code == 422, fields
    assert site.client.get(f"/approvals/{id}/c1", headers=HTML).status_code == 404


def test_a_call_is_reviewed_on_a_phone(new_page: NewPage, site: Site) -> None:
    command = "run echo " + "very-long-" * 40
    id = site.start_waiting(command, title="Phone")
    site.start_waiting("edit a.txt", title="Other")
    page = new_page(**NARROW)
    page.goto(f"{site.url}/approvals/{id}/{find_ask(site, id)['tool_call_id']}")
    expect(page.locator("pre")).to_contain_text("very-long-" * 40)
    expect(page.get_by_text("of 2")).to_be_visible()
    approve = page.get_by_role("button", name="Approve", exact=False).last
    box = approve.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] > 844 - 100, "within a thumb's reach"
    assert box["height"] >= 44
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Reject").last.click()
    expect(page.locator("article.ask")).to_have_count(1)


def test_a_call_that_was_decided_is_told_at_its_own_address(site: Site) -> None:
    id = site.start_waiting("write a.txt")
    ask = find_ask(site, id)
    decide(site, reject=make_key(ask))
    text = site.client.get(f"/approvals/{id}/{ask['tool_call_id']}", headers=HTML).text
    assert "Rejected by local, just now." in text


async def forget_keys(services: Services) -> None:
    services.keys.forget()


def test_a_session_that_has_ended_decides_nothing(new_page: NewPage, folder: Path) -> None:
    with open_site(folder) as site:
        site.start_waiting("write a.txt")
        key = site.call(lambda services: services.keys.table.create("phone")).text
        site.call(forget_keys)
        page = new_page(quiet=False)
        page.goto(f"{site.url}/approvals")
        page.get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        button = page.get_by_role("button", name="Approve").first
        expect(button).to_be_enabled()
        page.context.clear_cookies()
        button.click()
        expect(page.get_by_role("heading", name="Sign in to bough")).to_be_visible()
        page.get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        page.wait_for_url("**/approvals")  # the call is shown again before anything is decided
        expect(button).to_be_enabled()
        page.get_by_role("button", name="Reject").last.click()
        expect(page.get_by_text("Nothing waits for you.")).to_be_visible()


def test_calls_of_another_tenant_are_neither_shown_nor_decided(folder: Path) -> None:
    with open_site(folder) as site:
        id = site.start_waiting("write a.txt", title="Only mine")
        ask = find_ask(site, id)
        texts = [
            site.call(lambda services, tenant=tenant: services.keys.table.create("k", tenant=tenant, role="admin")).text
            for tenant in ("red", "local")
        ]
        site.call(forget_keys)
        with site.running.client() as stranger, site.running.client() as owner:
            for client, text in zip((stranger, owner), texts, strict=True):
                assert client.post("/auth/session", json={"key": text}).status_code == 201
            assert "Only mine" in owner.get("/approvals", headers=HTML).text
            assert "Only mine" not in stranger.get("/approvals", headers=HTML).text
            for path in (f"/approvals/{id}/{ask['tool_call_id']}", f"/c/{id}/tree", f"/c/{id}/fork"):
                assert stranger.get(path, headers=HTML).status_code == 404, path
            token = stranger.get("/approvals", headers=HTML).text.split('name="csrf" content="')[1].split('"')[0]
            fields = {"csrf_token": token}
            headers = {**HTML, "Sec-Fetch-Site": "same-origin"}
            refused = stranger.post("/do/decide", data={"approve": make_key(ask), **fields}, headers=headers)
            assert "was deleted, or was never here" in refused.text
            forked = stranger.post("/do/fork", data={"id": id, "at": "1", **fields}, headers=headers)
            assert forked.status_code == 404
            for verb in ("continue", "limits", "restore", "redo"):
                assert stranger.post(f"/do/{verb}", data={"id": id, **fields}, headers=headers).status_code == 404, verb
            assert site.call(lambda services: services.store.get(UUID(id))).status == "waiting_for_confirmation"


def test_decisions_of_lately_name_the_call_and_who_decided(page: Page, site: Site) -> None:
    decided = []
    for decision in ("approve", "reject"):
        id = site.start_waiting(f"run printf {decision}")
        (ask,) = site.client.get(f"/api/approvals?conversation={id}").json()["items"]
        answer = site.client.post(
            f"/api/conversations/{id}/approvals/{ask['tool_call_id']}", json={"decision": decision, "run": False}
        )
        assert answer.status_code == 200, answer.text
        decided.append(id)
    site.run(decided[0])
    fork = site.fork(decided[0])
    page.goto(f"{site.url}/approvals")
    past = page.locator(".past li")
    expect(past.first).to_contain_text("run_command")
    expect(past.first).to_contain_text("rejected by")
    expect(past.filter(has_text="printf approve")).to_contain_text("approved by")
    assert past.filter(has_text="printf approve").count() == 1, fork
