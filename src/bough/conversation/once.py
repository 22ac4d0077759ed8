"""One prompt, one conversation, one run: for programs that want an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from bough.conversation.agent import AgentOf
from bough.conversation.conversation import AsyncConversation
from bough.conversation.log.listeners import OnEvent
from bough.conversation.result import RunResult, T
from bough.conversation.rules import GivenRules
from bough.events.model import UserMessage
from bough.events.store import EventStore
from bough.portal import portal


async def arun(
    prompt: str | UserMessage,
    *,
    agent: AgentOf[T] | None = None,
    workspace: str | Path = ".",
    store: EventStore | str | None = None,
    on_event: OnEvent | None = None,
    **given: Unpack[GivenRules],
) -> RunResult[T]:
    """Start a conversation, send `prompt`, run it, close it, and return how the run ended. Its log stays in the store.

    Args:
        agent: As in `AsyncConversation.create`, like `workspace`, `store` and `given`.
        on_event: Called for durable events and pieces of text; see `AsyncConversation.run`.

    Raises:
        InvalidInput: The prompt is empty, the workspace is not a folder, or the agent is not right.
        ModelError: The model failed; the conversation is in `error` and can be opened and run again.
        StoreError: The store cannot be opened or written.
    """
    async with await AsyncConversation.create(agent, workspace=workspace, store=store, **given) as conversation:
        await conversation.send_message(prompt)
        return await conversation.run(on_event=on_event)


def run(
    prompt: str | UserMessage,
    *,
    agent: AgentOf[T] | None = None,
    workspace: str | Path = ".",
    store: EventStore | str | None = None,
    on_event: OnEvent | None = None,
    **given: Unpack[GivenRules],
) -> RunResult[T]:
    """Do what `arun` does without `await`. `on_event` is called in the thread of bough's event loop.

    Raises:
        Unavailable: It is called in an asynchronous tool: `await arun(…)` there.
    """
    return portal().call(arun, prompt, agent=agent, workspace=workspace, store=store, on_event=on_event, **given)
