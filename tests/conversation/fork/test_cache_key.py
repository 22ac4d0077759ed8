"""What a provider is told of requests that begin alike: the key of a whole tree is its root's id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.testing.openai_server import Answer, OpenAIServer, ServerCall

pytestmark = pytest.mark.anyio


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@pytest.mark.parametrize("kind", ["openai", "openai-chat"])
async def test_every_request_of_a_tree_carries_the_roots_id(
    store: Any, settings: Any, tmp_path: Path, kind: str
) -> None:
    call = Answer(calls=(ServerCall(tool="double", arguments={"n": 2}),))
    with OpenAIServer([call, "4", "in the fork", "in its fork", "elsewhere"]) as server:
        spec = AgentSpec(model=f"{kind}:test", base_url=server.url, tools=(double,), skills=())
        trunk = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
        await trunk.send_message("double 2")
        await trunk.run()
        fork = await trunk.fork()
        inner = await fork.fork()
        other = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
        for conversation in (fork, inner, other):
            await conversation.send_message("and now?")
            await conversation.run()
    keys = [received.body["prompt_cache_key"] for received in server.received]
    assert keys == [str(trunk.id)] * 4 + [str(other.id)]
    prefix = server.received[1].body["messages"]
    assert server.received[2].body["messages"][: len(prefix)] == prefix, "what is cached is what is sent again"


async def test_an_agents_own_key_is_kept(store: Any, settings: Any, tmp_path: Path) -> None:
    with OpenAIServer(["mine"]) as server:
        agent = Agent(model_settings={"openai_prompt_cache_key": "mine"})  # type: ignore[typeddict-unknown-key]
        spec = AgentSpec.of(agent).model_copy(update={"model": "openai:test", "base_url": server.url})
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings)
        await conversation.send_message("hello")
        await conversation.run()
    assert [received.body["prompt_cache_key"] for received in server.received] == ["mine"]
