"""Confirmation policies and security analyzers of OpenHands as ours."""

from __future__ import annotations

from typing import Any

from bough.errors import InvalidInput
from bough.guard import Policy, RuleAnalyzer, SecurityAnalyzer
from bough.server.conversations.policies import parse_policy
from bough.server.forms.peer import RULE_KINDS
from bough.types import JsonObject

_FIELDS = ("kind", "threshold", "confirm_unknown")


def policy_of(given: JsonObject | None) -> Policy:
    """Return the policy of a body.

    Raises:
        InvalidInput: It is none of the three.
    """
    data = {name: value for name, value in (given or {}).items() if name in _FIELDS}
    if data.get("kind") != "ConfirmRisky":
        data = {"kind": data.get("kind")}
    if len((given or {}).keys() - set(_FIELDS)) > 0:
        raise InvalidInput("policy: unknown fields", hint="kind, threshold, confirm_unknown")
    return parse_policy(data)


def analyzer_of(given: JsonObject | None) -> SecurityAnalyzer:
    """Return the analyzer of a body.

    Raises:
        InvalidInput: We have none of that kind.
    """
    kind: Any = (given or {}).get("kind")
    if kind in RULE_KINDS or kind == "RuleAnalyzer":
        return RuleAnalyzer()
    raise InvalidInput("security_analyzer.kind: no such analyzer", hint=f"one of: {', '.join(RULE_KINDS)}")
