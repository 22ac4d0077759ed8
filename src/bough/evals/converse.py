"""Conversations that an eval makes: started once under an id that follows from the run, continued after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import Conflict
from bough.events.model import UserMessage
from bough.events.store import EventStore
from bough.guard import Limits, NeverConfirm
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.delegation_protocol import Delegation
    from bough.execution.base import CodeExecutor
    from bough.guard import Secrets


@dataclass(frozen=True, kw_only=True)
class ConversationHost:
    """What conversations of a run share: its store, its executor, its settings.

    Attributes:
        limits: Bounds of each turn.
        delegation: Runs the tasks of sub-agents; None where there are none.
    """

    store: EventStore
    settings: Settings
    executor: CodeExecutor
    limits: Limits = field(default_factory=lambda: Limits(steps=100, wall_seconds=600))
    secrets: Secrets | None = None
    delegation: Delegation | None = None

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
                broker=self.delegation,
            )
        except Conflict:
            return await self.reopen(id, agent)

    async def reopen(self, id: UUID, agent: AgentSpec) -> AsyncConversation:
        """Return a conversation that is there."""
        return await AsyncConversation.open(
            id,
            store=self.store,
            agent=agent,
            executor=self.executor,
            settings=self.settings,
            confirmation_policy=NeverConfirm(),
            limits=self.limits,
            secrets=self.secrets,
            broker=self.delegation,
        )


def conversation_id(*parts: str | int) -> UUID:
    """Return the id that follows from its parts, the same in every process."""
    return uuid5(NAMESPACE_URL, "bough:eval:" + "/".join(map(str, parts)))


async def say(conversation: AsyncConversation, messages: Sequence[str]) -> None:
    """Send the messages that are not in the log yet, each when the one before is answered.

    What an earlier process had finished is not run again; a run that does not end well is the last one.

    Raises:
        ModelError: The model failed.
        StoreError: An event could not be written.
    """
    sent = 0
    async for stored in conversation.events:
        # A log also has messages that a run wrote itself, for example that an answer was not valid.
        sent += isinstance(event := stored.event, UserMessage) and event.sender == "user"
    result = await conversation.run()
    for message in messages[sent:]:
        if sent and result.status != "finished":
            break
        await conversation.send_message(message)
        sent += 1
        result = await conversation.run()
