"""Resolves the agent of a conversation: from an argument or a recorded log to a spec, a model and a blueprint."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, cast

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model

from bough.agents.build import AgentBuilder, Blueprint, BlueprintCache, open_registry
from bough.agents.config.default_model import find_default_key, read_default_model
from bough.agents.models.resolve import OFFLINE, ResolvedModel, resolve_model, takes_base_url
from bough.agents.spec import MODEL_OBJECT, AgentSpec
from bough.agents.usage import is_priced
from bough.agents.workspace.tools import WorkspaceAccess
from bough.connect.mcp_pool import McpPool
from bough.conversation.log.state import State
from bough.conversation.result import T
from bough.conversation.rules import GivenRules
from bough.errors import InvalidInput, PermissionDenied
from bough.execution.base import CodeExecutor, Isolation
from bough.guard import Budget, Limits, policy_named
from bough.settings import Price, Settings
from bough.types import JsonObject, require_type

_TITLE_LENGTH = 60

CODE_KEYS = (
    "tools",
    "toolsets",
    "mcp_servers",
    "a2a_clients",
    "skills",
    "executor",
    "agent",
    "sub_agents",
    "output_type",
)
"""Fields of an agent whose values are code. A log has only their names, so the agent must be passed in again."""

LOCATION_FIELDS = ("base_url", "skill_roots", "system_prompt_path")
"""Addresses of requests and paths of files. In the record of an imported agent these fields are not used."""


def read_record(state: State) -> JsonObject:
    """Return the recorded agent; in quarantine without the addresses and paths that the sender chose."""
    unused = {name for name in LOCATION_FIELDS if state.quarantined and state.agent.get(name)}
    if state.agent.get("system_prompt_path"):
        unused.add("system_prompt")  # the record has both, but a spec accepts only one of them
    return {name: value for name, value in state.agent.items() if name not in unused}


def make_agent_changes(blueprint: Blueprint | None) -> dict[str, Any]:
    """Return the `StateChanged` changes that record a new agent; empty without one."""
    if blueprint is None:
        return {}
    return {"agent": blueprint.spec.snapshot(), "instructions": blueprint.instructions}


AgentOf: TypeAlias = AgentSpec[T] | AbstractAgent[Any, T] | str
"""An agent argument of a conversation whose agent answers with `T`."""

AgentLike: TypeAlias = AgentSpec[Any] | AbstractAgent[Any, Any] | str
"""An agent argument: a spec, a PydanticAI agent, or a model string for the default agent."""


def convert_agent(agent: AgentLike | None) -> AgentSpec | None:
    """Return the spec of an agent argument; None for None.

    Raises:
        InvalidInput: The value is not an agent.
    """
    match agent:
        case AgentSpec() | None:
            return agent
        case AbstractAgent():
            return AgentSpec.of(agent)
        case str():
            return AgentSpec(model=agent, discover_skills=True)
        case _:  # pyright: ignore[reportUnnecessaryComparison] - callers may not check types
            raise InvalidInput(
                f"no agent can be made of {type(agent).__name__}",
                hint="give an AgentSpec, a PydanticAI agent, or a model string",
            )


def apply_defaults(
    agent: AgentLike | None, executor: CodeExecutor | None, settings: Settings, rules: GivenRules
) -> tuple[AgentSpec, GivenRules]:
    """Return the spec and the rules of a new conversation, with defaults for the default agent.

    The default agent has the tools that its prompt describes, and runs commands only in a sandbox. Its risky calls wait
    for a person, unless a policy is given. Any other agent is returned unchanged.
    """
    spec = convert_agent(agent)
    if agent is not None and not isinstance(agent, str):
        return cast(AgentSpec, spec), rules
    is_unsafe = settings.executor == "unsafe" if executor is None else executor.isolation is Isolation.NONE
    access: WorkspaceAccess = "write" if is_unsafe else "run"
    spec = (spec or AgentSpec(discover_skills=True)).model_copy(update={"workspace_access": access})
    if settings.policy is None and rules.get("confirmation_policy") is None:
        rules = {**rules, "confirmation_policy": policy_named("rules")}
    return spec, rules


def settle_spec(agent: AgentLike | None, settings: Settings) -> AgentSpec:
    """Return the spec of an agent with its model chosen, so that the log records the model.

    An agent without a model gets the first of these that exists: the model of the settings, `models.default` of the
    configuration, a model of the first provider that has a key, the offline model.
    """
    spec = with_default_model(convert_agent(agent) or AgentSpec(discover_skills=True), settings)
    if isinstance(spec.model, Model):
        return spec
    name = resolve_spec(spec, settings).name
    return spec.model_copy(update={"model": name, "base_url": spec.base_url or settings.base_url})


def resolve_spec_model(spec: AgentSpec, settings: Settings) -> tuple[Model, str]:
    """Return the agent's model and its name."""
    spec = with_default_model(spec, settings)
    if isinstance(spec.model, Model):
        return spec.model, spec.model.model_name
    resolved = resolve_spec(spec, settings)
    return resolved.model, resolved.name


