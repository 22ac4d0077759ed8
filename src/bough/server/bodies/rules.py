"""The rules of a conversation in a body: policy, analyzer, limits, allow-list, condenser; in our or OpenHands' form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from bough.conversation.log.condenser import Condenser, NoCondenser, SummarizingCondenser, condenser_from_json
from bough.errors import InvalidInput
from bough.guard import (
    AllowList,
    Budget,
    Limits,
    Policy,
    RuleAnalyzer,
    SecurityAnalyzer,
    analyzer_from_json,
    policy_from_json,
)
from bough.server.bodies.base import MAX_SEQ, Flag, Form, Integer, Number, is_empty
from bough.server.bodies.openhands_agents import RULE_KINDS
from bough.types import JsonObject

_POLICY_FIELDS = ("kind", "threshold", "confirm_unknown")


class PolicyForm(Form):
    """Decides which calls wait for a person."""

    kind: Literal["AlwaysConfirm", "NeverConfirm", "ConfirmRisky"]
    threshold: Literal["LOW", "MEDIUM", "HIGH"] | None = None
    confirm_unknown: Flag | None = None

    def as_json(self) -> JsonObject:
        """Return the policy as `policy_from_json` reads it."""
        return self.model_dump(exclude_none=True)


class LimitsForm(Form):
    """Limits of a run. A missing field has its default; null means no limit."""

    requests: Integer | None = Field(default=None, ge=0)
    input_tokens: Integer | None = Field(default=None, ge=0)
    output_tokens: Integer | None = Field(default=None, ge=0)
    total_tokens: Integer | None = Field(default=None, ge=0)
    cost_usd: Number | None = Field(default=None, ge=0)
    wall_seconds: Number | None = Field(default=None, ge=0)
    steps: Integer | None = Field(default=None, ge=0)
    tasks: Integer | None = Field(default=None, ge=0)
    depth: Integer | None = Field(default=None, ge=0)
    unpriced: Literal["refuse", "allow"] = "refuse"

    def limits(self) -> Limits:
        """Return the limits of the guard."""
        return Limits(**self.model_dump(exclude_unset=True))


BudgetId = Annotated[str, StringConstraints(pattern=r"^[\w.:@-]{1,100}$")]
"""The id of a budget, which is the tenant's own: two tenants may use the same one."""


class BudgetBounds(Form):
    """Bounds of a budget; at least one."""

    usd: Number | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    tokens: Integer | None = Field(default=None, gt=0, le=MAX_SEQ)
    requests: Integer | None = Field(default=None, gt=0, le=MAX_SEQ)

    def bounds(self) -> dict[str, Any]:
        """Return the bounds that are set, by name."""
        return {name: getattr(self, name) for name in BOUNDS if getattr(self, name) is not None}


class BudgetForm(BudgetBounds):
    """A budget that conversations share. Without bounds, it must exist; with bounds, it is created if it does not."""

    id: BudgetId


BOUNDS = ("usd", "tokens", "requests")


def make_budget(owner: str | None, budget: str | BudgetForm) -> Budget:
    """Return the budget that a body names, with its id in the store: `tenant/id`, or just `id` for the tenant `local`.

    Args:
        owner: The tenant; None is `local`.
    """
    form = budget if isinstance(budget, BudgetForm) else BudgetForm(id=budget)
    return Budget(id=store_id(owner, form.id), **form.bounds())


def store_id(owner: str | None, id: str) -> str:
    """Return the id that the store has for a tenant's budget. Tenants' ids have no `/`, so none reaches another's."""
    return id if owner is None else f"{owner}/{id}"


AllowEntry = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
AllowEntries = Annotated[list[AllowEntry], Field(max_length=200)]
AllowForm = AllowEntries | Annotated[list[AllowEntries], Field(max_length=20)]
"""The allowed calls: `["Read", "Bash(git:*)"]`, or several such lists, each of which must allow a call."""


def read_allow_list(allow_list: list[str] | list[list[str]]) -> AllowList:
    """Return the allow-list of a body.

    Raises:
        InvalidInput: An entry is neither `Tool` nor `Tool(pattern)`.
    """
    lists = [item for item in allow_list if not isinstance(item, str)]
    if not lists:  # one list, which allows nothing if it is empty
        lists = [[item for item in allow_list if isinstance(item, str)]]
    if any(not AllowList.of(entry).lists[0] for entries in lists for entry in entries):
        raise InvalidInput("allow_list: an entry names no tool", hint='for example ["Read", "Bash(git:*)"]')
    return AllowList(tuple(AllowList.of(*entries).lists[0] for entries in lists))


