"""`GET /api/conversations/search?q=`: messages of a tenant's conversations, and the same through the library."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from bough import Conversation
from bough.errors import InvalidInput
from bough.events import open_store
from bough.events.model import UserMessage
from bough.events.record import ConversationFilter, ConversationRecord
from bough.settings import Settings
from bough.types import new_id

PATH = "/api/conversations/search"


def said(client: httpx2.Client, message: str, **body: Any) -> str:
    answer = client.post("/api/conversations", json={"initial_message": message, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def snippets(client: httpx2.Client, **query: Any) -> list[str]:
    answer = client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return [hit["snippet"] for hit in answer.json()["items"]]


def test_messages_are_found_a_page_at_a_time(serving: Any) -> None:
    with serving() as server, server.client() as client:
        first = said(client, "the word is one", title="First", tags={"team": "red"})
        said(client, "the word is two")
        hit = client.get(PATH, params={"q": "word one"}).json()["items"][0]
        assert len(hit.pop("when")) == 27
        assert hit == {
            "conversation": first, "title": "First", "seq": 1, "who": "user",
            "snippet": "the word is one", "matches": [[4, 8], [12, 15]],
        }  # fmt: skip
        page = client.get(PATH, params={"q": "word", "limit": 1}).json()
        rest = client.get(PATH, params={"q": "word", "limit": 1, "page_id": page["next_page_id"]}).json()
        assert [hit["snippet"] for hit in (*page["items"], *rest["items"])] == ["the word is two", "the word is one"]
        assert rest["next_page_id"] is None
        assert snippets(client, q="word", tag="team:red") == ["the word is one"]
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert snippets(client, q="word", since=tomorrow.isoformat()) == []
        assert len(client.get(PATH).json()["items"]) == 2  # without q, conversations as ever


def test_a_tenant_finds_its_own_messages_only(serving: Any, new_key: Any) -> None:
    keys = [new_key(name, tenant=name).text for name in ("red", "blue")]
    with serving() as server, server.client(keys[0]) as red, server.client(keys[1]) as blue:
        said(red, "the word of red")
        assert snippets(blue, q="word") == []
        said(blue, "the word of blue")
        assert (snippets(red, q="word"), snippets(blue, q="word")) == (["the word of red"], ["the word of blue"])
        assert snippets(blue, q="red") == []
        assert blue.get(PATH, params={"q": "@"}).status_code == 422, "it has no words"


@pytest.mark.parametrize(
    "query",
    [
        {"q": ""}, {"q": "-draft"}, {"q": "word " * 200}, {"q": "x" * 2001}, {"since": "2026-01-01T00:00:00Z"},
        {"q": "word", "status": "idle"}, {"q": "word", "sort_order": "CREATED_AT"}, {"q": "word", "full": "true"},
        {"q": "word", "limit": 0}, {"q": "word", "page_id": "%%"}, {"q": "word", "since": "soon"},
        {"q": "word", "tag": "x"},
    ],
)  # fmt: skip
def test_a_bad_query_is_a_problem(one_server: tuple[httpx2.Client, str], query: dict[str, Any]) -> None:
    answer = one_server[0].get(PATH, params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")


def test_the_document_names_the_query_and_the_hit(one_server: tuple[httpx2.Client, str]) -> None:
    document = one_server[0].get("/openapi.json").json()
    operation = document["paths"][PATH]["get"]
    assert {"q", "since"} <= {parameter["name"] for parameter in operation["parameters"]}
    assert "MessageHit" in document["components"]["schemas"]


def test_the_library_searches_a_server(serving: Any, new_key: Any) -> None:
    key = new_key(tenant="red").text
    with serving() as server, server.client(key) as client:
        cid = said(client, "the word is one", title="First", tags={"team": "red"})
        said(client, "the word is two")
        remote: Any = {"server": server.url, "api_key": key}
        (hit,) = Conversation.search(
            "word", tags={"team": "red"}, since=datetime(2026, 1, 1, tzinfo=UTC), **remote
        ).items
        assert (str(hit.conversation), hit.title, hit.seq, hit.matches) == (cid, "First", 1, ((4, 8),))
        assert hit.when.tzinfo is not None
        page = Conversation.search("word", limit=1, **remote)
        assert Conversation.search("word", limit=1, cursor=page.next_cursor, **remote).items == [hit]
        with pytest.raises(InvalidInput, match="no word"):
            Conversation.search("-x", **remote)


async def write_projects(settings: Settings) -> None:
    """Write a conversation of each project of each tenant."""
    async with aclosing(await open_store(settings.store)) as store:
        for tenant in ("red", "blue"):
            for project in ("shop", "office"):
                id = new_id()
                now = datetime.now(UTC)
                record = ConversationRecord(id=id, root=id, title=project, project=project, created=now, updated=now)
                record = replace(record, config={"workspace": str(settings.home)})
                text = f"the word of {tenant} in the {project}"
                source = await store.create(record, events=[UserMessage.text(text)], owner=tenant)
                await store.fork(source.id, title=f"fork {project}", owner=tenant)


def test_a_project_narrows_lists_and_searches(serving: Any, new_key: Any, settings: Settings) -> None:
    asyncio.run(write_projects(settings))
    key = new_key(tenant="red", role="admin").text
    shop = ConversationFilter(project="shop")
    with serving() as server, server.client(key) as client:
        there: Any = {"server": server.url, "api_key": key}
        assert client.get("/api/conversations/count", params={"project": "shop"}).json() == 2
        assert client.get(PATH, params={"project": "none"}).json()["items"] == []
        assert [record.title for record in Conversation.list(filter=shop, **there).items] == ["fork shop", "shop"]
        assert snippets(client, q="word", project="shop") == ["the word of red in the shop"]
        hits = Conversation.search("word", project="office", **there).items
        assert [hit.snippet for hit in hits] == ["the word of red in the office"]
