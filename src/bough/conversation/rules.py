"""What a conversation may do and use: recorded at its start, kept by its forks, never widened by opening it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack
from uuid import UUID

from bough.config import Settings
from bough.conversation.log.condenser import Condenser, KeepFirstCondenser, NoCondenser, SummarizingCondenser
from bough.conversation.log.state import State
from bough.errors import InvalidInput
from bough.guard import (
    AllowList,
    ConfirmRisky,
    Guard,
    HookSet,
    Limits,
    NeverConfirm,
    Policy,
    RuleAnalyzer,
    Secrets,
    SecurityAnalyzer,
    allow_list_from_json,
    analyzer_from_json,
    limits_from_json,
    policy_from_json,
    policy_named,
)
from bough.guard.limits import narrower as narrower_limits
from bough.guard.policy import narrower as narrower_policy
from bough.types import JsonObject


class GivenRules(TypedDict, total=False):
    """What a caller may say of the rules; each has a default.

    Attributes:
        confirmation_policy: Which tool calls wait for a person; the settings' one by default.
        security_analyzer: Says how risky a call is.
        hooks: Commands and functions that are asked; none are read from files unless given.
        allow_list: Which calls may be made at all; all by default.
        condenser: Keeps what the model sees short; nothing is condensed by default.
        secrets: What scripts that declare them are given; masked wherever they turn up.
        limits: Bounds of each run.
    """

    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer | None
    hooks: HookSet | None
    allow_list: AllowList | None
    condenser: Condenser | None
    secrets: Secrets | None
    limits: Limits | None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one conversation.

    Attributes:
        policy: Which calls wait for a person.
        analyzer: Says how risky a call is; a policy that asks for risks has rules where none is given.
        allow_list: Which calls may be made at all; without entries, all.
        limits: Bounds of one run.
        condenser: Keeps what the model sees short.
        secrets: What scripts may be given by name; recorded by name only.
    """

    policy: Policy = field(default_factory=NeverConfirm)
    analyzer: SecurityAnalyzer | None = None
    hooks: HookSet = field(default_factory=HookSet)
    allow_list: AllowList = field(default_factory=AllowList)
    limits: Limits = field(default_factory=Limits)
    condenser: Condenser = field(default_factory=NoCondenser)
    secrets: Secrets = field(default_factory=Secrets)

    def __post_init__(self) -> None:
        if self.analyzer is None and isinstance(self.policy, ConfirmRisky):
            object.__setattr__(self, "analyzer", RuleAnalyzer())

    @classmethod
    def given(cls, settings: Settings, **given: Unpack[GivenRules]) -> Rules:
        """Return the rules that a caller asks for."""
        return cls(
            policy=given.get("confirmation_policy") or policy_named(settings.policy),
            analyzer=given.get("security_analyzer"),
            hooks=given.get("hooks") or HookSet(),
            allow_list=given.get("allow_list") or AllowList(),
            condenser=given.get("condenser") or NoCondenser(),
            secrets=given.get("secrets") or Secrets(),
            limits=given.get("limits") or Limits(),
        )

    def as_given(self) -> GivenRules:
        """Return the rules by the names that a caller gives them by."""
        return GivenRules(
            confirmation_policy=self.policy,
            security_analyzer=self.analyzer,
            hooks=self.hooks,
            allow_list=self.allow_list,
            condenser=self.condenser,
            secrets=self.secrets,
            limits=self.limits,
        )

    def guard(self, cid: UUID, workspace: Path) -> Guard:
        """Return the guard of a conversation in its workspace."""
        return Guard(
            conversation_id=str(cid),
            workspace=workspace,
            hooks=self.hooks,
            analyzer=self.analyzer,
            policy=self.policy,
            allow_list=self.allow_list,
            masker=self.secrets.masker() if self.secrets.names else None,
        )

    def to_json(self) -> JsonObject:
        """Return what the log records: never a secret's value."""
        return {
            "policy": self.policy.to_json(),
            "analyzer": None if self.analyzer is None else self.analyzer.to_json(),
            "hooks": self.hooks.to_json(),
            "allow_list": self.allow_list.to_json(),
            "limits": self.limits.to_json(),
            "condenser": _condenser_json(self.condenser),
            "secrets": list(self.secrets.names),
        }

    def narrowed(self, other: Rules) -> Rules:
        """Return these rules with everything that `other` forbids forbidden as well."""
        guard = self.guard(UUID(int=0), Path()).narrowed(other.guard(UUID(int=0), Path()))
        return replace(
            self,
            policy=narrower_policy(self.policy, other.policy),
            analyzer=guard.analyzer,
            hooks=guard.hooks,
            allow_list=guard.allow_list,
            limits=narrower_limits(self.limits, other.limits),
            secrets=self.secrets.narrowed(other.secrets.names),
        )

    @classmethod
    def resumed(cls, recorded: JsonObject, given: Rules) -> Rules:
        """Return the rules of a conversation that is opened again: the recorded ones, narrowed by what is given.

        Hooks, an analyzer that is no data, and secrets have to be given again: a log only names them, and a log may
        come from anywhere.

        Raises:
            InvalidInput: The record names hooks or an analyzer that were not given.
        """
        if "policy" not in recorded:
            return given
        _require_hooks(recorded.get("hooks") or [], given.hooks)
        found = cls(
            policy=policy_from_json(recorded["policy"]),
            analyzer=_analyzer(recorded.get("analyzer"), given.analyzer),
            hooks=given.hooks,
            allow_list=allow_list_from_json(recorded.get("allow_list")),
            limits=limits_from_json(recorded.get("limits") or {}),
            condenser=_condenser(recorded.get("condenser"), given.condenser),
            secrets=given.secrets,
        )
        kept = given.secrets.narrowed(recorded.get("secrets") or ())
        return replace(found.narrowed(given), condenser=found.condenser, secrets=kept)


