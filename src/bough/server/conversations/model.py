"""The model of a conversation: changing it, with its address and key, and what its next request costs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from pydantic_ai.models import Model

from bough.agents.spec import AgentSpec
from bough.agents.usage import estimate_named_cost, find_context_window
from bough.conversation.agent import require_prices, resolve_spec, resolve_spec_model
from bough.conversation.fork.model_key import is_same_recipient
from bough.conversation.log.state import State
from bough.errors import Conflict
from bough.events.model import ModelResponded, StateChanged
from bough.events.record import ConversationRecord
from bough.guard import limits_from_json
from bough.server.access import Access
from bough.server.auth.sealed import MODEL_KEY
from bough.server.conversations.conversation import open_conversation
from bough.settings import Price
from bough.types import JsonObject


def estimate_next_request(state: State, prices: Mapping[str, Price]) -> float | None:
    """Return what the next request of a conversation costs at most, in USD; None if it is not known.

    It sends what the latest one sent, and that one's answer; the provider's cache may make it cheaper. The answer is
    expected to be as long as the conversation's answers are on average.
    """
    provider, _, name = str(state.agent.get("model") or "").rpartition(":")
    if not state.request_tokens or not name:
        return None
    answer = state.own.output_tokens // max(1, state.own.requests)
    sent = state.request_tokens + answer
    return estimate_named_cost(provider, name, prices, input_tokens=sent, output_tokens=answer)


def describe_context(state: State) -> tuple[int, int | None]:
    """Return how many tokens the latest request had, and how many the model takes; None if that is not known."""
    provider, _, name = str(state.agent.get("model") or "").rpartition(":")
    return state.request_tokens, find_context_window(provider, name) if name else None


async def find_cached(access: Access, record: ConversationRecord, state: State) -> datetime | None:
    """Return when the provider last cached what the next request begins with; None if it has not. Reads one event."""
    if state.response_seq is None:
        return None
    async for stored in access.store.read(record.id, state.response_seq, state.response_seq + 1):
        event = stored.event
        if isinstance(event, ModelResponded) and event.usage.cache_read_tokens + event.usage.cache_write_tokens:
            return stored.ts
    return None


async def change_model(access: Access, id: UUID, model: str, base_url: str | None, api_key: str | None) -> None:
    """Replace the model of a conversation.

    A posted key is used only for the provider and address that it was posted for. Another provider or address needs a
    new key; without one, the operator's key is used.

    Args:
        base_url: The model's address; None keeps the current address for a model of the same provider.
        api_key: Stored encrypted; None keeps the posted key if it may be used, and otherwise uses the operator's.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
        PermissionDenied: Only an admin may set this address.
        InvalidInput: The model is unknown, or its prices are needed and unknown.
        Conflict: A run is active, which would send its key to the new address; or the conversation has changed
            meanwhile, for example because a run began or a secret was added.
    """
    services = access.services
    agents, caller = services.agents, access.caller
    agents.require_base_url(caller, base_url, field="base_url")
    if base_url is not None:
        await agents.require_address(caller, base_url, has_key=api_key is not None, field="base_url")
    async with open_conversation(access, id) as conversation:
        current = conversation.agent
        is_same_provider = _find_provider(current.model_name) == _find_provider(model)
        address = base_url or (current.base_url if is_same_provider else None)
        keeps_key = api_key is None and (current.api_key is None or is_same_provider)
        if keeps_key and address == current.base_url:
            await conversation.set_model(model)
            return
        if await services.runs.is_live(id):
            raise Conflict(
                "the conversation is running", hint="pause it before you change the address or key of its model"
            )
        new_agent = current.model_copy(update={"model": model, "base_url": address, "api_key": api_key})
        resolved, name = resolve_spec_model(new_agent, services.settings)
        policies, head = conversation.state.policies, conversation.state.head
        limits = limits_from_json(policies.get("limits") or {})
        require_prices(resolved, limits, services.settings.prices)
        changes: JsonObject = {"agent": new_agent.model_copy(update={"model": name}).snapshot()}
    if api_key is not None:
        record = await access.store.get(id)
        await services.sealed.put(record, policies, {MODEL_KEY: api_key}, changes=changes, expected_head=head)
        return
    sealed: dict[str, str] = policies.get("sealed") or {}
    other_secrets = {name: holder for name, holder in sealed.items() if name != MODEL_KEY}
    changed = StateChanged(changes=changes | {"policies": {"sealed": other_secrets}})
    await access.store.append(id, [changed], expected_head=head)


async def require_forkable(access: Access, agent: AgentSpec, *, model: str | None, is_new: bool) -> None:
    """Check that a fork's model is available, before the fork is written.

    Args:
        agent: The agent of the fork, with its model's key.
        model: Replaces the agent's model.
        is_new: Whether the agent differs from the source's agent.

    Raises:
        InvalidInput: The model string is invalid.
        PermissionDenied: The model's address may not be used without a posted key.
        Unavailable: The model's key or package is missing.
    """
    if model is None and not is_new:
        return
    forked = agent if model is None else agent.model_copy(update={"model": model})
    if not is_same_recipient(agent.snapshot(), forked.snapshot()):
        forked = forked.model_copy(update={"api_key": None})
    await access.services.agents.require_address(access.caller, forked.base_url, has_key=forked.api_key is not None)
    if not isinstance(forked.model, Model):
        resolve_spec(forked, access.services.settings)


def _find_provider(model: str | None) -> str:
    return (model or "").partition(":")[0]