def resolve_spec(spec: AgentSpec, settings: Settings) -> ResolvedModel:
    """Return the model of an agent that names its model. The client is created on first use.

    Raises: see `resolve_model`.
    """
    require_type(spec.model, (str, NoneType), "a model", "give its name, such as openai:gpt-5, or a PydanticAI model")
    name, base_url = cast("str | None", spec.model) or settings.model, spec.base_url or settings.base_url
    api_key = spec.api_key
    if api_key is None and name is not None and name != OFFLINE:
        api_key = find_default_key(name, base_url, settings)
    return resolve_model(name, base_url=base_url, env=os.environ, api_key=api_key, shared=True)


def with_default_model(spec: AgentSpec, settings: Settings) -> AgentSpec:
    """Return the spec with `models.default` if nothing else chooses its model; else unchanged.

    Raises: see `read_default_model`.
    """
    if spec.model is not None or spec.base_url is not None or settings.model is not None:
        return spec
    default = read_default_model(settings)
    if not default:
        return spec
    return spec.model_copy(update={**default, "settings": {**default.get("settings", {}), **spec.settings}})


def with_other_model(spec: AgentSpec, model: str | Model | None, base_url: str | None) -> AgentSpec:
    """Return the spec with another model. Keeps the key only for the same provider at the same address."""
    is_same = _find_provider(model) == _find_provider(spec.model) and base_url == spec.base_url
    return spec.model_copy(update={"model": model, "base_url": base_url, "api_key": spec.api_key if is_same else None})


def _find_provider(model: object) -> str | None:
    return model.partition(":")[0] if isinstance(model, str) else None


def require_prices(model: Model, limits: Limits, prices: Mapping[str, Price], budgets: Sequence[Budget] = ()) -> None:
    """Check that a limit of cost, and budgets in dollars, can be enforced for a model.

    Args:
        prices: `Settings.prices`.

    Raises:
        InvalidInput: The prices of the model are unknown, and `unpriced="allow"` is not set.
    """
    if limits.cost_usd is not None and limits.unpriced == "refuse" and not is_priced(model, prices):
        raise InvalidInput(
            f"the prices of {model.model_name} are unknown, so a limit of {limits.cost_usd:g} USD cannot be enforced",
            hint='limit its tokens instead, or allow unknown prices: Limits(cost_usd=…, unpriced="allow")',
            details={"model": model.model_name},
        )
    if any(budget.usd is not None for budget in budgets) and not is_priced(model, prices):
        raise make_unpriced_error(model.model_name)


def make_unpriced_error(model: str) -> InvalidInput:
    """Return the error for a model without a price that would spend from a budget of dollars."""
    return InvalidInput(
        f"the prices of {model} are unknown, so a budget of dollars cannot be kept",
        hint=f"set its prices in bough.yaml of bough's home, prices: {{{model}: {{input: …, output: …}}}}, or give a "
        "budget of tokens",
        details={"model": model},
    )


