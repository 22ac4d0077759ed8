"""What a conversation may do and use: recorded at its start, kept by its forks, never widened by opening it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict, Unpack
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
from bough.guard.confirmation_policy import narrower as narrower_policy
from bough.guard.hook_file import load_hooks
from bough.guard.limits import narrower as narrower_limits
from bough.settings import Settings
from bough.skills import TrustStore
from bough.types import JsonObject, require_type


class GivenRules(TypedDict, total=False):
    """What a caller may say of the rules; each has a default.

    Attributes:
        confirmation_policy: Which tool calls wait for a person; the settings' one by default.
        security_analyzer: Says how risky a call is.
        hooks: Commands and functions that are asked; none are read from files unless given.
        allow_list: Which calls may be made at all; all by default.
        condenser: Keeps what the model sees short; nothing is condensed by default.
        secrets: What scripts that declare them are given; masked wherever they turn up.
        limits: Bounds of each run, or of the conversation; a sequence gives both. See `Limits.per`.
    """

    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer | None
    hooks: HookSet | None
    allow_list: AllowList | None
    condenser: Condenser | None
    secrets: Secrets | None
    limits: Limits | Sequence[Limits] | None


_POLICY = "for example AlwaysConfirm()"
_GIVEN: Mapping[str, tuple[type | tuple[type, ...] | str, str]] = {
    "confirmation_policy": ((AlwaysConfirm, NeverConfirm, ConfirmRisky), _POLICY),
    "security_analyzer": ("analyze", "for example RuleAnalyzer()"),
    "hooks": (HookSet, "for example HookSet([Hook(…)])"),
    "allow_list": (AllowList, "for example AllowList.of('read_file')"),
    "condenser": ("condense", "for example SummarizingCondenser()"),
    "secrets": (Secrets, 'for example Secrets({"TOKEN": EnvSecret("TOKEN")})'),
    "limits": ((Limits, list, tuple), "give Limits(…), or one of each `per`"),
}
"""What each rule is: of which type, or with which method."""


def check_given(given: Mapping[str, Any]) -> None:
    """Check rules that somebody gives by name: one that is left out for a typing error would not be in force.

    Raises:
        InvalidInput: There is no such rule, or one is of another kind.
    """
    for name, value in given.items():
        if name not in _GIVEN:
            near = get_close_matches(name, _GIVEN, 1)
            known = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(_GIVEN)}"
            raise InvalidInput(f"a conversation has no rule named {name!r}", hint=known)
        kind, hint = _GIVEN[name]
        if value is None:
            continue
        if not isinstance(kind, str):
            require_type(value, kind, name, hint)
        elif not hasattr(value, kind):
            raise InvalidInput(f"{name}: a {type(value).__name__} has no method {kind}", hint=hint)


UNBOUNDED = Limits(steps=None, tasks=None, depth=None, unpriced="allow")
"""No bound of a run."""

NO_TOTAL = Limits(per="conversation", unpriced="allow")
"""A conversation without bounds of its own."""


_NARROWING = ("policy", "analyzer", "allow_list", "limits", "total")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one conversation.

    Attributes:
        policy: Which calls wait for a person.
        analyzer: Says how risky a call is; a policy that asks for risks has rules where none is given.
        allow_list: Which calls may be made at all; without entries, all.
        limits: Bounds of one run.
        total: Bounds of the conversation, with what it was forked from.
        condenser: Keeps what the model sees short.
        secrets: What scripts may be given by name; recorded by name only.
    """

    policy: Policy = field(default_factory=NeverConfirm)
    analyzer: SecurityAnalyzer | None = None
    hooks: HookSet = field(default_factory=HookSet)
    allow_list: AllowList = field(default_factory=AllowList)
    limits: Limits = UNBOUNDED
    total: Limits = NO_TOTAL
    condenser: Condenser = field(default_factory=NoCondenser)
    secrets: Secrets = field(default_factory=Secrets)

    def __post_init__(self) -> None:
        if self.analyzer is None and isinstance(self.policy, ConfirmRisky):
            object.__setattr__(self, "analyzer", RuleAnalyzer())

    @classmethod
    def build(cls, settings: Settings, **given: Unpack[GivenRules]) -> Rules:
        """Return the rules that a caller asks for; bounds that are not given are none.

        Raises:
            InvalidInput: A rule is unknown or of another kind; two limits count the same.
        """
        check_given(given)
        limits = limits_by_count(given.get("limits"))
        return cls(
            policy=given.get("confirmation_policy") or _default_policy(settings),
            analyzer=given.get("security_analyzer"),
            hooks=given.get("hooks") or HookSet(),
            allow_list=given.get("allow_list") or AllowList(),
            condenser=given.get("condenser") or NoCondenser(),
            secrets=given.get("secrets") or Secrets(),
            limits=limits.get("run") or UNBOUNDED,
            total=limits.get("conversation") or NO_TOTAL,
        )

    def within(self, spec: AgentSpec | None) -> Rules:
        """Return these rules with everything that the agent's own ones forbid forbidden as well."""
        if spec is None or (spec.limits, spec.confirmation_policy, spec.allow_list) == (None, None, None):
            return self
        limits = limits_by_count(spec.limits)
        return self.narrow(
            Rules(
                policy=spec.confirmation_policy or NeverConfirm(),
                allow_list=spec.allow_list or AllowList(),
                limits=limits.get("run") or UNBOUNDED,
                total=limits.get("conversation") or NO_TOTAL,
                secrets=self.secrets,
            )
        )

    def with_default_bounds(self) -> Rules:
        """Return the rules of a conversation that begins: its runs are bounded unless somebody says otherwise."""
        return replace(self, limits=Limits()) if self.limits == UNBOUNDED else self

    def as_given(self) -> GivenRules:
        """Return the rules by the names that a caller gives them by."""
        return GivenRules(
            confirmation_policy=self.policy,
            security_analyzer=self.analyzer,
            hooks=self.hooks,
            allow_list=self.allow_list,
            condenser=self.condenser,
            secrets=self.secrets,
            limits=(self.limits, self.total),
        )

    def narrowing(self, recorded: JsonObject) -> JsonObject:
        """Return what these rules, in force with the recorded ones, add to them; empty where they add nothing.

        What somebody is stricter about is recorded with the first thing they write, so that it holds for everybody.
        Secrets and the condenser are not rules of what may happen, and hooks that are asked elsewhere must be given.
        """
        if "policy" not in recorded:
            return {}
        whole = self.to_json()
        return {name: whole[name] for name in _NARROWING if name in whole and whole[name] != recorded.get(name)}

    def guard(self, cid: UUID, workspace: Path) -> Guard:
        """Return the guard of a conversation in its workspace."""
        guard = replace(self._bare_guard(), conversation_id=str(cid), workspace=workspace)
        return replace(guard, masker=self.secrets.masker()) if self.secrets.names else guard

    def _bare_guard(self) -> Guard:
        """Return the guard of no conversation, which reads no secret."""
        return Guard(
            conversation_id="",
            workspace=Path(),
            hooks=self.hooks,
            analyzer=self.analyzer,
            policy=self.policy,
            allow_list=self.allow_list,
        )

    def to_json(self) -> JsonObject:
        """Return what the log records: never a secret's value."""
        return {
            "policy": self.policy.to_json(),
            "analyzer": None if self.analyzer is None else self.analyzer.to_json(),
            "hooks": self.hooks.to_json(),
            "allow_list": self.allow_list.to_json(),
            "limits": self.limits.to_json(),
            **({"total": self.total.to_json()} if self.total != NO_TOTAL else {}),
            "condenser": condenser_to_json(self.condenser),
            "secrets": list(self.secrets.names),
        }

    def narrow(self, other: Rules) -> Rules:
        """Return these rules with everything that `other` forbids forbidden as well."""
        guard = self._bare_guard().narrow(other._bare_guard())
        return replace(
            self,
            policy=narrower_policy(self.policy, other.policy),
            analyzer=guard.analyzer,
            hooks=guard.hooks,
            allow_list=guard.allow_list,
            limits=narrower_limits(self.limits, other.limits),
            total=narrower_limits(self.total, other.total),
            secrets=self.secrets.narrow(other.secrets.names),
        )

    @classmethod
    def of_state(cls, state: State, given: Rules) -> Rules:
        """Return the rules of a log, narrowed by what is given; in quarantine every call asks, and nothing is secret.

        Raises: see `resume`.
        """
        if not state.quarantined:
            return cls.resume(state.policies, given)
        apart = replace(given, secrets=Secrets())
        return cls.without_hooks(state.policies, apart).narrow(cls(policy=AlwaysConfirm()))

    @classmethod
    def without_hooks(cls, recorded: JsonObject, given: Rules) -> Rules:
        """Return the recorded rules of a log from elsewhere, narrowed by what is given.

        Its hooks and secrets are somebody else's, and an analyzer that it only names nobody has here.
        """
        plain = recorded | {"hooks": None, "secrets": None}
        try:
            _analyzer(recorded.get("analyzer"), given.analyzer)
        except InvalidInput:
            plain["analyzer"] = None
        return cls.resume(plain, given)

    @classmethod
    def resume(cls, recorded: JsonObject, given: Rules) -> Rules:
        """Return the rules of a conversation that is opened again: the recorded ones, narrowed by what is given.

        Hooks, an analyzer that is not data, and secrets must be given again: a log only names them, and a log may
        come from anywhere.

        Raises:
            InvalidInput: The record names hooks or an analyzer that were not given.
        """
        if "policy" not in recorded:
            return given
        _require_hooks(recorded.get("hooks") or [], given.hooks)
        limits, total = read_recorded_limits(recorded)
        found = cls(
            policy=policy_from_json(recorded["policy"]),
            analyzer=_analyzer(recorded.get("analyzer"), given.analyzer),
            hooks=given.hooks,
            allow_list=allow_list_from_json(recorded.get("allow_list")),
            limits=limits,
            total=total,
            condenser=condenser_from_json(recorded.get("condenser"), given.condenser),
            secrets=given.secrets,
        )
        kept = given.secrets.narrow(recorded.get("secrets") or ())
        return replace(found.narrow(given), condenser=found.condenser, secrets=kept)