class RulesInForce:
    """The rules of a conversation now: what its log says, narrowed by what this object was given.

    Called at every step and before every effect; parsed anew only when the recorded rules have changed.
    """

    def __init__(self, state: State, given: Rules) -> None:
        self._state = state
        self._given = given
        self._recorded: JsonObject | None = None
        self._rules = given

    def __call__(self) -> Rules:
        """Return them. O(1) while the log says the same.

        Raises:
            InvalidInput: The log names hooks or an analyzer that were not given here.
        """
        recorded = self._state.policies
        if recorded is not self._recorded:
            if recorded != self._recorded:
                self._rules = Rules.resumed(recorded, self._given)
            self._recorded = recorded
        return self._rules


def _require_hooks(recorded: list[Any], given: HookSet) -> None:
    here: list[Any] = given.to_json() or []
    missing = [hook for hook in recorded if hook not in here]
    if missing:
        names = ", ".join(str(hook.get("command") or hook.get("function")) for hook in missing)
        raise InvalidInput(
            f"the conversation was started with hooks that are not here: {names}",
            hint="give hooks= as it was started, or fork it with other rules",
            details={"hooks": missing},
        )


def _analyzer(recorded: Any, given: SecurityAnalyzer | None) -> SecurityAnalyzer | None:
    if recorded is None or (given is not None and given.to_json() == recorded):
        return given
    try:
        return analyzer_from_json(recorded)
    except InvalidInput as error:
        raise InvalidInput(
            f"the conversation was started with the analyzer {recorded.get('kind')!r}, which its record only names",
            hint="give security_analyzer= as it was started",
        ) from error


def _condenser_json(condenser: Condenser) -> JsonObject | None:
    match condenser:
        case KeepFirstCondenser():
            return {"kind": "KeepFirstCondenser", **asdict(condenser)}
        case SummarizingCondenser():
            bounds = {name: getattr(condenser, name) for name in ("max_events", "max_tokens", "keep_first")}
            return {"kind": "SummarizingCondenser", **bounds}
        case _:
            return None


def _condenser(recorded: Any, given: Condenser) -> Condenser:
    """Return the given one, or the recorded one made anew; its summaries are then the conversation's own model's."""
    if not isinstance(given, NoCondenser) or not isinstance(recorded, dict):
        return given
    fields: dict[str, Any] = dict(recorded)  # pyright: ignore[reportUnknownArgumentType]
    kinds = {"KeepFirstCondenser": KeepFirstCondenser, "SummarizingCondenser": SummarizingCondenser}
    kind = kinds.get(fields.pop("kind", ""))
    return given if kind is None else kind(**fields)
