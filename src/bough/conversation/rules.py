"""The rules of a conversation. They are recorded at its start, inherited by forks, and never widened by opening it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict, Unpack, cast
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation.log.condenser import (
    Condenser,
    NoCondenser,
    condenser_from_json,
    condenser_to_json,
)
from bough.conversation.log.state import State
from bough.errors import InvalidInput
from bough.events.model import Event, StateChanged
from bough.guard import (
    AllowList,
    AlwaysConfirm,
    Budget,
    CallRules,
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
    find_hooks,
    limits_from_json,
    policy_from_json,
    policy_named,
)
from bough.guard.budget import budgets_from_json, budgets_to_json, join_budgets, parse_budgets
from bough.guard.hook_file import load_hooks
from bough.guard.limits import Per, narrower
from bough.settings import Settings
from bough.skills import TrustStore
from bough.types import JsonObject, require_type


class GivenRules(TypedDict, total=False):
    """The rules as arguments of a conversation; each has a default.

    Attributes:
        confirmation_policy: Decides which tool calls wait for a person. The default is the policy of the settings.
        security_analyzer: Rates the risk of calls.
        hooks: Commands and functions that review calls. None by default: hook files are not read.
        allow_list: The only calls that are permitted; all calls by default.
        condenser: Shortens what the model is shown; nothing is condensed by default.
        secrets: Values for scripts that declare them; masked wherever they occur.
        limits: Limits of each run or of the conversation; a sequence sets both. See `Limits.per`.
        budget: Amounts that the conversation, its forks, its sub-agents and other conversations spend together. A
            conversation keeps its budgets. Give `Budget` an id if a program opens the conversation again: without one,
            each start adds another budget.
        keep_files: `False` keeps no files of the workspace, so that the conversation's changes cannot be taken back.
    """

    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer | None
    hooks: HookSet | None
    allow_list: AllowList | None
    condenser: Condenser | None
    secrets: Secrets | None
    limits: Limits | Sequence[Limits] | None
    budget: Budget | Sequence[Budget] | None
    keep_files: bool | None


class _Argument(NamedTuple):
    """One key of `GivenRules`.

    Attributes:
        field: The field of `Rules` that it sets; `limits` may also set `total`.
        kind: The classes of its values, or the name of a method that a value must have.
    """

    field: str
    kind: type | tuple[type, ...] | str
    hint: str


_LIMITS_HINT = "give Limits(…), or a sequence with one for each `per`"
_ARGUMENTS: Mapping[str, _Argument] = {
    "confirmation_policy": _Argument(
        "policy", (AlwaysConfirm, NeverConfirm, ConfirmRisky), "for example AlwaysConfirm()"
    ),
    "security_analyzer": _Argument("analyzer", "analyze", "for example RuleAnalyzer()"),
    "hooks": _Argument("hooks", HookSet, "for example HookSet([Hook(…)])"),
    "allow_list": _Argument("allow_list", AllowList, "for example AllowList.of('read_file')"),
    "condenser": _Argument("condenser", "condense", "for example SummarizingCondenser()"),
    "secrets": _Argument("secrets", Secrets, 'for example Secrets({"TOKEN": EnvSecret("TOKEN")})'),
    "limits": _Argument("limits", (Limits, list, tuple), _LIMITS_HINT),
    "budget": _Argument("budgets", (Budget, list, tuple), "give Budget(…), or a sequence of them"),
    "keep_files": _Argument("keep_files", bool, "give True or False"),
}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check rules that were passed by name, because a misspelled rule would silently not apply.

    Raises:
        InvalidInput: A name is unknown, or a value is of the wrong kind.
    """
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            similar_names = get_close_matches(name, _ARGUMENTS, 1)
            suggestion = f"did you mean `{similar_names[0]}`?" if similar_names else f"known: {', '.join(_ARGUMENTS)}"
            raise InvalidInput(f"a conversation has no rule named {name!r}", hint=suggestion)
        _, kind, hint = _ARGUMENTS[name]
        if value is None:
            continue
        if not isinstance(kind, str):
            require_type(value, kind, name, hint)
        elif not hasattr(value, kind):
            raise InvalidInput(f"{name}: a {type(value).__name__} has no method {kind}", hint=hint)


