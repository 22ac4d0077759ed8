"""`AsyncConversation.search`: what people and models said, in all conversations of a store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bough import AgentSpec, AsyncConversation, Conversation, SearchPage, Secrets
from bough.errors import InvalidInput, NotSupported
from bough.events.model import StateChanged, UserMessage
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

Scripted = Callable[..., AgentSpec]


def look() -> str:
    """Look around."""
    return "a hippopotamus"


async def talk(spec: AgentSpec, message: str, store: EventStore, settings: Settings, path: Path, **given: Any) -> Any:
    async with await AsyncConversation.create(spec, store=store, settings=settings, workspace=path, **given) as opened:
        await opened.send_message(message)
        await opened.run()
        return opened.id


async def test_what_was_said_and_answered_is_found(
    store: EventStore, settings: Settings, scripted: Scripted, tmp_path: Path
) -> None:
    spec = scripted(tool_call("look"), "There is a large animal.", tools=(look,))
    cid = await talk(spec, "What animal is there?", store, settings, tmp_path, title="Zoo", tags={"team": "red"})
    page = await AsyncConversation.search("ANIMAL", store=store, settings=settings)
    assert [(hit.conversation, hit.title, hit.who) for hit in page.items] == [
        (cid, "Zoo", "assistant"),
        (cid, "Zoo", "user"),
    ]
    assert page.items[1].snippet == "What animal is there?"
    assert await AsyncConversation.search("hippopotamus", store=store) == SearchPage(items=[])
    assert (await AsyncConversation.search("animal", store=store, tags={"team": "blue"})).items == []
    week = timedelta(days=7)
    assert len((await AsyncConversation.search("animal", store=store, since=datetime.now(UTC) - week)).items) == 2
    assert (await AsyncConversation.search("animal", store=store, since=datetime.now(UTC) + week)).items == []
    first = await AsyncConversation.search("animal", store=store, limit=1)
    second = await AsyncConversation.search("animal", store=store, limit=1, cursor=first.next_cursor)
    assert [*first.items, *second.items] == page.items


async def test_a_masked_secret_is_not_found(
    store: EventStore, settings: Settings, scripted: Scripted, tmp_path: Path
) -> None:
    secrets = Secrets({"TOKEN": lambda: "swordfish-1234"})
    await talk(scripted("ok"), "The token is swordfish-1234.", store, settings, tmp_path, secrets=secrets)
    assert (await AsyncConversation.search("swordfish", store=store)).items == []
    (hit,) = (await AsyncConversation.search("token", store=store)).items
    assert "swordfish" not in hit.snippet


async def test_a_store_of_the_settings_or_by_its_url_is_searched(settings: Settings, scripted: Scripted) -> None:
    settings.home.mkdir()
    async with await AsyncConversation.create(scripted("ok"), settings=settings, workspace=settings.home) as opened:
        await opened.send_message("hello there")
    assert len((await AsyncConversation.search("hello", settings=settings)).items) == 1
    assert len((await AsyncConversation.search("hello", store=settings.store)).items) == 1


def test_without_await(tmp_path: Path, scripted: Scripted) -> None:
    store = f"sqlite:///{tmp_path / 'log.db'}"
    with Conversation(scripted("ok"), store=store, workspace=tmp_path) as opened:
        opened.send_message("hello there")
        assert [hit.conversation for hit in Conversation.search("hello", store=store).items] == [opened.id]


@pytest.mark.parametrize(
    "given",
    [
        {"text": 5}, {"text": None}, {"tags": ["a"]}, {"tags": "a"}, {"since": "yesterday"}, {"since": 5},
        {"since": datetime(2026, 1, 1)}, {"limit": "5"}, {"limit": 1000}, {"limit": -1}, {"cursor": 5}, {"project": 5},  # noqa: DTZ001
        {"limit": True}, {"tags": {"a": 1}}, {"tags": {1: "a"}},
    ],
)  # fmt: skip
async def test_a_bad_argument_is_refused_with_a_hint(store: EventStore, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        await AsyncConversation.search(**{"text": "word", "store": store, **given})
    assert refused.value.hint


async def test_what_a_server_cannot_take_is_refused_before_it_is_asked() -> None:
    with pytest.raises(NotSupported):
        await AsyncConversation.search("word", server="http://127.0.0.1:1", store="memory:")


async def test_messages_from_the_far_future_are_found(store: EventStore, settings: Settings) -> None:
    """As a log that was imported may have them: none may keep others from being indexed."""
    moment = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    for text in ("late one", "late two", "late three"):
        await store.create(events=[UserMessage.text(text).model_copy(update={"ts": moment})])
        assert (await AsyncConversation.search("late", store=store, settings=settings)).items
    await store.create(events=[UserMessage.text("late now")])
    assert len((await AsyncConversation.search("late", store=store, settings=settings)).items) == 4


async def test_a_rare_tag_is_found_among_many_matches(store: EventStore, settings: Settings) -> None:
    for number in range(60):
        tagged = StateChanged(changes={"tags": {"rare": "no" if number else "yes"}})
        await store.create(events=[tagged, UserMessage.text("a word")])
    page = await AsyncConversation.search("word", tags={"rare": "yes"}, limit=2, store=store, settings=settings)
    assert (len(page.items), page.next_cursor) == (1, None)


async def test_searching_creates_no_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mistyped.db'}"
    assert (await AsyncConversation.search("word", store=url)).items == []
    assert list(tmp_path.iterdir()) == []
