"""Checks the rules that callers set: without the scope `approve`, none may be wider than the rules in force."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from bough.conversation import State
from bough.conversation.rules import GivenRules, read_recorded_limits
from bough.errors import Conflict, PermissionDenied
from bough.events.model import StateChanged
from bough.events.record import ConversationRecord
from bough.guard import (
    AlwaysConfirm,
    Limits,
    Policy,
    SecurityAnalyzer,
    policy_from_json,
    policy_named,
)
from bough.guard.budget import record_budgets
from bough.guard.confirmation_policy import allows_change, narrower
from bough.guard.limits import allows_change as allows_limits
from bough.server.access import Access
from bough.server.bodies.base import is_empty
from bough.server.bodies.conversations import NewConversation, Overrides, StartConversation
from bough.server.bodies.rules import (
    BudgetForm,
    make_budget,
    parse_analyzer,
    parse_openhands_analyzer,
    parse_openhands_policy,
    parse_policy,
    read_allow_list,
)
from bough.types import JsonObject

_ATTEMPTS = 20
"""Maximum number of attempts to write a change to a conversation that other writers append to."""


def rules_from(access: Access, body: NewConversation) -> GivenRules:
    """Return the rules of a new conversation that the caller may set.

    Raises:
        PermissionDenied: The policy asks less often than the operator's, and the key lacks the scope `approve`.
        InvalidInput: A value is invalid.
    """
    if body.confirmation_policy is not None:
        require_policy(access, parse_policy(body.confirmation_policy.as_json()))
    rules = parse_rules(body)
    if body.budget is not None:
        rules["budget"] = make_budget(access.caller.owner, body.budget)
    return rules


def parse_rules(body: NewConversation | Overrides) -> GivenRules:
    """Return the rules that a body sets.

    Raises:
        InvalidInput: A value is invalid.
    """
    rules = GivenRules()
    if body.confirmation_policy is not None:
        rules["confirmation_policy"] = parse_policy(body.confirmation_policy.as_json())
    if body.security_analyzer is not None:
        rules["security_analyzer"] = parse_analyzer(body.security_analyzer)
    if body.limits is not None:
        rules["limits"] = body.limits.limits()
    if body.allow_list is not None:
        rules["allow_list"] = read_allow_list(body.allow_list)
    if isinstance(body, NewConversation) and body.condenser is not None:
        rules["condenser"] = body.condenser.condenser()
    return rules


def openhands_rules(access: Access, body: StartConversation) -> GivenRules:
    """Return the rules that a body of OpenHands' client sets.

    Raises: see `rules_from`.
    """
    rules: GivenRules = {"limits": Limits(steps=body.max_iterations)}
    if not is_empty(body.confirmation_policy):
        rules["confirmation_policy"] = parse_openhands_policy(body.confirmation_policy)
        require_policy(access, rules["confirmation_policy"])
    if not is_empty(body.security_analyzer):
        rules["security_analyzer"] = parse_openhands_analyzer(body.security_analyzer)
    return rules


def require_policy(access: Access, policy: Policy) -> None:
    """Check that the caller may start a conversation with this policy.

    Raises:
        PermissionDenied: The policy asks less often than the operator's, and the key lacks the scope `approve`.
    """
    if not allows_change(_read_default(access), policy):
        access.caller.require("write", "approve")


async def replace_policy(access: Access, id: UUID, policy: Policy) -> None:
    """Replace the policy that decides which calls of a conversation wait for a person.

    Raises:
        PermissionDenied: The policy asks less often than the one in force, and the key lacks the scope `approve`.
    """
    default = _read_default(access)

    def is_allowed(state: State) -> bool:
        return allows_change(_read_policy(state, default), policy)

    await _change_rules(access, id, "policy", policy.to_json(), is_allowed)


async def replace_analyzer(access: Access, id: UUID, analyzer: SecurityAnalyzer | None) -> None:
    """Replace the analyzer that rates the risk of a conversation's calls; None removes it.

    Raises:
        PermissionDenied: The analyzer is removed, or another one is in force, and the key lacks the scope `approve`.
    """
    recorded = None if analyzer is None else analyzer.to_json()

    def is_allowed(state: State) -> bool:
        current = state.policies.get("analyzer")
        return recorded is not None and current in (None, recorded)

    await _change_rules(access, id, "security_analyzer", recorded, is_allowed, recorded_name="analyzer")


async def replace_limits(access: Access, id: UUID, limits: Limits) -> None:
    """Replace the limits of a conversation's runs.

    Raises:
        PermissionDenied: A limit is higher than the one in force, and the key lacks the scope `approve`.
    """

    def is_allowed(state: State) -> bool:
        return allows_limits(read_recorded_limits(state.policies)[0], limits)

    await _change_rules(access, id, "limits", limits.to_json(), is_allowed)


async def add_budget(access: Access, record: ConversationRecord, budget: str | BudgetForm) -> None:
    """Let a conversation spend from a budget too, from its next request on. It keeps the budgets that it has.

    Raises:
        NotFound: The budget has no bounds and does not exist.
        Conflict: The budget exists with other bounds, or the conversation was imported and not adopted.
    """
    added = make_budget(access.caller.owner, budget)
    for _ in range(_ATTEMPTS):
        state = await access.services.states.state_of(record)
        if state.quarantined:
            raise Conflict("budget: the conversation was imported", hint="adopt it first")
        await record_budgets(access.store, [added])
        budgets: list[str] = state.policies.get("budgets") or []
        if added.id in budgets:
            return
        event = StateChanged(changes={"policies": {"budgets": sorted([*budgets, added.id])}})
        try:
            # With the head that was read: a budget that was added since then must stay.
            await access.store.append(record.id, [event], expected_head=state.head)
        except Conflict:
            record = await access.store.get(record.id)
            continue
        return
    raise Conflict("the conversation is changing", hint="try again")


async def _change_rules(
    access: Access,
    id: UUID,
    field: str,
    value: JsonObject | None,
    is_allowed: Callable[[State], bool],
    *,
    recorded_name: str | None = None,
) -> None:
    """Record a rule of a conversation. Without the scope `approve`, `is_allowed` must accept the change.

    Args:
        field: The rule's name in bodies.
        is_allowed: Whether the new value is not wider than the value in a state.
        recorded_name: The rule's name in the log, if it differs.

    Raises:
        PermissionDenied: The change is not allowed.
        Conflict: Other writers appended to the conversation during every attempt.
    """
    event = StateChanged(changes={"policies": {recorded_name or field: value}})
    record = await access.store.get(id)
    if "approve" in access.caller.scopes:
        await access.store.append(id, [event])
        return
    for _ in range(_ATTEMPTS):
        state = await access.services.states.state_of(record)
        if not is_allowed(state):
            raise PermissionDenied(
                f"{field}: only a key with the scope approve may make the rules of a conversation wider",
                hint="ask somebody whose key has the scope approve",
            )
        try:
            # With the head that was compared: a stricter rule that was recorded since then must be compared as well.
            await access.store.append(id, [event], expected_head=state.head)
        except Conflict:
            record = await access.store.get(id)
            continue
        return
    raise Conflict("the conversation is changing", hint="try again")


def _read_default(access: Access) -> Policy:
    return policy_named(access.services.settings.policy or "allow")


def _read_policy(state: State, default: Policy) -> Policy:
    """Return the policy in force: the narrower of the recorded and the operator's. In quarantine every call waits."""
    if state.quarantined:
        return AlwaysConfirm()
    recorded = state.policies.get("policy")
    return default if recorded is None else narrower(policy_from_json(recorded), default)