class CondenserForm(Form):
    """How the model's context is shortened. The model of the conversation writes the summaries."""

    kind: Literal["SummarizingCondenser", "KeepFirstCondenser"]
    max_events: Integer = Field(default=120, ge=4, le=MAX_SEQ)
    keep_first: Integer = Field(default=2, ge=0, le=MAX_SEQ)
    max_tokens: Integer | None = Field(default=None, ge=1, le=MAX_SEQ)

    def condenser(self) -> Condenser:
        """Return the condenser of a conversation.

        Raises:
            InvalidInput: `keep_first` is too large for `max_events`, or the kind has no `max_tokens`.
        """
        if self.kind == "KeepFirstCondenser" and self.max_tokens is not None:
            raise InvalidInput(
                "condenser.max_tokens: KeepFirstCondenser counts messages, not tokens", hint="leave it out"
            )
        recorded = self.model_dump(exclude=set() if self.kind == "SummarizingCondenser" else {"max_tokens"})
        return condenser_from_json(recorded, NoCondenser())


def parse_policy(policy: JsonObject) -> Policy:
    """Return the policy that a body describes. The error does not repeat the input.

    Raises:
        InvalidInput: The policy is unknown.
    """
    try:
        return policy_from_json(policy)
    except InvalidInput as error:
        raise InvalidInput("confirmation_policy: no such policy", hint=error.hint) from None


def parse_analyzer(analyzer: JsonObject) -> SecurityAnalyzer:
    """Return the analyzer that a body describes. The error does not repeat the input.

    Raises:
        InvalidInput: The analyzer is unknown.
    """
    try:
        return analyzer_from_json(analyzer)
    except InvalidInput as error:
        raise InvalidInput("security_analyzer: no such analyzer", hint=error.hint) from None


def parse_openhands_policy(policy: JsonObject | None) -> Policy:
    """Return the policy of a body of OpenHands' client. It sends a threshold even for policies that have none.

    Raises:
        InvalidInput: The policy is unknown.
    """
    fields = policy or {}
    policy_fields = {name: fields[name] for name in _POLICY_FIELDS if name in fields}
    if policy_fields.get("kind") != "ConfirmRisky":
        policy_fields = {"kind": policy_fields.get("kind")}
    if fields.keys() - set(_POLICY_FIELDS):
        raise InvalidInput("policy: unknown fields", hint="kind, threshold, confirm_unknown")
    return parse_policy(policy_fields)


def parse_openhands_analyzer(analyzer: JsonObject | None) -> SecurityAnalyzer:
    """Return the analyzer of a body of OpenHands' client.

    Raises:
        InvalidInput: The analyzer is unknown.
    """
    if (analyzer or {}).get("kind") in (*RULE_KINDS, "RuleAnalyzer"):
        return RuleAnalyzer()
    raise InvalidInput("security_analyzer.kind: no such analyzer", hint=f"one of: {', '.join(RULE_KINDS)}")


def parse_openhands_condenser(condenser: JsonObject | None) -> Condenser | None:
    """Return the condenser of an agent of OpenHands' client; None if it has none.

    Raises:
        InvalidInput: The condenser is unknown, or a value is invalid.
    """
    if condenser is None or is_empty(condenser) or condenser.get("kind") in ("NoOpCondenser", "NoOp"):
        return None
    if condenser.get("kind") != "LLMSummarizingCondenser":
        raise InvalidInput("agent.condenser.kind: no such condenser", hint="LLMSummarizingCondenser or NoOpCondenser")
    size, first, tokens = condenser.get("max_size", 240), condenser.get("keep_first", 2), condenser.get("max_tokens")
    if not all(isinstance(value, int) for value in (size, first)):
        raise InvalidInput("agent.condenser: max_size and keep_first must be integers", hint="leave them out")
    return SummarizingCondenser(max_events=size, keep_first=first, **({} if tokens is None else {"max_tokens": tokens}))
