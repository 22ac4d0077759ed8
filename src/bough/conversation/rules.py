"""The rules of a conversation: recorded at its start, inherited by its forks, and never widened by reopening it."""

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
from bough.guard.hook_file import load_hooks
from bough.guard.limits import Per, narrower
from bough.settings import Settings
from bough.skills import TrustStore
from bough.types import JsonObject, require_type


class GivenRules(TypedDict, total=False):
    """The rules as arguments of a conversation; each has a default.

    Attributes:
        confirmation_policy: Which tool calls wait for a person; that of the settings by default.
        security_analyzer: Rates the risk of calls.
        hooks: Commands and functions that are asked about calls; without this argument, no hook file is read.
        allow_list: Which calls may be made at all; all by default.
        condenser: Shortens what the model sees; nothing is condensed by default.
        secrets: Values for scripts that declare them; masked wherever they occur.
        limits: Bounds of each run, or of the conversation; a sequence sets both. See `Limits.per`.
    """

    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer | None
    hooks: HookSet | None
    allow_list: AllowList | None
    condenser: Condenser | None
    secrets: Secrets | None
    limits: Limits | Sequence[Limits] | None


class _Argument(NamedTuple):
    """One key of `GivenRules`.

    Attributes:
        field: The field of `Rules` that it sets; `limits` may also set `total`.
        kind: Its classes, or a method that it must have.
    """

    field: str
    kind: type | tuple[type, ...] | str
    hint: str


_LIMITS_HINT = "give Limits(…), or one of each `per`"
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
}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check rules passed by name. A misspelled one would silently not apply.

    Raises:
        InvalidInput: A name is unknown, or a value is of the wrong kind.
    """
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            near = get_close_matches(name, _ARGUMENTS, 1)
            suggestion = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(_ARGUMENTS)}"
            raise InvalidInput(f"a conversation has no rule named {name!r}", hint=suggestion)
        _, kind, hint = _ARGUMENTS[name]
        if value is None:
            continue
        if not isinstance(kind, str):
            require_type(value, kind, name, hint)
        elif not hasattr(value, kind):
            raise InvalidInput(f"{name}: a {type(value).__name__} has no method {kind}", hint=hint)


UNBOUNDED = Limits(steps=None, tasks=None, depth=None, unpriced="allow")
"""A run without bounds."""

NO_TOTAL = Limits(per="conversation", unpriced="allow")
"""A conversation without bounds, except those of its runs."""


@dataclass(frozen=True, kw_only=True)
class Rules(CallRules):
    """The rules of one conversation: those of its calls, and what it may use.

    A policy that depends on risks gets a `RuleAnalyzer` if there is no analyzer.

    Attributes:
        limits: Bounds of one run.
        total: Bounds of the conversation and its fork ancestors together.
        condenser: Shortens what the model sees.
        secrets: Values for scripts; a log records their names only.
    """

    limits: Limits = UNBOUNDED
    total: Limits = NO_TOTAL
    condenser: Condenser = field(default_factory=NoCondenser)
    secrets: Secrets = field(default_factory=Secrets)

    def __post_init__(self) -> None:
        if self.analyzer is None and isinstance(self.policy, ConfirmRisky):
            object.__setattr__(self, "analyzer", RuleAnalyzer())

    @classmethod
    def build(cls, settings: Settings, **arguments: Unpack[GivenRules]) -> Rules:
        """Return the rules of these arguments. Runs without `limits` are unbounded.

        Raises:
            InvalidInput: An argument is unknown or of the wrong kind; two limits have the same `per`.
        """
        fields = _parse_arguments(arguments)
        if "policy" not in fields:
            fields["policy"] = _default_policy(settings)
        return cls(**fields)

    def override(self, arguments: Mapping[str, Any]) -> Self:
        """Return these rules with those named by `arguments` replaced; an argument that is None changes nothing.

        The result may be wider. Whoever must not widen rules passes it to `narrow`.

        Raises:
            InvalidInput: See `build`.
        """
        return replace(self, **_parse_arguments(arguments))

    def within(self, spec: AgentSpec | None) -> Rules:
        """Return these rules, narrowed by those of the agent."""
        own = None if spec is None else read_spec_rules(spec)
        # An agent has no rules about secrets: `narrow` would withhold those that the other side lacks.
        return self.narrow(replace(Rules().override(own), secrets=self.secrets)) if own else self

    def with_default_bounds(self) -> Rules:
        """Return the rules of a new conversation, whose runs are bounded even without `limits`."""
        return replace(self, limits=Limits()) if self.limits == UNBOUNDED else self

    def as_arguments(self) -> GivenRules:
        """Return the rules as arguments, from which `build` makes equal rules."""
        arguments = {name: getattr(self, argument.field) for name, argument in _ARGUMENTS.items()}
        return cast("GivenRules", {**arguments, "limits": (self.limits, self.total)})

    def guard(self, cid: UUID, workspace: Path) -> Guard:
        """Return the guard of a conversation in its workspace."""
        masker = self.secrets.masker() if self.secrets.names else None
        return Guard(self, conversation_id=str(cid), workspace=workspace, masker=masker)

    def narrow(self, other: CallRules) -> Self:
        """Return these rules with everything that `other` forbids forbidden as well; the condenser stays."""
        narrowed = super().narrow(other)
        if not isinstance(other, Rules):
            return narrowed
        return replace(
            narrowed,
            limits=narrower(self.limits, other.limits),
            total=narrower(self.total, other.total),
            secrets=self.secrets.narrow(other.secrets.names),
        )

    def to_json(self) -> JsonObject:
        """Return what the log records: never a secret's value. The values are shared by all calls."""
        return dict(self._json)

    @cached_property
    def _json(self) -> JsonObject:
        return {
            **super().to_json(),
            "limits": self.limits.to_json(),
            **({"total": self.total.to_json()} if self.total != NO_TOTAL else {}),
            "condenser": condenser_to_json(self.condenser),
            "secrets": list(self.secrets.names),
        }

    @classmethod
    def from_json(cls, recorded: JsonObject, local: Rules, *, is_foreign: bool = False) -> Rules:
        """Return the recorded rules of a conversation, narrowed by `local`.

        Hooks, analyzers that are not data, and secrets come from `local`: a log has only their names, and a log may
        come from anywhere.

        Args:
            is_foreign: Whether the log comes from another store. Its hooks and secrets, and an analyzer that cannot be
                rebuilt, are then ignored.

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
        )
        secrets = local.secrets.narrow(() if is_foreign else recorded.get("secrets") or ())
        return replace(rules.narrow(local), secrets=secrets)

    @classmethod
    def from_state(cls, state: State, local: Rules) -> Rules:
        """Return the rules of a log, narrowed by `local`. In quarantine every call waits, and there are no secrets.

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
    return fields | split_limits(fields.pop("limits")) if "limits" in fields else fields


