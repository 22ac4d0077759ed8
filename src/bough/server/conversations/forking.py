"""Forking conversations, for routes, MCP and A2A."""

from __future__ import annotations

from typing import Any, NamedTuple

from bough.agents.spec import AgentSpec
from bough.conversation import ForkOverrides, State
from bough.conversation.fork.fork import fork_as_recorded
from bough.conversation.fork.model_key import MODEL_KEY, is_same_recipient
from bough.conversation.fork.opened import fork_opened
from bough.conversation.fork.request import ForkRequest
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import Fold
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.conversations.conversation import reopen_parts
from bough.server.conversations.model import require_forkable
from bough.types import JsonObject


class NewFork(NamedTuple):
    """A fork that was written, and the fold of its log.

    Attributes:
        is_new: Whether this request wrote the fork. False if the same request did so earlier.
    """

    record: ConversationRecord
    state: State
    is_new: bool


async def fork(
    access: Access,
    source: ConversationRecord,
    *,
    agent: AgentSpec | None = None,
    overrides: ForkOverrides | None = None,
    api_key: str | None = None,
    about: JsonObject | None = None,
    **options: Any,
) -> NewFork:
    """Fork a conversation. Raises also what `AsyncConversation.fork` raises.

    A fork that needs no new prompt reads no event of the source and builds no agent.

    Args:
        agent: Replaces the agent of the source.
        api_key: The key for the model of `agent`; this function does not store it.
        about: Metadata stored in the fork's row.
        options: Options of `AsyncConversation.fork`.

    Raises:
        PermissionDenied: The address of the fork's model may not be used without a posted key.
        Unavailable: The key or package of the fork's model is missing.
    """
    services, model = access.services, (overrides or {}).get("model")
    assert model is None or isinstance(model, str)  # noqa: S101 - bodies name models
    folded = await services.states.read(source)
    store = access.store.with_metadata(about or {})
    prompt_agent = None
    if agent is not None:
        agent = await _with_key(access, source, folded.state, agent, api_key)
        # The fork inherits the rules and the executor that the source recorded.
        without_rules = {"limits": None, "confirmation_policy": None, "allow_list": None, "executor": None}
        prompt_agent = agent.model_copy(update=without_rules)
    request = ForkRequest(agent=agent, overrides=overrides or {}, actor=access.caller.name, **options)
    services.rules.require_workspace(source.owner, folded.state.workspace)
    written = None
    # A source with secrets is opened below: masking what the fork writes needs their values.
    if not folded.state.policies.get("sealed"):
        journal = Journal(store, source.id, fold=Fold(folded.state.copy()))
        written = await fork_as_recorded(journal, source, request, services.settings)
    if written is None:
        # The prompt that is rendered here is recorded, so it must not contain skills that are no longer trusted.
        parts = await reopen_parts(services, store, source, folded.state, agent=prompt_agent, skills_seconds=0)
        parts.environment.retain()
        try:
            await require_forkable(access, agent or parts.agent.spec, model=model, is_new=agent is not None)
            fork_parts, written = await fork_opened(parts, request)
            await fork_parts.agent.aclose()
        finally:
            await parts.aclose()
    await services.states.add(written.record.id, written.state, erased=folded.erased)
    return NewFork(written.record, written.state, written.contents is not None)


async def _with_key(
    access: Access, source: ConversationRecord, state: State, agent: AgentSpec, api_key: str | None
) -> AgentSpec:
    """Return the agent of a fork with a model key: the posted key, else the agent's, else the source's stored key.

    The source's key is used only for the provider and address that it was posted for.
    """
    if api_key is None and agent.api_key is None and is_same_recipient(state.agent, agent.snapshot()):
        api_key = (await access.services.sealed.values(source.owner, state.policies)).get(MODEL_KEY)
    return agent if api_key is None else agent.model_copy(update={"api_key": api_key})
