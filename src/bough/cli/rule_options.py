"""Command-line options for the rules of a conversation: policy, limits, budgets and secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.cli import options
from bough.errors import InvalidInput, Unavailable
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.conversation.rules import GivenRules
    from bough.guard import Budget, Limits, Secrets

LIMITS: Mapping[str, str] = {
    "requests": "requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "total_tokens": "tokens",
    "cost_usd": "USD",
    "wall_seconds": "s",
    "steps": "steps",
    "tasks": "tasks",
    "depth": "levels of sub-agents",
}
"""The unit of each limit, for messages."""


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The options for rules; None if omitted. A command with a parameter of this type has an option for each field.

    Attributes:
        budget: `ID` of a budget that exists, or `ID=usd:5,tokens:100000,requests:20`, which creates it.
        secret: `NAME`, or `NAME=VARIABLE` if the environment variable has another name.
    """

    policy: options.Policy = None
    max_steps: options.MaxSteps = None
    max_tokens: options.MaxTokens = None
    max_cost_usd: options.MaxCost = None
    budget: options.Budget = None
    secret: options.Secret = None
    no_files: options.NoFiles = False

    def make_rules(self, settings: Settings, workspace: Path | None = None, *, may_write: bool = False) -> GivenRules:
        """Return the rules for a conversation that is started or opened, with the user's hooks.

        Args:
            workspace: A folder whose hooks also apply if they are trusted.
            may_write: Whether the agent may write files or run commands. If so, risky calls need approval unless a
                policy is set.

        Raises:
            InvalidInput: A value or a file of hooks is invalid.
        """
        from bough.conversation.rules import read_settings_rules

        policy = settings.policy if self.policy is None else self.policy
        if policy is None and may_write:
            policy = "rules"
        rules = read_settings_rules(replace(settings, policy=policy), workspace)
        return {
            **rules,
            "limits": self._limits(),
            "budget": parse_budgets(self.budget or ()),
            "secrets": secrets_named(self.secret or ()),
            "keep_files": False if self.no_files else None,
        }

    def warnings(self, home: Path, workspace: Path, model: str | None) -> Iterator[str]:
        """Yield a warning for each file of hooks that does not apply."""
        from bough.guard import find_hooks
        from bough.skills import TrustStore

        yield from find_hooks(home=home, project=workspace, trust=TrustStore(home)).notes

    def list_kept_rules(self, recorded: JsonObject) -> Iterator[str]:
        """Yield a warning for each option that has no effect, because options never widen the recorded rules."""
        from bough.guard import limits_from_json, policy_from_json, policy_named
        from bough.guard.confirmation_policy import allows_change

        if (
            self.policy is not None
            and "policy" in recorded
            and not allows_change(policy_from_json(recorded["policy"]), policy_named(self.policy))
        ):
            yield f"--policy {self.policy}: the conversation asks more often, and keeps doing so"
        recorded_limits = limits_from_json(recorded.get("limits") or {}).bounds
        requested = self._limits()
        for name, limit in requested.bounds.items() if requested else ():
            if name in recorded_limits and limit > recorded_limits[name]:
                yield f"the conversation has a limit of {recorded_limits[name]} {LIMITS[name]}, and keeps it"

    def _limits(self) -> Limits | None:
        """Return the limits of the options; None if all are omitted."""
        from bough.guard import Limits

        options_by_limit: dict[str, Any] = {
            "steps": self.max_steps,
            "total_tokens": self.max_tokens,
            "cost_usd": self.max_cost_usd,
        }
        limits = {name: limit for name, limit in options_by_limit.items() if limit is not None}
        return Limits(**limits) if limits else None


NO_RULES = RuleOptions()


def parse_budgets(arguments: Iterable[str]) -> list[Budget] | None:
    """Return the budgets of `--budget` options; None without options.

    Raises:
        InvalidInput: An option is not `ID` or `ID=usd:N,tokens:N,requests:N`, or a bound is not above 0.
    """
    return [_parse_budget(argument) for argument in arguments] or None


def _parse_budget(argument: str) -> Budget:
    from bough.guard import Budget

    id, separator, bounds = argument.partition("=")
    pairs = [part.partition(":") for part in bounds.split(",")] if separator else []
    amounts: dict[str, Any] = {name.strip(): _parse_amount(name.strip(), text.strip()) for name, _, text in pairs}
    if not id or None in amounts.values() or len(amounts) < len(pairs):
        raise InvalidInput(
            f"--budget {argument!r} is not a budget", hint="write ID, or ID=usd:5,tokens:100000,requests:20"
        )
    return Budget(id=id, **amounts)


def _parse_amount(name: str, text: str) -> float | None:
    """Return the amount of a bound; None if the text or the name is invalid."""
    try:
        if name == "usd":
            return float(text)
        return int(text) if name in ("tokens", "requests") else None
    except ValueError:
        return None


def secrets_named(arguments: Iterable[str]) -> Secrets:
    """Return secrets that are read from the environment when a script needs them.

    Raises:
        InvalidInput: A variable is unset, its value is too short to be masked, or its name is invalid.
    """
    from bough.guard import EnvSecret, Secrets

    pairs = [argument.partition("=") for argument in arguments]
    secrets = Secrets({name: EnvSecret(variable or name) for name, _, variable in pairs})
    try:
        secrets.values()
    except Unavailable as error:
        raise InvalidInput(f"--secret: {error.message}", hint=error.hint) from error
    return secrets