def split_limits(limits: Limits | Sequence[Limits] | None) -> dict[str, Limits]:
    """Return limits by the field of `Rules` that they set: `limits` for a run, `total` for the conversation.

    Raises:
        InvalidInput: Two have the same `per`, or one is no `Limits`.
    """
    several = (limits,) if isinstance(limits, Limits) else tuple(limits or ())
    if not all(isinstance(bounds, Limits) for bounds in several):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"invalid limits {limits!r}", hint=_LIMITS_HINT)
    by_per = {bounds.per: bounds for bounds in several}
    if len(by_per) < len(several):
        raise InvalidInput("two limits count the same", hint="give one with per='run' and one with per='conversation'")
    return {LIMITS_FIELDS[per]: by_per[per] for per in LIMITS_FIELDS if per in by_per}


def read_recorded_limits(recorded: JsonObject) -> tuple[Limits, Limits]:
    """Return the bounds of a run and of the conversation that a record of rules holds.

    Raises:
        InvalidInput: They are not what `Rules.to_json` writes.
    """
    limits = limits_from_json(recorded.get("limits") or {})
    total = limits_from_json(recorded["total"]) if recorded.get("total") else NO_TOTAL
    if limits.per == "conversation":  # written before a run had bounds of its own
        return Limits(), narrower(limits, total)
    return limits, total


_RECORDED_WHEN_STRICTER = ("policy", "analyzer", "allow_list", "limits", "total")
"""The rules that narrow a log. Not hooks, which every process that opens it would have to pass."""


class RulesInForce:
    """The rules of an open conversation: those of its log, narrowed by those of this object.

    Called at every step and before every effect, so that a change by another process applies at once.

    Attributes:
        local: Rules of this object only: hooks, secrets and analyzers that a log only names, and stricter rules.
    """

    def __init__(self, state: State, local: Rules) -> None:
        self.local = local
        self._state = state
        self._rules = local
        self._sources: tuple[JsonObject, bool, Rules] | None = None

    def __call__(self) -> Rules:
        """Return them. O(1) while neither the log's rules nor `local` changed.

        Raises:
            InvalidInput: The log names hooks or an analyzer that `local` lacks.
        """
        sources = (self._state.policies, self._state.quarantined, self.local)
        if sources != self._sources:  # tuples compare by identity first
            self._rules, self._sources = Rules.from_state(self._state, self.local), sources
        return self._rules

    def make_events(self) -> list[Event]:
        """Return the event that records where these rules are stricter than the log, so that they hold for everybody.

        Empty if they are nowhere stricter. Secrets and the condenser do not restrict calls and are not compared.
        """
        recorded = self._state.policies
        if self._state.quarantined or "policy" not in recorded:
            return []  # what quarantine forbids is not recorded: it ends with the adoption
        rules = self().to_json()
        stricter = {
            name: rules[name] for name in _RECORDED_WHEN_STRICTER if name in rules and rules[name] != recorded.get(name)
        }
        return [StateChanged(changes={"policies": stricter})] if stricter else []


def read_spec_rules(spec: AgentSpec) -> GivenRules:
    """Return the rules that an agent sets for its conversations; those that are None are omitted."""
    names = ("limits", "confirmation_policy", "allow_list")
    return cast("GivenRules", {name: rule for name in names if (rule := getattr(spec, name)) is not None})


def read_settings_rules(settings: Settings, workspace: Path | None = None) -> GivenRules:
    """Return the rules of a person's settings: the policy by name, and the hooks of the home folder.

    Args:
        workspace: Adds its own hooks if a person trusts them; None adds none.

    Raises:
        InvalidInput: No policy has that name, or a hook file in use is invalid.
    """
    home = settings.home
    if workspace is None:
        hooks = load_hooks(home / "hooks.json")
    else:
        hooks = find_hooks(home=home, project=workspace, trust=TrustStore(home))
    return {"confirmation_policy": _default_policy(settings), "hooks": hooks}


def _default_policy(settings: Settings) -> Policy:
    return policy_named("allow" if settings.policy is None else settings.policy)


def _require_hooks(recorded: Any, hooks: HookSet) -> None:
    missing = hooks.find_missing(recorded)
    if missing:
        names = ", ".join(str(hook.get("command") or hook.get("function")) for hook in missing)
        raise InvalidInput(
            f"the conversation was started with hooks that are not available here: {names}",
            hint="give hooks= as it was started, or fork it with other rules",
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
        raise InvalidInput(
            f"the conversation was started with the analyzer {recorded.get('kind')!r}, which its log only names",
            hint="pass the security_analyzer= that it was started with",
        ) from error
