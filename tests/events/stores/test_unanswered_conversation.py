"""A conversation whose Postgres answers nothing for a while: every call ends, nothing is there twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import StoreError, Unavailable
from bough.events import PostgresEventStore
from bough.events.model import UserMessage
from bough.settings import Settings
from bough.testing import ScriptedModel
from bough.types import new_id

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgres")]

SLACK_SECONDS = 30
"""A machine that does other work as well: a call without a bound would take longer than any of this."""


@pytest.fixture
async def conversation(between: Any, schema: str, tmp_path: Path) -> AsyncIterator[AsyncConversation]:
    """A conversation behind the proxy. It is made before a test shortens the bounds: that is no part of the test."""
    store = await PostgresEventStore.open(between[1], schema=schema, poll_seconds=0.2)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha")
    spec = AgentSpec(name="tester", model=ScriptedModel(["hi", "again"]), skills=())
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    made = await AsyncConversation.create(spec, store=store, settings=settings, workspace=folder)
    yield made
    between[0].behave("pass")
    between[0].drop()
    with suppress(StoreError, Unavailable):
        await made.aclose()
    await store.aclose()


async def repeat(call: Any) -> Any:
    """Call until the store answers, as a caller does who does not know what became of it."""
    async with asyncio.timeout(SLACK_SECONDS):
        while True:
            with suppress(StoreError, Unavailable):
                return await call()


async def test_interrupting_and_closing_end_where_nothing_answers(
    conversation: Any, between: Any, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("short")
    proxy, _ = between
    proxy.behave("silent")
    async with asyncio.timeout(SLACK_SECONDS):
        with pytest.raises(Unavailable):
            await conversation.interrupt()
        with suppress(StoreError, Unavailable):
            await conversation.aclose()


@pytest.mark.parametrize("trouble", ["drop", "close_half"])
async def test_a_message_whose_answer_was_lost_is_sent_once(
    conversation: Any, between: Any, trouble: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("short")
    proxy, _ = between
    ids = [new_id() for _ in range(4)]
    for number, id in enumerate(ids):
        sending = asyncio.ensure_future(conversation.send_message(f"message {number}", id=id))
        await asyncio.sleep(0)  # it is on its way
        getattr(proxy, trouble)()
        with suppress(StoreError, Unavailable):
            await sending
        assert await repeat(lambda number=number, id=id: conversation.send_message(f"message {number}", id=id)) == id

    async def read() -> list[Any]:
        return [stored.id async for stored in conversation.store.read(conversation.id) if stored.kind == "UserMessage"]

    assert await repeat(read) == ids


async def test_a_fork_whose_answer_was_lost_is_one_with_its_files(
    conversation: Any, between: Any, request: pytest.FixtureRequest
) -> None:
    """A copy whose row may or may not be there is never removed, and the same id finds it again."""
    request.getfixturevalue("short")
    proxy, _ = between
    ids = [new_id() for _ in range(3)]
    for id in ids:
        forking = asyncio.ensure_future(conversation.fork(id=id, workspace="copy"))
        await asyncio.sleep(0)
        proxy.close_half()
        with suppress(StoreError, Unavailable):
            await (await forking).aclose()
        fork = await repeat(lambda id=id: conversation.fork(id=id, workspace="copy"))
        assert (fork.workspace / "a.txt").read_text() == "alpha"
        await fork.aclose()
    children = await repeat(lambda: conversation.store.children(conversation.id))
    assert sorted(child.id for child in children) == sorted(ids)


async def test_a_subscriber_survives_quick_drops(conversation: Any, between: Any, postgres: str, schema: str) -> None:
    """Also one between its LISTEN and its first read: every event comes, and once."""
    proxy, _ = between
    direct = await PostgresEventStore.open(postgres, schema=schema)
    heard: list[int] = []
    more = asyncio.Event()

    async def follow() -> None:
        async for stored in conversation.store.subscribe(conversation.id):
            heard.append(stored.seq)
            more.set()

    following = asyncio.create_task(follow())
    following.add_done_callback(lambda _: more.set())
    for _ in range(8):
        proxy.drop()
        head = await direct.append(conversation.id, [UserMessage.text("x")])
        proxy.drop()
    async with asyncio.timeout(SLACK_SECONDS):
        while len(heard) < head and not following.done():
            more.clear()
            await more.wait()
    assert not following.done(), following.exception()
    assert heard == list(range(head))
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    await direct.aclose()