UNBOUNDED = Limits(steps=None, tasks=None, depth=None, unpriced="allow")
"""A run without limits."""

NO_TOTAL = Limits(per="conversation", unpriced="allow")
"""A conversation without limits, except those of its runs."""


@dataclass(frozen=True, kw_only=True)
class Rules(CallRules):
    """The rules of one conversation: rules of its calls, limits, condenser and secrets.

    If the policy depends on risks and no analyzer is given, the analyzer is a `RuleAnalyzer`.

    Attributes:
        limits: Limits of one run.
        total: Limits of the conversation and its fork ancestors together.
        condenser: Shortens what the model is shown.
        secrets: Values for scripts. A log records only their names.
        budgets: Budgets that the conversation shares with others. A log records only their ids.
        keep_files: Whether the files of its workspace are kept, if the settings allow it too.
    """

    limits: Limits = UNBOUNDED
    total: Limits = NO_TOTAL
    condenser: Condenser = field(default_factory=NoCondenser)
    secrets: Secrets = field(default_factory=Secrets)
    budgets: tuple[Budget, ...] = ()
    keep_files: bool = True

    def __post_init__(self) -> None:
        if self.analyzer is None and isinstance(self.policy, ConfirmRisky):
            object.__setattr__(self, "analyzer", RuleAnalyzer())

    @classmethod
    def build(cls, settings: Settings, **arguments: Unpack[GivenRules]) -> Rules:
        """Return the rules that the arguments set. Without `limits`, runs are unlimited.

        Raises:
            InvalidInput: An argument is unknown or of the wrong kind, or two limits have the same `per`.
        """
        fields = _parse_arguments(arguments)
        if "policy" not in fields:
            fields["policy"] = _read_default_policy(settings)
        return cls(**fields)

    def override(self, arguments: Mapping[str, Any]) -> Self:
        """Return these rules with the given arguments replaced. An argument that is None changes nothing.

        The result may be wider than these rules. Pass it to `narrow` to prevent that.

        Raises:
            InvalidInput: See `build`.
        """
        return replace(self, **_parse_arguments(arguments))

    def narrow_by_agent(self, spec: AgentSpec | None) -> Rules:
        """Return these rules, narrowed by the rules of the agent, if it has any."""
        spec_rules = GivenRules() if spec is None else read_spec_rules(spec)
        if not spec_rules:
            return self
        # With the same secrets: an agent sets none, and `narrow` would withhold all secrets that one side lacks.
        return self.narrow(replace(Rules().override(spec_rules), secrets=self.secrets))

    def with_default_bounds(self) -> Rules:
        """Return these rules with the default limits of a run, if its runs are unlimited."""
        return replace(self, limits=Limits()) if self.limits == UNBOUNDED else self

    def as_arguments(self) -> GivenRules:
        """Return the arguments with which `build` returns equal rules."""
        arguments = {name: getattr(self, argument.field) for name, argument in _ARGUMENTS.items()}
        return cast("GivenRules", {**arguments, "limits": (self.limits, self.total)})

    def guard(self, cid: UUID, workspace: Path) -> Guard:
        """Return the guard of a conversation in its workspace."""
        masker = self.secrets.masker() if self.secrets.names else None
        return Guard(self, conversation_id=str(cid), workspace=workspace, masker=masker)

    def narrow(self, other: CallRules) -> Self:
        """Return rules that forbid everything that these rules or `other` forbid, with the condenser of these rules."""
        narrowed = super().narrow(other)
        if not isinstance(other, Rules):
            return narrowed
        return replace(
            narrowed,
            limits=narrower(self.limits, other.limits),
            total=narrower(self.total, other.total),
            secrets=self.secrets.narrow(other.secrets.names),
            budgets=join_budgets(self.budgets, other.budgets) if self.budgets or other.budgets else (),
            keep_files=self.keep_files and other.keep_files,
        )

    def to_json(self) -> JsonObject:
        """Return the rules as the log records them, without values of secrets. Callers must not change the result."""
        return dict(self._json)

    @cached_property
    def _json(self) -> JsonObject:
        return {
            **super().to_json(),
            "limits": self.limits.to_json(),
            **({"total": self.total.to_json()} if self.total != NO_TOTAL else {}),
            **({"budgets": budgets_to_json(self.budgets)} if self.budgets else {}),
            **({} if self.keep_files else {"keep_files": False}),
            "condenser": condenser_to_json(self.condenser),
            "secrets": list(self.secrets.names),
        }

    @classmethod
    def from_json(cls, recorded: JsonObject, local: Rules, *, is_foreign: bool = False) -> Rules:
        """Return the recorded rules of a conversation, narrowed by `local`.

        Hooks, secrets, and analyzers that are code come from `local`, because a log has only their names.

        Args:
            is_foreign: Whether the log comes from another store. Then its hooks, secrets and budgets are ignored, and
                its analyzer if it cannot be rebuilt.

        Raises:
            InvalidInput: The record names hooks or an analyzer that `local` lacks.
        """
        if "policy" not in recorded:
            return local
        if not is_foreign:
            _require_hooks(recorded.get("hooks"), local.hooks)
        limits, total = read_recorded_limits(recorded)
        condenser = condenser_from_json(recorded.get("condenser"), local.condenser)
        rules = cls(
            policy=policy_from_json(recorded["policy"]),
            analyzer=_read_analyzer(recorded.get("analyzer"), local.analyzer, is_foreign=is_foreign),
            hooks=local.hooks,
            allow_list=allow_list_from_json(recorded.get("allow_list")),
            limits=limits,
            total=total,
            condenser=condenser,
            secrets=local.secrets,
            # Not the budgets of another store: the same id may belong to somebody else's budget in this store.
            budgets=budgets_from_json(recorded["budgets"]) if recorded.get("budgets") and not is_foreign else (),
            keep_files=recorded.get("keep_files") is not False,
        )
        secrets = local.secrets.narrow(() if is_foreign else recorded.get("secrets") or ())
        return replace(rules.narrow(local), secrets=secrets)

    @classmethod
    def from_state(cls, state: State, local: Rules) -> Rules:
        """Return the rules of a log, narrowed by `local`. In quarantine every call waits, and scripts get no secrets.

        Raises: see `from_json`.
        """
        if not state.quarantined:
            return cls.from_json(state.policies, local)
        without_secrets = replace(local, secrets=Secrets())
        return cls.from_json(state.policies, without_secrets, is_foreign=True).narrow(CallRules(policy=AlwaysConfirm()))


