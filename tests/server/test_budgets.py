"""Budgets over HTTP: created, spent, used up, raised; each tenant has its own; conversations by cost."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx2
import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput, NotSupported
from bough.events.record import ConversationFilter
from bough.guard import Budget


def converse(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    """Create a conversation, run it, and return what the run answers, with its id."""
    created = client.post("/api/conversations", json={"initial_message": "hi", **body})
    assert created.status_code == 201, created.text
    id = created.json()["id"]
    return client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json() | {"id": id}


def read_limit(client: httpx2.Client, id: str) -> str:
    events = client.get(
        f"/api/conversations/{id}/events/search", headers={"Accept": "application/vnd.bough.event+json"}
    )
    return next(event["limit"] for event in events.json()["items"] if event["kind"] == "LimitReached")


def test_a_budget_is_created_spent_used_up_and_raised(serving: Any) -> None:
    with serving("one", "two", "three") as server, server.client() as client:
        bounds = {"id": "june", "requests": 1, "tokens": 10**9}
        created = client.post("/api/budgets", json=bounds)
        assert (created.status_code, created.json()["members"]) == (201, [])
        assert client.post("/api/budgets", json=bounds).status_code == 200
        assert client.post("/api/budgets", json={"id": "june", "requests": 2}).status_code == 409
        first = converse(client, budget="june")
        assert first["output"] == "one"
        second = converse(client, budget={"id": "june"})
        assert (second["status"], read_limit(client, second["id"])) == ("paused", "budget.june.requests")
        budget = client.get("/api/budgets/june").json()
        assert (budget["spent"]["requests"], budget["remaining"]["requests"], budget["remaining"]["usd"]) == (
            1,
            0,
            None,
        )
        assert first["id"] in {member["conversation"] for member in budget["members"]}
        raised = client.patch("/api/budgets/june", json={"requests": 5}).json()
        assert raised["bounds"] == {"usd": None, "tokens": 10**9, "requests": 5}
        assert client.post(f"/api/conversations/{second['id']}/run", json={"wait": 60}).json()["output"] == "two"
        client.post("/api/budgets", json={"id": "july", "requests": 1})
        page = client.get("/api/budgets?limit=1").json()
        assert ([item["id"] for item in page["items"]], page["next_page_id"]) == (["july"], "july")
        page = client.get("/api/budgets?limit=1&page_id=july").json()
        assert ([item["id"] for item in page["items"]], page["next_page_id"]) == (["june"], None)


def test_a_run_and_a_task_join_a_budget(serving: Any) -> None:
    with serving("one", "two", "three") as server, server.client() as client:
        id = converse(client)["id"]
        joined = {"wait": 60, "budget": {"id": "june", "requests": 1}}
        client.post(f"/api/conversations/{id}/events", json={"content": "go", "run": False})
        answer = client.post(f"/api/conversations/{id}/run", json=joined)
        assert (answer.status_code, answer.json()["output"]) == (200, "two")
        client.post(f"/api/conversations/{id}/events", json={"content": "go", "run": False})
        again = client.post(f"/api/conversations/{id}/run", json={"wait": 60}).json()
        assert (again["status"], read_limit(client, id)) == ("paused", "budget.june.requests")
        assert client.patch("/api/budgets/june", json={"requests": 2}).status_code == 200
        task = client.post("/api/tasks", json={"input": "go", "budget": "june"})
        assert task.status_code == 201, task.text
        while (state := client.get(f"/api/tasks/{task.json()['id']}").json())["state"] in ("pending", "running"):
            pass
        budget = client.get("/api/budgets/june").json()
        assert (state["state"], budget["spent"]["requests"], len(budget["members"])) == ("completed", 2, 2)
        assert client.post(f"/api/conversations/{id}/run", json={"budget": "none"}).status_code == 404


def test_a_fork_spends_from_a_budget_of_its_own_too(serving: Any, new_key: Any) -> None:
    """The source does not; the same request returns the same fork; another tenant's budget does not exist."""
    red, blue = new_key(tenant="red"), new_key(tenant="blue")
    with (
        serving("one", "two", "three") as server,
        server.client(red.text) as client,
        server.client(blue.text) as other,
    ):
        id = converse(client)["id"]
        other.post("/api/budgets", json={"id": "blue", "requests": 9})
        body = {"id": str(uuid4()), "overrides": {"budget": {"id": "june", "requests": 1}}}
        preview = client.post(f"/api/conversations/{id}/fork?dry_run=true", json=body)
        assert (preview.status_code, client.get("/api/budgets/june").status_code) == (200, 404), "nothing is created"
        made = client.post(f"/api/conversations/{id}/fork", json=body)
        assert made.status_code == 201, made.text
        assert client.post(f"/api/conversations/{id}/fork", json=body).status_code == 200
        assert client.get("/api/budgets/june").json()["bounds"]["requests"] == 1
        for conversation, statuses in ((body["id"], ["finished", "paused"]), (id, ["finished"])):
            for status in statuses:
                client.post(f"/api/conversations/{conversation}/events", json={"content": "go", "run": False})
                run = client.post(f"/api/conversations/{conversation}/run", json={"wait": 60}).json()
                assert run["status"] == status
        assert read_limit(client, body["id"]) == "budget.red/june.requests"
        for wrong, status in (("blue", 404), ("red/june", 422), ({"id": "june", "requests": 2}, 409)):
            for query in ("", "?dry_run=true"):
                refused = client.post(f"/api/conversations/{id}/fork{query}", json={"overrides": {"budget": wrong}})
                assert (refused.status_code, bool(refused.json()["code"])) == (status, True), wrong