class AgentInForce:
    """The current agent of a conversation: the agent of this object, with the model that the log records.

    It is called at every step, so that a change by another object or process applies from the next step on.

    The recorded `base_url` of an imported conversation is not used before the adoption. Until then, a model with such
    an address is not called at all: the default address would send the conversation to another provider.
    """

    def __init__(self, state: State, builder: AgentBuilder, settings: Settings) -> None:
        self._state = state
        self._settings = settings
        self._recorded = state.agent
        self._quarantined: bool = state.quarantined
        self.builder = builder
        self._models: dict[str, Model] = {}
        self.remember_model(builder.spec)

    def remember_model(self, spec: AgentSpec) -> None:
        """Remember the model of a spec if it is an object, because the log records only its name."""
        if isinstance(spec.model, Model):
            self._models[str(spec.snapshot()["model"])] = spec.model

    def __call__(self) -> Blueprint:
        """Return the agent's blueprint, built at the first call. O(1) while the recorded agent is unchanged.

        Raises: See `follow_log` and `AgentBuilder.blueprint`.
        """
        self.follow_log()
        return self.builder.blueprint

    def follow_log(self) -> AgentSpec:
        """Return the agent's spec, with the model that the log records. Does not build the blueprint.

        Raises:
            InvalidInput: The log names a model object that this process does not have.
            PermissionDenied: The agent was imported together with the address of its model.
        """
        self.adopt_recorded()
        self._require_address()
        return self.builder.spec

    def adopt_recorded(self) -> None:
        """Use the model that the log records if another object or process changed it.

        Raises:
            InvalidInput: The log names a model object that this process does not have.
        """
        recorded, quarantined = self._state.agent, self._state.quarantined
        if recorded is not self._recorded or quarantined != self._quarantined:
            spec = self.builder.spec
            model = self._models.get(str(recorded.get("model")), spec.model)
            # Objects are compared too: two model objects may have the same name, and the record has only the name.
            if recorded != spec.snapshot() or model is not spec.model:
                self.builder.change_spec(spec.model_copy(update=self._make_changes(recorded)))
            self._recorded, self._quarantined = recorded, quarantined

    def _require_address(self) -> None:
        """In quarantine, refuse a model whose address only the imported record has.

        The address of an agent that was passed to `open` is recorded there, so the recorded address is also the one in
        use.
        """
        recorded_address, spec = self._state.agent.get("base_url"), self.builder.spec
        address = spec.base_url or self._settings.base_url
        is_foreign = bool(recorded_address) and recorded_address != address
        if self._state.quarantined and is_foreign and takes_base_url(spec.model):
            raise PermissionDenied(
                f"this conversation was imported, and the address of its model, {recorded_address}, was not approved",
                hint="adopt the conversation, open it with agent= and a base_url of your own, or set another model "
                "(over HTTP: POST {id}/model)",
                details={"base_url": recorded_address},
            )

    def _make_changes(self, recorded: JsonObject) -> dict[str, Any]:
        """Return the changes of the spec for the recorded model. Prompt, tools and skills do not change."""
        name = recorded.get("model")
        if isinstance(name, str) and name.startswith(MODEL_OBJECT):
            if name not in self._models:
                raise InvalidInput(
                    f"the conversation continues with the model object {name.removeprefix(MODEL_OBJECT)!r}, "
                    "which this process does not have",
                    hint="set_model with a name, or open the conversation with agent= and that model",
                )
            return {"model": self._models[name]}
        changed = with_other_model(self.builder.spec, name, recorded.get("base_url"))
        return {"model": name, "base_url": changed.base_url, "api_key": changed.api_key}


def read_recorded_spec(state: State, model: str | Model | None = None) -> AgentSpec:
    """Return the agent that a log records; in quarantine without addresses and paths.

    Args:
        model: Used if the log records a model object of this name.

    Raises:
        InvalidInput: The agent has a model object, Python tools or skills given as code: a log has only their names.
    """
    recorded = {key: value for key, value in read_record(state).items() if value is not None}
    if isinstance(model, Model) and recorded.get("model") == f"{MODEL_OBJECT}{model.model_name}":
        recorded["model"] = model
    elif str(recorded.get("model", "")).startswith(MODEL_OBJECT):
        recorded["tools"] = [*recorded.get("tools", []), recorded.pop("model")]
    for key in CODE_KEYS:
        if recorded.pop(key, None):
            raise InvalidInput(
                f"the agent of this conversation has {key} given as code, and its log only names them",
                hint="open the conversation with agent=, giving the spec it was started with",
            )
    return AgentSpec.model_validate(recorded)


def make_blueprint(
    spec: AgentSpec,
    workspace: Path,
    settings: Settings,
    *,
    pool: McpPool | None = None,
    cache: BlueprintCache | None = None,
    changed_rules: Collection[str] = (),
) -> Blueprint:
    """Return the blueprint of an agent, with the skills that it discovers from `workspace`.

    Args:
        changed_rules: See `SkillRegistry.may_follow`.
        pool: Runs the spec's MCP servers; None for a separate pool.
        cache: Shares parts between conversations, and has its own pool.
    """
    folders: Any = {"workspace": workspace, "home": settings.home, "roots": settings.skill_roots}
    if cache is not None:
        return cache.make(spec, **folders, changed_rules=changed_rules)
    return Blueprint.of(spec, open_registry(spec, **folders, changed_rules=changed_rules), pool=pool)


def workspace_folder(path: str | Path) -> Path:
    """Return the working folder as an absolute path.

    Raises:
        InvalidInput: The path is not a folder.
    """
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise InvalidInput(f"the workspace {folder} is not a folder", hint="create it, or name another one")
    return folder


def make_title(text: str) -> str:
    """Return the first line of a message, shortened to the length of a title."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
