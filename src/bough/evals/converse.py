"""Conversations of an eval: created with an id derived from the run, so that they continue after a crash."""

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
    """The store, executor and settings that the conversations of a run share.

    Attributes:
        limits: Limits of each turn.
        delegation: Runs the tasks of sub-agents; None if the agent has no sub-agents.
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
        """Return the conversation with an id; create it unless an earlier process created it."""
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
            # An earlier process of the run created it, since the id derives from the run.
            return await self.reopen(id, agent)

    async def reopen(self, id: UUID, agent: AgentSpec) -> AsyncConversation:
        """Open an existing conversation."""
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
    """Return the UUID derived from the parts; equal parts give the same id in every process."""
    return uuid5(NAMESPACE_URL, "bough:eval:" + "/".join(map(str, parts)))


async def send_messages(conversation: AsyncConversation, messages: Sequence[str]) -> None:
    """Send the messages that are not in the log yet, each after the answer to the previous one.

    Turns that an earlier process finished are not repeated. No message follows a turn that does not finish.

    Raises:
        ModelError: The model failed.
        StoreError: An event could not be written.
    """
    sent_count = 0
    async for stored in conversation.events:
        # Only messages of the user count; a run also writes messages, for example about an invalid answer.
        if isinstance(event := stored.event, UserMessage) and event.sender == "user":
            sent_count += 1
    # Finishes a turn that a crash interrupted, which must precede the next message.
    result = await conversation.run()
    for message in messages[sent_count:]:
        if sent_count and result.status != "finished":
            break
        await conversation.send_message(message)
        sent_count += 1
        result = await conversation.run()
