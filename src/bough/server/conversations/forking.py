"""Forks of conversations, as routes, MCP and A2A make them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, ForkOverrides
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.conversations.conversation import reopen_from
from bough.server.conversations.model import require_forkable
from bough.types import JsonObject


@asynccontextmanager
async def fork(
    access: Access,
    source: ConversationRecord,
    *,
    agent: AgentSpec | None = None,
    overrides: ForkOverrides | None = None,
    api_key: str | None = None,
    about: JsonObject | None = None,
    **options: Any,
) -> AsyncGenerator[AsyncConversation]:
    """Fork a conversation, and give the fork while the block runs. Of the source's events none is read again.

    Args:
        api_key: Of the model of `agent`; none is sealed here.
        about: Kept in the fork's row.
        options: See `AsyncConversation.fork`, which says what else is raised.

    Raises:
        PermissionDenied: Its model's address is one that it may not have without a key of its own.
        Unavailable: The key or package of its model is missing.
    """
    services, model = access.services, (overrides or {}).get("model")
    assert model is None or isinstance(model, str)  # noqa: S101 - bodies name models
    folded = await services.states.read(source)
    opened = await reopen_from(services, access.store.keeping(about or {}), source, folded.state)
    async with opened:
        await require_forkable(access, opened.agent, agent=agent, model=model, api_key=api_key)
        made = await opened.fork(agent=agent, overrides=overrides, actor=access.caller.name, **options)
        async with made:
            await services.states.add(made.id, made.state, erased=folded.erased)
            yield made
