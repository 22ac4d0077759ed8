"""What may happen: everything that stands between a tool call and its execution, and what a run may use.

Names are loaded on first use; neither the shell grammar nor the event model is imported before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.guard.allow import AllowList, allow_list_from_json
    from bough.guard.analyzer import RuleAnalyzer, SecurityAnalyzer, analyzer_from_json
    from bough.guard.confirmation_policy import (
        AlwaysConfirm,
        ConfirmationPolicy,
        ConfirmRisky,
        NeverConfirm,
        Policy,
        policy_from_json,
        policy_named,
    )
    from bough.guard.guard import Guard, Review
    from bough.guard.hook_trust import find_hooks
    from bough.guard.hook_verdict import HookAnswer, HookVerdict
    from bough.guard.hooks import Hook, HookInput, HookKind, HookSet
    from bough.guard.limits import Limits, limits_from_json
    from bough.guard.masker import Masker, MaskStream
    from bough.guard.request import ToolRequest
    from bough.guard.risk import Assessment, Risk, RiskFinding
    from bough.guard.secrets import EnvSecret, FileSecret, Secrets, secrets_from_json

__all__ = [
    "AllowList",
    "AlwaysConfirm",
    "Assessment",
    "ConfirmRisky",
    "ConfirmationPolicy",
    "EnvSecret",
    "FileSecret",
    "Guard",
    "Hook",
    "HookAnswer",
    "HookInput",
    "HookKind",
    "HookSet",
    "HookVerdict",
    "Limits",
    "MaskStream",
    "Masker",
    "NeverConfirm",
    "Policy",
    "Review",
    "Risk",
    "RiskFinding",
    "RuleAnalyzer",
    "Secrets",
    "SecurityAnalyzer",
    "ToolRequest",
    "allow_list_from_json",
    "analyzer_from_json",
    "find_hooks",
    "limits_from_json",
    "policy_from_json",
    "policy_named",
    "secrets_from_json",
]

_HOMES = {
    "AllowList": "allow",
    "AlwaysConfirm": "confirmation_policy",
    "Assessment": "risk",
    "ConfirmRisky": "confirmation_policy",
    "ConfirmationPolicy": "confirmation_policy",
    "EnvSecret": "secrets",
    "FileSecret": "secrets",
    "RiskFinding": "risk",
    "Guard": "guard",
    "Hook": "hooks",
    "HookAnswer": "hook_verdict",
    "HookInput": "hooks",
    "HookKind": "hooks",
    "HookSet": "hooks",
    "HookVerdict": "hook_verdict",
    "Limits": "limits",
    "MaskStream": "masker",
    "Masker": "masker",
    "NeverConfirm": "confirmation_policy",
    "Policy": "confirmation_policy",
    "Review": "guard",
    "Risk": "risk",
    "RuleAnalyzer": "analyzer",
    "Secrets": "secrets",
    "SecurityAnalyzer": "analyzer",
    "ToolRequest": "request",
    "allow_list_from_json": "allow",
    "analyzer_from_json": "analyzer",
    "find_hooks": "hook_trust",
    "limits_from_json": "limits",
    "policy_from_json": "confirmation_policy",
    "policy_named": "confirmation_policy",
    "secrets_from_json": "secrets",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
