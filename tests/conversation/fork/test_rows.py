"""A fork of rows and state alone is the fork that an open conversation makes, or none is made."""

from __future__ import annotations

import io
from typing import Any

import pytest

from bough.conversation import AsyncConversation
from bough.conversation.fork.fork import fork_unopened
from bough.conversation.fork.request import ForkRequest
from bough.errors import InvalidInput, NotFound
from bough.events import open_store
from bough.guard import AlwaysConfirm, Limits
from bough.testing import tool_call
from bough.types import new_id

pytestmark = pytest.mark.anyio


def act(name: str) -> str:
    """Act."""
    return name


async def own_events(conversation: Any, record: Any) -> list[Any]:
    """Return what a fork's own first events say."""
    return [
        (stored.kind, stored.event.model_dump(mode="json", exclude={"id", "ts"}))
        async for stored in conversation.store.read(record.id, record.base)
    ]


@pytest.fixture
async def source(start: Any, scripted: Any) -> AsyncConversation:
    """A conversation with a turn that is over, and a call that waits."""
    spec = scripted("first", tool_call("act", name="a"), tools=(act,))
    conversation = await start(spec, confirmation_policy=AlwaysConfirm(), tags={"team": "red"}, limits=Limits(steps=9))
    await conversation.send_message("one")
    await conversation.run()
    await conversation.send_message("two")
    assert (await conversation.run()).waiting
    return conversation


REQUESTS: dict[str, dict[str, Any]] = {
    "at the head": {},
    "before the call": {"at": 5},
    "at an earlier event": {"at": 3, "reason": "to see"},
    "without the call": {"pending": "drop"},
    "named": {"title": "branch", "tags": {"team": "blue"}, "actor": "me"},
    "without tags": {"inherit_tags": False, "tags": {"a": "b"}},
    "with its usage": {"reset_metrics": False},
    "at nothing": {"at": 0},
}


@pytest.mark.parametrize("wanted", REQUESTS.values(), ids=REQUESTS.keys())
async def test_it_says_what_the_fork_of_an_open_conversation_says(source: Any, wanted: dict[str, Any]) -> None:
    made = await fork_unopened(source.store, source.id, ForkRequest(**wanted), source.settings)
    opened = await source.fork(**wanted)
    if made is None:
        assert wanted.get("at") == 0, "before the first event there is no agent yet"
        return
    record = await source.store.get(opened.id)
    assert await own_events(source, made.record) == await own_events(source, record)
    for name in ("title", "tags", "config", "lineage", "parent", "forked_from", "forked_at", "root", "base", "head"):
        assert getattr(made.record, name) == getattr(record, name), name
    again = await AsyncConversation.open(
        made.record.id, store=source.store, agent=source.agent, settings=source.settings
    )
    assert made.state.has_work == again.state.has_work == opened.state.has_work
    assert again.state.policies == source.state.policies


async def test_a_readonly_source_has_readonly_forks(source: Any) -> None:
    fork = await source.fork(workspace="readonly")
    made = await fork_unopened(source.store, fork.id, ForkRequest(), source.settings)
    assert made.state.workspace_policy == "readonly"


async def test_the_same_id_is_the_same_fork(source: Any) -> None:
    request = ForkRequest(id=new_id())
    first = await fork_unopened(source.store, source.id, request, source.settings)
    again = await fork_unopened(source.store, source.id, request, source.settings)
    assert first.record.id == again.record.id == request.id
    assert len(await source.store.children(source.id)) == 1


async def test_where_rules_or_agent_changed_behind_the_cut_none_is_made(source: Any) -> None:
    """What holds in such a fork is for the rules to say, which know what is stricter."""
    cut = source.state.head
    await source.set_limits(Limits(steps=5))
    assert await fork_unopened(source.store, source.id, ForkRequest(at=cut), source.settings) is None
    assert await fork_unopened(source.store, source.id, ForkRequest(), source.settings) is not None
    assert len(await source.store.children(source.id)) == 1


async def test_of_what_came_from_elsewhere_none_is_made(source: Any) -> None:
    """It is set apart first, which only opening it does."""
    file = io.BytesIO()
    await source.store.export(source.id, file)
    file.seek(0)
    elsewhere = await open_store("memory:")
    record = await elsewhere.import_(file)
    assert await fork_unopened(elsewhere, record.id, ForkRequest(), source.settings) is None
    assert await elsewhere.children(record.id) == []
    await elsewhere.aclose()


async def test_a_cut_that_is_none_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput):
        await fork_unopened(source.store, source.id, ForkRequest(at=99), source.settings)
    with pytest.raises(NotFound):
        await fork_unopened(source.store, new_id(), ForkRequest(), source.settings)
    assert await source.store.children(source.id) == []
