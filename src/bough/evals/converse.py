"""Conversations that an eval makes: begun once under an id that follows from the run, continued after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation, RunResult
from bough.errors import Conflict
from bough.events.store import EventStore
from bough.guard import Limits, NeverConfirm

if TYPE_CHECKING:
    from bough.execution.base import CodeExecutor
    from bough.guard import Secrets


@dataclass(frozen=True, kw_only=True)
class ConversationHost:
    """What conversations of a run share: its store, its executor, its settings.

    Attributes:
        limits: Bounds of each turn.
    """

    store: EventStore
    settings: Settings
    executor: CodeExecutor
    limits: Limits = field(default_factory=lambda: Limits(steps=100, wall_seconds=600))
    secrets: Secrets | None = None

    async def open(
        self, id: UUID, agent: AgentSpec, workspace: Path, tags: Mapping[str, str], title: str
    ) -> AsyncConversation:
        """Return the conversation of that id: a new one, or the one that an earlier process began."""
        try:
            return await AsyncConversation.create(
                agent,
                workspace=workspace,
                store=self.store,
                id=id,
                title=title,
                tags=tags,
                executor=self.executor,
                settings=self.settings,
                confirmation_policy=NeverConfirm(),
                limits=self.limits,
                secrets=self.secrets,
            )
        except Conflict:
            return await AsyncConversation.open(
                id,
                store=self.store,
                agent=agent,
                executor=self.executor,
                settings=self.settings,
                confirmation_policy=NeverConfirm(),
                limits=self.limits,
                secrets=self.secrets,
            )


def conversation_id(*parts: str | int) -> UUID:
    """Return the id that follows from its parts, the same in every process."""
    return uuid5(NAMESPACE_URL, "bough:eval:" + "/".join(map(str, parts)))


async def say(conversation: AsyncConversation, messages: Sequence[str]) -> RunResult:
    """Send the messages that are not in the log yet, each when the one before is answered; return the last run's end.

    A turn that does not end well is the last one. What an earlier process had finished is not run again.

    Raises:
        ModelError: The model failed.
        StoreError: An event could not be written.
    """
    sent = 0
    async for stored in conversation.events:
        sent += stored.kind == "UserMessage"
    result = await conversation.run()
    for message in messages[sent:]:
        if sent and result.status != "finished":
            break
        await conversation.send_message(message)
        sent += 1
        result = await conversation.run()
    if not result.steps:  # an earlier process has the answer of this turn
        return replace(result, output=conversation.state.output)
    return result
