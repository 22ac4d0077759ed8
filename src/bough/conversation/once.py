"""Runs one prompt in a new conversation with a single call."""

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
    **rules: Unpack[GivenRules],
) -> RunResult[T]:
    """Start a conversation, send `prompt`, run and close it, and return the result. Its log remains in the store.

    Args:
        agent: As in `AsyncConversation.create`, like `workspace`, `store` and `rules`.
        on_event: Called for durable events and pieces of text; see `AsyncConversation.run`.

    Raises:
        InvalidInput: The prompt is empty, the workspace is not a folder, or the agent is invalid.
        ModelError: The model failed. The conversation's status is `error`, and it can be opened and run again.
        StoreError: The store cannot be opened or written.
    """
    async with await AsyncConversation.create(agent, workspace=workspace, store=store, **rules) as conversation:
        await conversation.send_message(prompt)
        return await conversation.run(on_event=on_event)


def run(
    prompt: str | UserMessage,
    *,
    agent: AgentOf[T] | None = None,
    workspace: str | Path = ".",
    store: EventStore | str | None = None,
    on_event: OnEvent | None = None,
    **rules: Unpack[GivenRules],
) -> RunResult[T]:
    """Do the same as `arun` without `await`. `on_event` is called in the thread of bough's event loop.

    Raises:
        Unavailable: It was called in an asynchronous tool, where `await arun(…)` is needed.
    """
    return portal().call(arun, prompt, agent=agent, workspace=workspace, store=store, on_event=on_event, **rules)