def limits_by_count(given: Limits | Sequence[Limits] | None) -> dict[str, Limits]:
    """Return limits by what they count.

    Raises:
        InvalidInput: Two count the same, or one is no `Limits`.
    """
    several = () if given is None else given
    require_type(several, (Limits, list, tuple), "limits", "give Limits(…), or one of each `per`")
    each = (several,) if isinstance(several, Limits) else tuple(several)
    if not all(isinstance(limits, Limits) for limits in each):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"invalid limits {given!r}", hint="give Limits(…), or one of each `per`")
    found = {limits.per: limits for limits in each}
    if len(found) < len(each):
        raise InvalidInput("two limits count the same", hint="give one with per='run' and one with per='conversation'")
    return dict(found)


def read_recorded_limits(recorded: JsonObject) -> tuple[Limits, Limits]:
    """Return the bounds of a run and of the conversation that a record of rules holds.

    Raises:
        InvalidInput: They are not what `Rules.to_json` writes.
    """
    limits = limits_from_json(recorded.get("limits") or {})
    total = limits_from_json(recorded["total"]) if recorded.get("total") else NO_TOTAL
    if limits.per == "conversation":  # written before a run had bounds of its own
        return Limits(), narrower_limits(limits, total)
    return limits, total


class RulesInForce:
    """The rules of a conversation now: what its log says, narrowed by what this object was given.

    Called at every step and before every effect; parsed anew only when the recorded rules have changed.
    """

    def __init__(self, state: State, given: Rules) -> None:
        """Keep the rules of the conversation that `state` folds.

        Args:
            given: Of this object: hooks, secrets and analyzers that a log only names, and what it is stricter about.
        """
        self._state = state
        self._given = given
        self._recorded: JsonObject | None = None
        self._quarantined = False
        self._rules = given

    @property
    def given(self) -> Rules:
        """What this object was given."""
        return self._given

    @given.setter
    def given(self, rules: Rules) -> None:
        self._given, self._recorded = rules, None

    def make_events(self) -> list[Event]:
        """Return the event that records what this object is stricter about than its log; none where it is not."""
        if self._state.quarantined:
            return []  # quarantine is not a rule of the log: it ends with the adoption
        narrowing = self().narrowing(self._state.policies)
        return [StateChanged(changes={"policies": narrowing})] if narrowing else []

    def __call__(self) -> Rules:
        """Return them. O(1) while the log says the same.

        Raises:
            InvalidInput: The log names hooks or an analyzer that were not given here.
        """
        recorded, quarantined = self._state.policies, self._state.quarantined
        if recorded is not self._recorded or quarantined != self._quarantined:
            if recorded != self._recorded or quarantined != self._quarantined:
                self._rules = Rules.of_state(self._state, self._given)
            self._recorded, self._quarantined = recorded, quarantined
        return self._rules


