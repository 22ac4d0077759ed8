"""The output type of an agent, kept by everything that takes the agent. Only type checkers read this file."""

from __future__ import annotations

from typing import Any, assert_type

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests

from bough import AgentSpec, AsyncConversation, Conversation, OrchestratorAgent, RunResult, arun, run
from bough.conversation.remote.remote import RemoteConversation


class Invoice(BaseModel):
    """What the agent answers with."""

    total: float


SPEC = AgentSpec(model="offline", output_type=Invoice)
AGENT = Agent("test", output_type=Invoice)
COUNTER = AgentSpec(model="offline", output_type=int)

assert_type(SPEC, AgentSpec[Invoice])
assert_type(AgentSpec.of(AGENT), AgentSpec[Invoice])


async def use_asynchronously() -> None:
    """Create, open, fork and run."""
    conversation = await AsyncConversation.create(SPEC)
    assert_type(conversation, AsyncConversation[Invoice])
    assert_type(await AsyncConversation.create(AGENT), AsyncConversation[Invoice])
    assert_type(await AsyncConversation.create("offline"), AsyncConversation[Any])
    assert_type(await AsyncConversation.create(), AsyncConversation[Any])
    assert_type(await AsyncConversation.open("-", agent=SPEC), AsyncConversation[Invoice])
    assert_type(await AsyncConversation.open("-"), AsyncConversation[Any])

    assert_type(await conversation.run(), RunResult[Invoice])
    assert_type((await conversation.run()).data, Invoice | None)
    assert_type(conversation.result, RunResult[Invoice] | None)
    assert_type(await arun("one euro", agent=SPEC), RunResult[Invoice])

    assert_type(await conversation.fork(at=3), AsyncConversation[Invoice])
    assert_type(await conversation.fork(agent=COUNTER, title="count"), AsyncConversation[int])
    assert_type(await conversation.fork(agent="offline"), AsyncConversation[Any])

    remote = await AsyncConversation.create(SPEC, server="http://127.0.0.1:8000")
    assert_type(remote, RemoteConversation[Invoice])
    assert_type(await remote.run(), RunResult[Invoice])
    assert_type(await remote.fork(), RemoteConversation[Invoice])
    assert_type(await AsyncConversation.open("-", server="http://127.0.0.1:8000"), RemoteConversation[Any])


async def use_orchestrator() -> None:
    """Run a turn; its calls may wait for a decision."""
    async with OrchestratorAgent(SPEC) as orchestrator:
        assert_type(orchestrator, OrchestratorAgent[Invoice])
        assert_type(orchestrator.conversation, AsyncConversation[Invoice])
        assert_type(await orchestrator.run("one euro"), AgentRunResult[Invoice | DeferredToolRequests])


def use_synchronously() -> None:
    """Create, open, fork and run without `await`."""
    conversation = Conversation(SPEC)
    assert_type(conversation, Conversation[Invoice])
    assert_type(Conversation(AGENT), Conversation[Invoice])
    assert_type(conversation.run().data, Invoice | None)
    assert_type(run("one euro", agent=SPEC), RunResult[Invoice])
    assert_type(Conversation.open("-", agent=SPEC), Conversation[Invoice])
    assert_type(conversation.fork(at=3), Conversation[Invoice])
    assert_type(conversation.fork(agent=COUNTER), Conversation[int])
