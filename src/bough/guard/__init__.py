"""What is checked between a tool call and its execution, and the limits of a run.

Names are loaded on first use; neither the shell grammar nor the event model is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.guard.allow import AllowList as AllowList
    from bough.guard.allow import allow_list_from_json as allow_list_from_json
    from bough.guard.analyzer import RuleAnalyzer as RuleAnalyzer
    from bough.guard.analyzer import SecurityAnalyzer as SecurityAnalyzer
    from bough.guard.analyzer import analyzer_from_json as analyzer_from_json
    from bough.guard.budget import Budget as Budget
    from bough.guard.confirmation_policy import AlwaysConfirm as AlwaysConfirm
    from bough.guard.confirmation_policy import ConfirmationPolicy as ConfirmationPolicy
    from bough.guard.confirmation_policy import ConfirmRisky as ConfirmRisky
    from bough.guard.confirmation_policy import NeverConfirm as NeverConfirm
    from bough.guard.confirmation_policy import Policy as Policy
    from bough.guard.confirmation_policy import policy_from_json as policy_from_json
    from bough.guard.confirmation_policy import policy_named as policy_named
    from bough.guard.guard import CallRules as CallRules
    from bough.guard.guard import Guard as Guard
    from bough.guard.guard import Review as Review
    from bough.guard.hook_trust import find_hooks as find_hooks
    from bough.guard.hook_verdict import HookAnswer as HookAnswer
    from bough.guard.hook_verdict import HookVerdict as HookVerdict
    from bough.guard.hooks import Hook as Hook
    from bough.guard.hooks import HookInput as HookInput
    from bough.guard.hooks import HookKind as HookKind
    from bough.guard.hooks import HookSet as HookSet
    from bough.guard.limits import Limits as Limits
    from bough.guard.limits import limits_from_json as limits_from_json
    from bough.guard.masker import Masker as Masker
    from bough.guard.masker import MaskStream as MaskStream
    from bough.guard.request import ToolRequest as ToolRequest
    from bough.guard.risk import Assessment as Assessment
    from bough.guard.risk import Risk as Risk
    from bough.guard.risk import RiskFinding as RiskFinding
    from bough.guard.secrets import EnvSecret as EnvSecret
    from bough.guard.secrets import FileSecret as FileSecret
    from bough.guard.secrets import Secrets as Secrets
    from bough.guard.secrets import secrets_from_json as secrets_from_json
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.guard.allow": "AllowList allow_list_from_json",
            "bough.guard.analyzer": "RuleAnalyzer SecurityAnalyzer analyzer_from_json",
            "bough.guard.budget": "Budget",
            "bough.guard.confirmation_policy": (
                "AlwaysConfirm ConfirmRisky ConfirmationPolicy NeverConfirm Policy policy_from_json policy_named"
            ),
            "bough.guard.guard": "CallRules Guard Review",
            "bough.guard.hook_trust": "find_hooks",
            "bough.guard.hook_verdict": "HookAnswer HookVerdict",
            "bough.guard.hooks": "Hook HookInput HookKind HookSet",
            "bough.guard.limits": "Limits limits_from_json",
            "bough.guard.masker": "MaskStream Masker",
            "bough.guard.request": "ToolRequest",
            "bough.guard.risk": "Assessment Risk RiskFinding",
            "bough.guard.secrets": "EnvSecret FileSecret Secrets secrets_from_json",
        },
    )
