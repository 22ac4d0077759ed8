"""What a fork says of itself is enough to continue when its source is erased, and holds no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, EnvSecret, Secrets
from bough.testing.openai_server import OpenAIServer

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


async def test_a_fork_asks_the_model_that_its_log_names_whoever_set_it(start: Any, store: Any, settings: Any) -> None:
    with OpenAIServer(["from the fork"]) as server:
        spec = AgentSpec(model="openai:first", base_url=server.url, skills=())
        source = await start(spec)
        async with await AsyncConversation.open(source.id, store=store, agent=spec, settings=settings) as other:
            await other.set_model("openai:second")
        fork = await source.fork()
        await fork.send_message("who answers?")
        assert (await fork.run()).output == "from the fork"
        assert fork.state.agent["model"] == "openai:second"
        await fork.aclose()
        await source.aclose()
    assert [received.body["model"] for received in server.received] == ["second"]


async def test_a_fork_that_cannot_be_described_leaves_no_files(
    start: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    source = await start(scripted("x"), workspace=tmp_path / "work")

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("bough.conversation.fork.fork.mask_events", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        await source.fork(workspace="copy")
    assert [*(source.settings.home / "workspaces").glob("*")] == []
    await source.aclose()
