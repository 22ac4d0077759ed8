"""Models of one provider, address and key use one HTTP client, which its event loop's end closes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bough.agents.models.resolve import SharedProviders, resolve_model
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing import OpenAIServer


@pytest.fixture
def openai_server() -> Iterator[Callable[..., OpenAIServer]]:
    with ExitStack() as stack:
        yield lambda *steps: stack.enter_context(OpenAIServer(steps))


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """TLS contexts that load certificates, of which each HTTP client makes one."""
    loaded: list[ssl.SSLContext] = []
    for name in ("load_verify_locations", "load_default_certs"):
        load = getattr(ssl.SSLContext, name)

        def record(context: ssl.SSLContext, *args: Any, load: Any = load, **options: Any) -> Any:
            if context not in loaded:
                loaded.append(context)
            return load(context, *args, **options)

        monkeypatch.setattr(ssl.SSLContext, name, record)
    return loaded


@pytest.mark.anyio
async def test_conversations_forks_and_runs_share_a_client(
    openai_server: Callable[..., OpenAIServer], contexts: list[ssl.SSLContext], tmp_path: Path
) -> None:
    server = openai_server("1", "2", "3", "4", "5")
    settings = Settings(home=tmp_path, store="memory:")
    spec = AgentSpec(model="openai:test", base_url=server.url, api_key="k")
    first = await AsyncConversation.create(spec, settings=settings, workspace=tmp_path)
    assert contexts == [], "whoever asks nothing needs no client"
    for text in ("one", "two"):
        await first.send_message(text)
        await first.run()
    second = await AsyncConversation.create(spec, settings=settings, workspace=tmp_path)
    fork = await first.fork()
    for conversation in (second, fork):
        await conversation.send_message("three")
        await conversation.run()
    assert await first.ask("four?") == "5"
    assert len(contexts) == 1
    other = resolve_model("openai:test", base_url=server.url, env={}, api_key="another key", shared=True).model
    assert other is not None
    assert len(contexts) == 2, "another key has a client of its own"
    for conversation in (first, second, fork):
        await conversation.aclose()


def test_each_loop_has_clients_of_its_own_and_closes_them(openai_server: Callable[..., OpenAIServer]) -> None:
    server, clients = openai_server("1", "2"), []

    async def ask() -> str:
        model: Any = resolve_model("openai:test", base_url=server.url, env={}, shared=True).model
        again: Any = resolve_model("openai:other", base_url=server.url, env={}, shared=True).model
        assert again.client is model.client
        clients.append(model.client)
        from pydantic_ai import Agent

        return str((await Agent(model).run("hello")).output)

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["1", "2"]
    assert clients[0] is not clients[1]
    assert all(client.is_closed() for client in clients)


@pytest.mark.anyio
async def test_the_least_recently_used_client_is_closed_first() -> None:
    from pydantic_ai.providers.openai import OpenAIProvider

    shared = SharedProviders(size=2)

    def find(key: str) -> Any:
        return shared.find("openai", "http://localhost/v1", key, lambda: OpenAIProvider(api_key=key))

    first, second = find("1"), find("2")
    assert find("1") is first
    find("3")
    async with asyncio.timeout(10):
        while not second.client.is_closed():
            await asyncio.sleep(0)
    assert not first.client.is_closed()
    assert find("1") is first
    assert find("2") is not second