LIMITS_FIELDS: Mapping[Per, str] = {"run": "limits", "conversation": "total"}
"""The field of `Rules` for each `Limits.per`."""


def _parse_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Rules` that arguments set. Raises: see `Rules.build`."""
    check_arguments(arguments)
    fields = {_ARGUMENTS[name].field: value for name, value in arguments.items() if value is not None}
    limits = fields.pop("limits", None)
    if "budgets" in fields:
        fields["budgets"] = parse_budgets(fields["budgets"])
    return fields | split_limits(limits)


def split_limits(limits: Limits | Sequence[Limits] | None) -> dict[str, Limits]:
    """Return limits by the field of `Rules` that they set: `limits` for a run, `total` for the conversation.

    Raises:
        InvalidInput: Two have the same `per`, or a value is not a `Limits`.
    """
    values = (limits,) if isinstance(limits, Limits) else tuple(limits or ())
    if not all(isinstance(value, Limits) for value in values):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"invalid limits {limits!r}", hint=_LIMITS_HINT)
    by_per = {value.per: value for value in values}
    if len(by_per) < len(values):
        raise InvalidInput(
            "two limits have the same per", hint="give one with per='run' and one with per='conversation'"
        )
    return {LIMITS_FIELDS[per]: by_per[per] for per in LIMITS_FIELDS if per in by_per}


def read_recorded_limits(recorded: JsonObject) -> tuple[Limits, Limits]:
    """Return the limits of a run and of the conversation in recorded rules.

    Raises:
        InvalidInput: The recorded limits do not have the form that `Rules.to_json` writes.
    """
    limits = limits_from_json(recorded.get("limits") or {})
    total = limits_from_json(recorded["total"]) if recorded.get("total") else NO_TOTAL
    if limits.per == "conversation":  # written by a version without limits of a run
        return Limits(), narrower(limits, total)
    return limits, total


_RECORDED_WHEN_STRICTER = ("policy", "analyzer", "allow_list", "limits", "total", "budgets", "keep_files")
"""Rules to record if they are stricter. Hooks are not recorded: every process would then have to pass them in."""


class RulesInForce:
    """The rules of an open conversation: the rules of its log, narrowed by the rules of this object.

    It is called at every step and before every effect, so that a change by another process applies at once.

    Attributes:
        local: Rules of this object only: hooks, secrets and analyzers that a log only names, and stricter rules.
    """

    def __init__(self, state: State, local: Rules) -> None:
        self.local = local
        self._state = state
        self._rules = local
        self._sources: tuple[JsonObject, bool, Rules] | None = None

    def __call__(self) -> Rules:
        """Return the rules. O(1) while neither the log's rules nor `local` have changed.

        Raises:
            InvalidInput: The log names hooks or an analyzer that `local` lacks.
        """
        sources = (self._state.policies, self._state.quarantined, self.local)
        if sources != self._sources:  # tuples compare by identity first
            self._rules, self._sources = Rules.from_state(self._state, self.local), sources
        return self._rules

    def make_events(self) -> list[Event]:
        """Return an event with the rules that are stricter than those of the log, so that every process applies them.

        Empty if there are none. Secrets and the condenser do not restrict calls and are not compared.
        """
        recorded = self._state.policies
        if self._state.quarantined or "policy" not in recorded:
            return []  # the restrictions of quarantine end with the adoption, so they are not recorded
        rules = self().to_json()
        stricter = {
            name: rules[name] for name in _RECORDED_WHEN_STRICTER if name in rules and rules[name] != recorded.get(name)
        }
        return [StateChanged(changes={"policies": stricter})] if stricter else []


def read_spec_rules(spec: AgentSpec) -> GivenRules:
    """Return the rules that an agent sets for its conversations."""
    rules = {name: getattr(spec, name) for name in ("limits", "confirmation_policy", "allow_list")}
    return cast("GivenRules", {name: rule for name, rule in rules.items() if rule is not None})


def read_settings_rules(settings: Settings, workspace: Path | None = None) -> GivenRules:
    """Return the rules of a person's settings: the policy by name, and the hooks of the home folder.

    Args:
        workspace: The hooks of this folder are added if a person has trusted them. None adds no hooks.

    Raises:
        InvalidInput: No policy has that name, or a hook file in use is invalid.
    """
    home = settings.home
    if workspace is None:
        hooks = load_hooks(home / "hooks.json")
    else:
        hooks = find_hooks(home=home, project=workspace, trust=TrustStore(home))
    return {"confirmation_policy": _read_default_policy(settings), "hooks": hooks}


def _read_default_policy(settings: Settings) -> Policy:
    return policy_named("allow" if settings.policy is None else settings.policy)


def _require_hooks(recorded: Any, hooks: HookSet) -> None:
    missing = hooks.find_missing(recorded)
    if missing:
        names = ", ".join(str(hook.get("command") or hook.get("function")) for hook in missing)
        raise InvalidInput(
            f"the conversation was started with hooks that are not available here: {names}",
            hint="give the hooks= with which it was started, or fork it with other rules",
            details={"hooks": missing},
        )


def _read_analyzer(recorded: Any, analyzer: SecurityAnalyzer | None, *, is_foreign: bool) -> SecurityAnalyzer | None:
    """Return the recorded analyzer: `analyzer` if it has the same record, else rebuilt from the record."""
    if recorded is None or (analyzer is not None and analyzer.to_json() == recorded):
        return analyzer
    try:
        return analyzer_from_json(recorded)
    except InvalidInput as error:
        if is_foreign:
            return analyzer
        kind: Any = cast("JsonObject", recorded).get("kind") if isinstance(recorded, dict) else recorded
        raise InvalidInput(
            f"the conversation was started with the analyzer {kind!r}, and its log has only the name",
            hint="pass the security_analyzer= that it was started with",
        ) from error
