"""What a fork says of itself is enough to continue when its source is erased, and holds no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.conversation import AsyncConversation
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, EnvSecret, Secrets

pytestmark = pytest.mark.anyio

VALUE = "hunter2-hunter2"


async def test_a_fork_of_an_erased_source_keeps_agent_prompt_and_rules(
    store: EventStore, start: Any, scripted: Any
) -> None:
    source = await start(scripted("x", system_prompt="Be kind."), confirmation_policy=AlwaysConfirm())
    await source.send_message("go")
    await source.run()
    fork = await source.fork()
    expected = (fork.state.agent, fork.state.instructions, fork.state.policies, fork.state.workspace)
    await source.aclose()
    await store.delete(source.id, "erase")
    again = await AsyncConversation.open(
        fork.id, store=store, agent=scripted("x", system_prompt="Be kind."), settings=fork.settings
    )
    state = again.state
    assert (state.agent, state.instructions, state.policies, state.workspace) == expected
    assert ("Be kind." in state.instructions, state.agent["name"]) == (True, "tester")
    await again.aclose()
    await fork.aclose()


async def test_no_secret_is_in_the_row_or_the_first_events_of_a_conversation_and_its_fork(
    store: EventStore, start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    secrets = Secrets({"TOKEN": EnvSecret("TOKEN")})
    source = await start(scripted("x"), secrets=secrets, title=f"with {VALUE}", tags={"key": VALUE})
    asked: dict[str, Any] = {"reason": f"because {VALUE}", "actor": VALUE, "title": VALUE, "tags": {"more": VALUE}}
    fork = await source.fork(id=None, **asked)
    for conversation in (source, fork):
        record = await store.get(conversation.id)
        said = json.dumps([record.title, record.tags, record.config, record.lineage])
        log = b"".join([stored.raw async for stored in store.read(conversation.id)])
        assert (VALUE in said, VALUE.encode() in log) == (False, False)
        await conversation.aclose()