def test_tenants_have_their_own_budgets(serving: Any, new_key: Any) -> None:
    red, blue, local = new_key(tenant="red"), new_key(tenant="blue"), new_key(role="admin")
    with (
        serving("one", "two", "three") as server,
        server.client(red.text) as ours,
        server.client(blue.text) as theirs,
        server.client(local.text) as operator,
    ):
        assert ours.post("/api/budgets", json={"id": "june", "requests": 1}).status_code == 201
        for client in (theirs, operator):
            assert client.get("/api/budgets").json()["items"] == []
            assert client.get("/api/budgets/june").status_code == 404
            assert client.patch("/api/budgets/june", json={"requests": 9}).status_code == 404
            for body in ({"budget": "june"}, {"budget": {"id": "june"}}):
                assert client.post("/api/conversations", json=body).status_code == 404
            for id in ("red/june", "../red/june", "red%2Fjune"):
                assert client.post("/api/conversations", json={"budget": id}).status_code == 422
                assert client.get(f"/api/budgets/{id}").status_code in (404, 405, 422)
        assert theirs.post("/api/budgets", json={"id": "june", "tokens": 10**9}).status_code == 201
        assert converse(ours, budget="june")["output"] == "one"
        assert converse(ours, budget="june")["status"] == "paused"
        assert converse(theirs, budget="june")["output"] == "two"
        assert [item["id"] for item in ours.get("/api/budgets").json()["items"]] == ["june"]
        assert ours.get("/api/budgets/june").json()["spent"]["requests"] == 1


def test_what_a_key_may_do_with_budgets(serving: Any, new_key: Any) -> None:
    reader = new_key(role="read")
    writer = new_key(role="write", scopes=frozenset({"conversations", "tasks"}))
    with serving("one") as server, server.client(reader.text) as reads, server.client(writer.text) as writes:
        assert reads.post("/api/budgets", json={"id": "june", "requests": 5}).status_code == 403
        assert writes.post("/api/budgets", json={"id": "june", "requests": 5}).status_code == 201
        assert reads.get("/api/budgets/june").json()["bounds"]["requests"] == 5
        assert reads.patch("/api/budgets/june", json={"requests": 1}).status_code == 403
        assert writes.patch("/api/budgets/june", json={"requests": 6}).status_code == 403, "raising needs approve"
        assert writes.patch("/api/budgets/june", json={"requests": 4, "usd": 1}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"id": "june"},
        {"id": "june", "usd": 0},
        {"id": "june", "usd": -1},
        {"id": "june", "requests": 0.5},
        {"id": "june", "requests": True},
        {"id": "june", "tokens": 10**30},
        {"id": "a b", "requests": 1},
        {"id": "a/b", "requests": 1},
        {"id": "", "requests": 1},
        {"id": "x" * 101, "requests": 1},
        {"id": "june", "cents": 1},
        {"requests": 1},
    ],
)
def test_a_wrong_budget_is_refused(one_server: tuple[httpx2.Client, str], body: dict[str, Any]) -> None:
    client, _ = one_server
    assert client.post("/api/budgets", json=body).status_code == 422
    assert client.get("/api/budgets").json()["items"] == []


def test_the_list_is_ordered_and_filtered_by_cost(one_server: tuple[httpx2.Client, str]) -> None:
    client, id = one_server
    for order in ("COST", "COST_DESC"):
        page = client.get(f"/api/conversations/search?sort_order={order}&min_cost_usd=0").json()
        assert [item["id"] for item in page["items"]] == [id]
    assert page["items"][0]["usage"] == {"requests": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    assert client.get("/api/conversations/count?min_cost_usd=0.01").json() == 0
    for bad in ("nan", "inf", "-1", "x"):
        assert client.get(f"/api/conversations/search?min_cost_usd={bad}").status_code == 422


@pytest.mark.anyio
async def test_a_remote_conversation_and_its_fork_spend_budgets(serving: Any) -> None:
    with serving("one", "two") as server:
        spec = AgentSpec(name="default")
        june, july = Budget(id="june", requests=9), Budget(id="july", requests=1)
        made = await AsyncConversation.create(spec, server=server.url, budget=june)
        async with made, await made.fork(overrides={"budget": july}) as fork:
            for conversation in (made, fork):
                await conversation.send_message("go")
                await conversation.run()
        with server.client() as client:
            spent = {id: client.get(f"/api/budgets/{id}").json()["spent"]["requests"] for id in ("june", "july")}
        assert spent == {"june": 2, "july": 1}, "a fork spends from the budgets of its source too"
        with pytest.raises(NotSupported, match="more than one budget"):
            await AsyncConversation.create(spec, server=server.url, budget=[june, july])


@pytest.mark.anyio
async def test_a_remote_list_is_ordered_and_filtered_by_cost(serving: Any) -> None:
    with serving("one") as server:
        with server.client() as client:
            id = converse(client)["id"]
        page = await AsyncConversation.list(server=server.url, order="cost_desc")
        assert [(str(record.id), record.usage.requests) for record in page.items] == [(id, 1)]
        costly = ConversationFilter(min_cost_usd=1)
        assert (await AsyncConversation.list(server=server.url, order="cost", filter=costly)).items == []
        with pytest.raises(InvalidInput, match="no order"):
            await AsyncConversation.list(server=server.url, order="price")  # pyright: ignore[reportArgumentType]
        with pytest.raises(NotSupported):
            await AsyncConversation.list(server=server.url, filter=ConversationFilter(owner="x"))
