"""Which rules a caller may give: none wider than the operator's without the scope `approve`."""

from __future__ import annotations

from bough.conversation.rules import GivenRules
from bough.errors import InvalidInput
from bough.guard import Policy, SecurityAnalyzer, analyzer_from_json, policy_from_json, policy_named
from bough.guard.confirmation_policy import allows_change
from bough.server.access import Access
from bough.server.forms.conversations import NewConversation, read_allow_list
from bough.types import JsonObject


def rules_from(access: Access, body: NewConversation) -> GivenRules:
    """Return the rules of a body.

    Raises:
        PermissionDenied: The policy asks less than the operator's, and the key lacks the scope `approve`.
        InvalidInput: A value does not fit.
    """
    rules = GivenRules()
    if body.confirmation_policy is not None:
        rules["confirmation_policy"] = parse_policy(body.confirmation_policy.as_json())
        require_policy(access, rules["confirmation_policy"])
    if body.security_analyzer is not None:
        rules["security_analyzer"] = parse_analyzer(body.security_analyzer)
    if body.limits is not None:
        rules["limits"] = body.limits.limits()
    if body.allow_list is not None:
        rules["allow_list"] = read_allow_list(body.allow_list)
    if body.condenser is not None:
        rules["condenser"] = body.condenser.condenser()
    return rules


def parse_policy(given: JsonObject) -> Policy:
    """Return the policy that a body describes; what was sent is not repeated.

    Raises:
        InvalidInput: It is none.
    """
    try:
        return policy_from_json(given)
    except InvalidInput as error:
        raise InvalidInput("confirmation_policy: no such policy", hint=error.hint) from None


def parse_analyzer(given: JsonObject) -> SecurityAnalyzer:
    """Return the analyzer that a body describes; what was sent is not repeated.

    Raises:
        InvalidInput: None can be made of it.
    """
    try:
        return analyzer_from_json(given)
    except InvalidInput as error:
        raise InvalidInput("security_analyzer: no such analyzer", hint=error.hint) from None


def require_policy(access: Access, policy: Policy) -> None:
    """Check that the caller may have this policy.

    Raises:
        PermissionDenied: It asks less often than the operator's, and the key lacks the scope `approve`.
    """
    if not allows_change(policy_named(access.services.settings.policy or "allow"), policy):
        access.caller.require("write", "approve")
