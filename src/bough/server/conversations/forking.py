"""Forking conversations, for routes, MCP and A2A."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bough.agents.spec import AgentSpec
from bough.conversation import ForkOverrides, State
from bough.conversation.fork.fork import ForkPlan, fork_as_recorded, plan_as_recorded
from bough.conversation.fork.model_key import MODEL_KEY, is_same_recipient
from bough.conversation.fork.opened import fork_opened, plan_opened
from bough.conversation.fork.request import ForkRequest
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import Fold
from bough.conversation.parts import Parts
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.auth.owned import OwnedStore
from bough.server.conversations.conversation import reopen_parts
from bough.server.conversations.model import require_forkable
from bough.server.states import Folded
from bough.types import JsonObject


@dataclass(frozen=True, kw_only=True)
class ForkSpec:
    """A fork that a caller asks for.

    Attributes:
        agent: Replaces the agent of the source.
        api_key: The key for the model of `agent`; it is not stored.
        about: Metadata stored in the fork's row.
        options: Further options of `AsyncConversation.fork`.
    """

    agent: AgentSpec | None = None
    overrides: ForkOverrides | None = None
    api_key: str | None = field(default=None, repr=False)
    about: JsonObject = field(default_factory=dict[str, Any])
    options: JsonObject = field(default_factory=dict[str, Any])


class NewFork(NamedTuple):
    """A fork that was written, and the fold of its log.

    Attributes:
        is_new: Whether this request wrote the fork. False if the same request did so earlier.
    """

    record: ConversationRecord
    state: State
    is_new: bool


async def fork(access: Access, source: ConversationRecord, spec: ForkSpec) -> NewFork:
    """Fork a conversation. Raises also what `AsyncConversation.fork` raises.

    A fork that needs no new prompt reads no event of the source and builds no agent.

    Raises:
        PermissionDenied: The address of the fork's model may not be used without a posted key.
        Unavailable: The key or package of the fork's model is missing.
    """
    prepared = await _prepare(access, source, spec)
    state, written = prepared.folded.state, None
    if prepared.is_unopened:
        journal = Journal(prepared.store, source.id, fold=Fold(state.copy()))
        written = await fork_as_recorded(journal, source, prepared.request, access.services.settings)
    if written is None:
        async with _open_source(access, source, spec, prepared) as parts:
            fork_parts, written = await fork_opened(parts, prepared.request)
            await fork_parts.agent.aclose()
    await access.services.states.add(written.record.id, written.state, erased=prepared.folded.erased)
    return NewFork(written.record, written.state, written.contents is not None)


async def plan(access: Access, source: ConversationRecord, spec: ForkSpec) -> ForkPlan:
    """Return the fork that `fork` would write. Writes nothing.

    Raises:
        See `fork`.
    """
    # Checked and not counted, because nothing is created.
    await access.services.conversation_limits.check(access.caller.owner)
    prepared = await _prepare(access, source, spec)
    planned = None
    # As in `fork`: a plan that took the other way could promise what the fork then refuses.
    if prepared.is_unopened:
        journal = Journal(prepared.store, source.id, fold=Fold(prepared.folded.state.copy()))
        planned = await plan_as_recorded(journal, prepared.request, access.services.settings)
    if planned is None:
        async with _open_source(access, source, spec, prepared) as parts:
            planned = await plan_opened(parts, prepared.request)
    return planned


class _Prepared(NamedTuple):
    """A fork whose agent and workspace the caller may use.

    Attributes:
        folded: The state of the source.
        store: Adds the metadata of the fork's row.
        agent: The agent of the fork, with the key of its model; None for the source's.
        is_unopened: Whether the source need not be opened, unless the fork changes what it records.
    """

    folded: Folded
    store: OwnedStore
    request: ForkRequest
    agent: AgentSpec | None
    is_unopened: bool


async def _prepare(access: Access, source: ConversationRecord, spec: ForkSpec) -> _Prepared:
    services, agent = access.services, spec.agent
    folded = await services.states.read(source)
    if agent is not None:
        agent = await _with_key(access, source, folded.state, agent, spec.api_key)
    request = ForkRequest(agent=agent, overrides=spec.overrides or {}, actor=access.caller.name, **spec.options)
    services.rules.require_workspace(source.owner, folded.state.workspace)
    # A source with secrets is opened: masking what the fork writes needs their values.
    is_unopened = not folded.state.policies.get("sealed")
    return _Prepared(folded, access.store.with_metadata(spec.about), request, agent, is_unopened)


@asynccontextmanager
async def _open_source(
    access: Access, source: ConversationRecord, spec: ForkSpec, prepared: _Prepared
) -> AsyncGenerator[Parts]:
    """Yield the opened source of a fork, after checking that the fork's model is available."""
    agent, model = prepared.agent, (spec.overrides or {}).get("model")
    assert model is None or isinstance(model, str)  # noqa: S101 - bodies name models
    prompt_agent = None
    if agent is not None:
        # The fork inherits the rules and the executor that the source recorded.
        without_rules = {"limits": None, "confirmation_policy": None, "allow_list": None, "executor": None}
        prompt_agent = agent.model_copy(update=without_rules)
    # The prompt that is rendered here is recorded, so it must not contain skills that are no longer trusted.
    parts = await reopen_parts(
        access.services, prepared.store, source, prepared.folded.state, agent=prompt_agent, skills_seconds=0
    )
    parts.environment.retain()
    try:
        await require_forkable(access, agent or parts.agent.spec, model=model, is_new=agent is not None)
        yield parts
    finally:
        await parts.aclose()


async def _with_key(
    access: Access, source: ConversationRecord, state: State, agent: AgentSpec, api_key: str | None
) -> AgentSpec:
    """Return the agent of a fork with a model key: the posted key, else the agent's, else the source's stored key.

    The source's key is used only for the provider and address that it was posted for.
    """
    if api_key is None and agent.api_key is None and is_same_recipient(state.agent, agent.snapshot()):
        api_key = (await access.services.sealed.values(source.owner, state.policies)).get(MODEL_KEY)
    return agent if api_key is None else agent.model_copy(update={"api_key": api_key})
