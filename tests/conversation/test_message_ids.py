"""A message with an id of its caller's is sent once, however often its answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.events import open_store
from bough.events.model import ImagePart, TextPart, UserMessage
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, EnvSecret, Hook, HookKind, HookSet, Secrets
from bough.testing import tool_call
from bough.types import new_id

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a dot"
HERE = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))]


@pytest.fixture(params=HERE)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    urls = {"memory": "memory:", "server": "memory:", "sqlite": f"sqlite:///{tmp_path / 'log.db'}"}
    opened = await open_store(urls.get(request.param) or request.getfixturevalue("postgres"))
    yield opened
    await opened.aclose()


async def sent(conversation: Any) -> list[Any]:
    return [stored.id async for stored in conversation.events if stored.kind == "UserMessage"]


@pytest.mark.parametrize("store", [*HERE, "server"], indirect=True)
async def test_the_same_id_again_is_the_same_message(start: Any, reopen: Any, scripted: Any) -> None:
    spec = scripted("hi", "again")
    conversation, id = await start(spec), new_id()
    assert await conversation.send_message("hello", id=id) == id
    head = conversation.state.head
    assert await conversation.send_message("hello", id=id) == id
    async with await reopen(conversation.id, spec) as other:
        assert await other.send_message("hello", id=id) == id, "another process, after a crash"
        assert (await other.run()).output == "hi"
        assert await other.send_message("hello", id=id) == id, "after it was answered"
        assert not other.state.has_work
    assert await sent(conversation) == [id]
    assert conversation.state.head == head, "this object has seen nothing new"
    assert await conversation.send_message("hello") != id, "without an id it is another message"
    assert len(await sent(conversation)) == 2


@pytest.mark.parametrize("store", [*HERE, "server"], indirect=True)
async def test_the_same_id_with_other_content_is_a_conflict(start: Any, scripted: Any) -> None:
    conversation, id = await start(scripted("hi")), new_id()
    await conversation.send_message("hello", id=id)
    head = conversation.state.head
    for given in ({"message": "other"}, {"message": "hello", "sender": "planner"}):
        with pytest.raises(Conflict) as refused:
            await conversation.send_message(**given, id=id)
        assert refused.value.hint
    another = await start(scripted("hi"))
    with pytest.raises(Conflict):
        await another.send_message("hello", id=id)
    first = await anext(conversation.events)
    with pytest.raises(Conflict):
        await conversation.send_message("hello", id=first.id)
    assert await sent(conversation) == [id]
    assert await sent(another) == []
    assert conversation.state.head == head


async def test_an_id_may_be_text_and_nothing_else(start: Any, scripted: Any) -> None:
    conversation, id = await start(scripted()), new_id()
    assert await conversation.send_message("hello", id=str(id)) == id
    for wrong in ("x", 7, True):
        with pytest.raises(InvalidInput):
            await conversation.send_message("hello", id=wrong)
    assert await sent(conversation) == [id]


async def test_many_at_once_send_one_and_hold_up_nobody_else(start: Any, reopen: Any, scripted: Any) -> None:
    """The event's id is unique in the store: who comes later finds the message there."""
    spec, id = scripted(), new_id()
    conversation = await start(spec)
    async with await reopen(conversation.id, spec) as other:
        told = await asyncio.gather(
            *(each.send_message("hello", id=id) for each in (conversation, other, conversation, other)),
            *(each.send_message(f"mine {n}") for n, each in enumerate((conversation, other))),
        )
    assert told[:4] == [id] * 4
    assert sorted(await sent(conversation)) == sorted({id, *told[4:]})


@pytest.mark.parametrize("store", [*HERE, "server"], indirect=True)
async def test_images_are_compared_by_digest(start: Any, scripted: Any) -> None:
    conversation, id = await start(scripted()), new_id()

    def show(image: bytes) -> UserMessage:
        return UserMessage(content=(TextPart(text="which?"), ImagePart.of(image)))

    await conversation.send_message(show(PNG), id=id)
    assert await conversation.send_message(show(PNG), id=id) == id
    with pytest.raises(Conflict):
        await conversation.send_message(show(PNG + b"!"), id=id)
    assert await sent(conversation) == [id]


async def test_a_message_made_by_its_caller_has_its_id(start: Any, scripted: Any) -> None:
    conversation, message = await start(scripted()), UserMessage.text("hello \ud800")
    assert await conversation.send_message(message) == message.id
    assert await conversation.send_message(message) == message.id
    assert await sent(conversation) == [message.id]


async def test_what_was_masked_is_the_same_message(start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "tok-123456")
    conversation, id = await start(scripted(), secrets=Secrets({"TOKEN": EnvSecret("TOKEN")})), new_id()
    await conversation.send_message("use tok-123456", id=id)
    assert await conversation.send_message("use tok-123456", id=id) == id
    assert await sent(conversation) == [id]


async def test_a_hook_is_asked_once(start: Any, scripted: Any) -> None:
    asked: list[Any] = []

    def refuse_second(given: Any) -> Any:
        asked.append(given)
        return None if len(asked) == 1 else {"decision": "deny", "reason": "twice"}

    hooks = HookSet((Hook(kind=HookKind.USER_PROMPT_SUBMIT, function=refuse_second),))
    conversation, id = await start(scripted(), hooks=hooks), new_id()
    await conversation.send_message("hello", id=id)
    assert await conversation.send_message("hello", id=id) == id
    assert len(asked) == 1
    with pytest.raises(PermissionDenied):
        await conversation.send_message("hello")


async def test_a_reply_to_waiting_calls_is_sent_once(start: Any, scripted: Any) -> None:
    def act(name: str) -> str:
        """Act."""
        return name

    spec = scripted(tool_call("act", name="a"), "so be it", tools=(act,))
    conversation, id = await start(spec, confirmation_policy=AlwaysConfirm()), new_id()
    await conversation.send_message("go")
    assert len((await conversation.run()).waiting) == 1
    for _ in range(2):
        assert await conversation.send_message("no, leave it", id=id) == id
    kinds = [stored.kind async for stored in conversation.events]
    assert (kinds.count("ToolRejected"), kinds.count("UserMessage")) == (1, 2)
    assert (await conversation.run()).output == "so be it"
