"""Opening or forking a conversation never leaves the sandbox that its log names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bough import AsyncConversation
from bough.errors import PermissionDenied
from bough.execution import Isolation, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
async def made(start: Any, scripted: Any) -> AsyncConversation:
    """A conversation whose code runs in the sandbox, closed."""
    conversation = await start(scripted("done"))
    await conversation.aclose()
    return conversation


async def reopen(made: AsyncConversation, **given: Any) -> AsyncConversation:
    at: dict[str, Any] = {"store": made.store, "agent": made.agent, "settings": made.settings}
    return await AsyncConversation.open(made.id, **at | given)


async def test_a_weaker_executor_is_refused_whoever_gives_it(made: AsyncConversation) -> None:
    head = (await made.store.get(made.id)).head
    with pytest.raises(PermissionDenied, match="unsafe-local is weaker"):
        await reopen(made, executor=UnsafeLocalCodeExecutor())
    with pytest.raises(PermissionDenied, match="unsafe-local is weaker"):
        await reopen(made, agent=made.agent.model_copy(update={"executor": UnsafeLocalCodeExecutor()}))
    assert (await made.store.get(made.id)).head == head, "nothing was written"


async def test_settings_that_name_it_are_a_persons_word(made: AsyncConversation) -> None:
    settings = replace(made.settings, executor="unsafe")
    async with await reopen(made, settings=settings, executor=UnsafeLocalCodeExecutor()) as opened:
        assert opened.executor.isolation == Isolation.NONE
    async with await reopen(made, settings=settings) as opened:
        assert opened.executor.isolation > Isolation.NONE, "what nobody gave is what the log says"


async def test_a_stronger_one_is_taken(made: AsyncConversation) -> None:
    async with await reopen(made, executor=LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)) as opened:
        assert opened.executor.isolation >= Isolation.NAMESPACES


async def test_what_began_without_a_sandbox_goes_on_without(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("done"), executor=UnsafeLocalCodeExecutor())
    await conversation.aclose()
    async with await reopen(conversation, executor=UnsafeLocalCodeExecutor()) as opened:
        assert opened.executor.isolation == Isolation.NONE


async def test_a_fork_runs_where_its_source_does(start: Any, scripted: Any) -> None:
    """An agent that brings another executor changes what answers, not where code runs."""
    async with await start(scripted("done")) as source:
        agent = source.agent.model_copy(update={"executor": UnsafeLocalCodeExecutor()})
        async with await source.fork(agent=agent) as branch:
            assert branch.executor is source.executor
            assert branch.state.policies["executor"] == source.executor.name