def rules_of(settings: Settings, workspace: Path | None = None) -> GivenRules:
    """Return what a person's settings say of the rules: the policy by name, the hooks of the home.

    Args:
        workspace: Brings its own hooks along where a person has trusted them; None brings none.

    Raises:
        InvalidInput: The policy has no such name, or a file of hooks that counts is not right.
    """
    home = settings.home
    if workspace is None:
        hooks = load_hooks(home / "hooks.json")
    else:
        hooks = find_hooks(home=home, project=workspace, trust=TrustStore(home))
    return {"confirmation_policy": _default_policy(settings), "hooks": hooks}


def _default_policy(settings: Settings) -> Policy:
    return policy_named("allow" if settings.policy is None else settings.policy)


class RulesOfRun:
    """The rules in force with bounds of one run beside them, which no log records.

    Args:
        rules: Of the conversation.
        limits: Of the run.
    """

    def __init__(self, rules: RulesInForce, limits: Limits) -> None:
        self._in_force = rules
        self._limits = limits

    def make_events(self) -> list[Event]:
        """Return the event that records what the conversation is stricter about than its log."""
        return self._in_force.make_events()

    def __call__(self) -> Rules:
        """Return them. Raises: see `RulesInForce`."""
        rules = self._in_force()
        return replace(rules, limits=narrower_limits(rules.limits, self._limits))


def _require_hooks(recorded: list[Any], given: HookSet) -> None:
    here: list[Any] = given.to_json() or []
    missing = [hook for hook in recorded if hook not in here]
    if missing:
        names = ", ".join(str(hook.get("command") or hook.get("function")) for hook in missing)
        raise InvalidInput(
            f"the conversation was started with hooks that are not available here: {names}",
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
