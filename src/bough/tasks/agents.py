"""Find the agent of a task and open the task's conversation with it."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic_ai.models import Model

from bough.agents.build import BlueprintCache
from bough.agents.config.agents import AgentConfig
from bough.agents.config.code import name_tool
from bough.agents.config.named import NamedParts
from bough.agents.spec import MODEL_OBJECT, UNRECORDED_SETTINGS, AgentSpec
from bough.conversation.agent import CODE_KEYS, read_record, read_recorded_spec, settle_spec
from bough.conversation.fork.model_key import is_same_recipient
from bough.conversation.log.state import State
from bough.conversation.open import read_log, reopen
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules, read_spec_rules
from bough.errors import BoughError, InvalidInput, NotFound
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard import HookSet, Secrets, analyzer_from_json
from bough.settings import Settings
from bough.tasks.model import Task
from bough.types import JsonObject

FindHooks: TypeAlias = Callable[[Path], HookSet]
"""Returns the hooks that apply in a workspace."""


class Credentials(NamedTuple):
    """Secrets and the model key, which the log of a conversation only names.

    Attributes:
        model_key: API key of the conversation's model; None uses the operator's key.
    """

    secrets: Secrets | None = None
    model_key: str | None = None


FindCredentials: TypeAlias = Callable[[ConversationRecord, State], Awaitable[Credentials]]
"""Returns the credentials of a task's conversation. Raises `Unavailable` if one cannot be decrypted."""


def register(agents: dict[str, AgentSpec], specs: Mapping[str, AgentSpec] | Iterable[AgentSpec]) -> None:
    """Add agents and their sub-agents to `agents`; a sub-agent never replaces an agent of the same name.

    Raises:
        InvalidInput: `specs` has something other than an `AgentSpec`; the specs before it stay added.
    """
    pairs: Iterable[tuple[str | None, AgentSpec]]
    if isinstance(specs, Mapping):
        pairs = cast("Mapping[str, AgentSpec]", specs).items()
    else:
        pairs = ((None, spec) for spec in specs)
    for name, spec in pairs:
        if not isinstance(spec, AgentSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"{spec!r:.80} is not an agent", hint="give AgentSpec objects")
        agents[spec.name if name is None else name] = spec
        for sub_agent in spec.sub_agents:
            if sub_agent.name not in agents:
                register(agents, [sub_agent])


AGENT_PATH = "agent_path"
"""Metadata key of a task: the names of the agents from the top-level agent down to the task's own.

A sub-agent's name is unique only within its parent agent, so the name alone does not identify it.
"""

PRIVATE = "~"
"""Prefix of private queues, whose agents can only run in a program that registered them."""


async def open_conversation(
    log: EventStore,
    task: Task,
    agents: Mapping[str, AgentSpec],
    *,
    model: str | Model | None,
    settings: Settings,
    hooks: FindHooks | None,
    credentials: FindCredentials | None,
    cache: BlueprintCache | None = None,
    parent_rules: Rules | None = None,
    executor: CodeExecutor | None = None,
) -> Parts:
    """Open the conversation of a claimed task with the agent that runs it.

    Args:
        agents: Registered specs by name.
        model: Used by an agent that names no model.
        credentials: Finds the secrets and the model key; None if conversations have none.
        cache: Shares blueprints between tasks.
        parent_rules: The parent's rules, if this process started the task, with hooks, analyzer and secrets as
            objects.
        executor: Runs the scripts of an agent that names no executor; None uses the executor of the settings.

    Raises:
        NotFound: The agent is neither registered, nor recorded, nor configured.
        InvalidInput: The agent cannot be built, or its workspace does not exist.
    """
    cid = task.conversation
    assert cid is not None  # noqa: S101 - what a store returns has one
    log_state = await read_log(log, cid, is_run=True)
    record, journal = log_state
    spec = await find_agent(task, journal.state, agents, settings)
    # An imported record may name addresses that are not trusted here, so reopening must not overwrite it with an agent
    # resolved from that record; only an agent that the task itself names may replace it.
    is_foreign = journal.state.quarantined and (spec is None or _name_agent(task) is None)
    if spec is None:
        spec = await find_recorded(read_record(journal.state), settings) or read_recorded_spec(journal.state, model)
    spec = with_model(_with_recorded_model(spec, journal.state), model)
    if spec.model is None:  # the first run: `reopen` records the chosen model, so later runs keep it
        spec = settle_spec(spec, settings)
    rules = Rules.build(settings, **read_spec_rules(spec))
    if parent_rules is not None:
        rules = replace(
            rules,
            hooks=parent_rules.hooks,
            analyzer=rules.analyzer or parent_rules.analyzer,
            secrets=parent_rules.secrets,
        )
    if hooks is not None:
        rules = replace(rules, hooks=rules.hooks.narrow(hooks(journal.state.workspace)))
    if credentials is not None:
        found_credentials = await credentials(record, journal.state)
        rules = replace(rules, secrets=found_credentials.secrets or rules.secrets)
        if found_credentials.model_key is not None:
            spec = spec.model_copy(update={"api_key": found_credentials.model_key})
    if not journal.state.quarantined:
        rules = await complete_rules(rules, journal.state.policies, settings, is_own=record.owner is None)
    executor = None if spec.executor is not None else executor
    return await reopen(
        cid, log, spec, executor, settings, rules, cache=cache, log_state=log_state, record_agent=not is_foreign
    )


def _with_recorded_model(spec: AgentSpec, state: State) -> AgentSpec:
    """Return `spec` with the recorded model if it names none."""
    recorded = read_record(state)
    name = recorded.get("model")
    if spec.model is not None or not isinstance(name, str) or name.startswith(MODEL_OBJECT):
        return spec
    return spec.model_copy(update={"model": name, "base_url": spec.base_url or recorded.get("base_url")})


async def find_agent(task: Task, state: State, agents: Mapping[str, AgentSpec], settings: Settings) -> AgentSpec | None:
    """Return the registered agent of a task, else the configured one, else one made from its metadata.

    Returns None if the recorded agent applies. A record that is all data takes precedence over `config.yaml`.

    Raises:
        NotFound: The name is unknown; `details` has `agents` and `nearest`.
        PermissionDenied: `config.yaml` names code for the agent, and the file is not trusted.
        InvalidInput: `config.yaml` has a mistake.
    """
    name, recorded = _name_agent(task), state.agent
    registered = find_registered(task.metadata, name, agents)
    if registered is not None:
        return registered
    if recorded:
        merged = find_for_record(state, agents, settings)
        if merged is not None or is_data(recorded):
            return merged
    if name is None:
        return None if recorded else await make_agent(task.metadata, settings)
    configured = await find_configured(task.metadata, name, settings)
    if configured is not None:
        return settle_spec(configured, settings)
    if recorded:
        return None
    raise unknown_agent(name, agents)


async def find_recorded(recorded: Mapping[str, Any], settings: Settings) -> AgentSpec | None:
    """Return the agent of a record whose only code is tools that `config.yaml` names; None for any other record.

    Raises: see `NamedParts`.
    """
    if list_code(recorded) != {"tools"}:
        return None
    tools = await asyncio.to_thread(lambda: NamedParts.load(settings).find_tools(recorded["tools"]))
    if tools is None:
        return None
    data = {key: value for key, value in recorded.items() if value is not None and key not in CODE_KEYS}
    return AgentSpec.model_validate({**data, "tools": tools})


async def complete_rules(rules: Rules, recorded: JsonObject, settings: Settings, *, is_own: bool) -> Rules:
    """Add the hooks, the analyzer and the secrets that a log names and `rules` lacks, from `config.yaml`.

    Args:
        recorded: The rules as the log records them.
        is_own: Whether the conversation has no owner. Tenants never get the operator's secrets.

    Raises: see `NamedParts`.
    """
    hooks = rules.hooks.find_missing(recorded.get("hooks"))
    recorded_analyzer: JsonObject | None = recorded.get("analyzer")
    analyzer = recorded_analyzer
    if analyzer is not None and (rules.analyzer is not None or is_plain_analyzer(analyzer)):
        analyzer = None
    secrets: list[str] = (recorded.get("secrets") or []) if is_own and not rules.secrets.names else []
    if not (hooks or analyzer or secrets):
        return rules

    def add_configured() -> Rules:
        parts = NamedParts.load(settings)
        return replace(
            rules,
            hooks=rules.hooks.narrow(parts.find_hooks(hooks)) if hooks else rules.hooks,
            analyzer=parts.find_analyzer(analyzer) if analyzer is not None else rules.analyzer,
            secrets=parts.find_secrets(secrets) if secrets else rules.secrets,
        )

    return await asyncio.to_thread(add_configured)


async def has_recorded_agent(spec: AgentSpec, settings: Settings) -> bool:
    """Whether any process with this `config.yaml` can rebuild an agent from its record."""
    recorded = spec.snapshot()
    if spec.api_key is not None or spec.deps is not None:
        return False
    if is_data(recorded):
        return True
    try:
        configured = await find_configured({}, spec.name, settings)
        if configured is not None and all(configured.snapshot()[key] == recorded[key] for key in CODE_KEYS):
            return True
        return await find_recorded(recorded, settings) is not None
    except BoughError:  # the file is untrusted or invalid, so no other process can use it either
        return False


async def has_recorded_rules(rules: Rules, settings: Settings) -> bool:
    """Whether any process with this `config.yaml` can rebuild hooks, analyzer and secrets from their record."""
    recorded = rules.to_json()
    command_hooks = HookSet(tuple(hook for hook in rules.hooks.hooks if hook.function is None))
    analyzer = recorded["analyzer"]
    is_plain = analyzer is None or is_plain_analyzer(analyzer)
    if is_plain and not rules.secrets.names and len(command_hooks.hooks) == len(rules.hooks.hooks):
        return True
    data_only = replace(rules, hooks=command_hooks, analyzer=None, secrets=Secrets())
    try:
        completed = await complete_rules(data_only, recorded, settings, is_own=True)
    except BoughError:
        return False
    has_analyzer = is_plain or completed.analyzer is not None
    return (
        has_analyzer
        and not completed.hooks.find_missing(recorded["hooks"])
        and completed.secrets.names == rules.secrets.names
    )


def is_plain_analyzer(recorded: JsonObject) -> bool:
    """Whether an analyzer can be rebuilt from its record alone."""
    try:
        analyzer_from_json(recorded)
    except InvalidInput:
        return False
    return True


def list_code(recorded: Mapping[str, Any]) -> set[str]:
    """Return the fields of a recorded agent that name code instead of holding data."""
    return {key for key in CODE_KEYS if recorded.get(key)}


def find_registered(metadata: Mapping[str, Any], name: str | None, agents: Mapping[str, AgentSpec]) -> AgentSpec | None:
    """Return the registered agent of a task by its agent path, else by its name; None if missing."""
    path: Any = metadata.get(AGENT_PATH) or ()
    by_path = find_by_path(agents, cast("Sequence[str]", path)) if isinstance(path, list | tuple) else None
    if by_path is not None:
        return by_path
    return None if name is None else agents.get(name)


def find_by_path(agents: Mapping[str, AgentSpec], path: Sequence[str]) -> AgentSpec | None:
    """Return the agent at the end of an agent path; None if a name on the path is unknown."""
    spec = agents.get(path[0]) if path else None
    for name in path[1:]:
        spec = None if spec is None else next((sub for sub in spec.sub_agents if sub.name == name), None)
    return spec


def find_for_record(state: State, agents: Mapping[str, AgentSpec], settings: Settings) -> AgentSpec | None:
    """Return the recorded agent, with its code taken from the registered agent of the same name.

    Returns None if no agent of that name is registered, and for a record that is all data and differs from the
    registered agent: it may be another user's agent of that name, which must not get the registered code. An imported
    record does not decide the model's address or which files are read.

    Raises:
        InvalidInput: The record does not match the spec's schema.
    """
    recorded = state.agent
    registered = agents.get(str(recorded.get("name")))
    if registered is None:
        return None
    if isinstance(registered.model, str):  # resolving the name would require the provider's key
        resolved = registered.model_copy(update={"base_url": registered.base_url or settings.base_url})
    else:
        resolved = settle_spec(registered, settings)
    present = resolved.snapshot()
    if present == recorded:
        return resolved
    if is_data(recorded):
        return None
    return _update_from_record(resolved, present, read_record(state) if state.quarantined else recorded)


def _update_from_record(registered: AgentSpec, present: Mapping[str, Any], recorded: Mapping[str, Any]) -> AgentSpec:
    """Return a registered agent updated with the recorded data.

    The API key and extra request headers and bodies are sent only to the provider and address that they were
    registered for.

    Args:
        present: The snapshot of the registered agent.
    """
    code = {*CODE_KEYS, *(("model", "base_url") if str(recorded.get("model")).startswith(MODEL_OBJECT) else ())}
    changed = {key: value for key, value in recorded.items() if key not in code and value != present.get(key)}
    if changed.get("system_prompt_path") is not None:
        changed.pop("system_prompt", None)
    values = {key: value for key, value in changed.items() if value is not None}
    data = AgentSpec.model_validate({"name": registered.name, **values})
    updates: dict[str, Any] = {key: getattr(data, key) for key in changed}
    spec = registered.model_copy(update=updates)
    unrecorded = {key: value for key, value in registered.settings.items() if key in UNRECORDED_SETTINGS}
    # A record that names another recipient must not receive the registered key: without this check a log could send
    # the key to any address.
    if is_same_recipient(spec.snapshot(), dict(present)):
        return spec.model_copy(update={"settings": {**unrecorded, **spec.settings}}) if unrecorded else spec
    settings = {key: value for key, value in spec.settings.items() if key not in UNRECORDED_SETTINGS}
    return spec.model_copy(update={"api_key": None, "settings": settings})


async def find_configured(metadata: Mapping[str, Any], name: str, settings: Settings) -> AgentSpec | None:
    """Return the agent that `config.yaml` describes, by its agent path, else by its name; None if missing.

    Code that the file names is imported in a thread, since factories may block.

    Raises: see `AgentSpec.from_config`.
    """
    path: Any = metadata.get(AGENT_PATH) or (name,)
    root = await asyncio.to_thread(_load_configured, str(path[0]), settings)
    configured = None if root is None else find_by_path({root.name: root}, cast("Sequence[str]", path))
    if configured is None and len(path) > 1:
        configured = await asyncio.to_thread(_load_configured, name, settings)
    return configured


def _load_configured(name: str, settings: Settings) -> AgentSpec | None:
    if name not in AgentConfig.load(settings=settings).names:
        return None
    return AgentSpec.from_config(name, settings=settings)


async def make_agent(metadata: Mapping[str, Any], settings: Settings) -> AgentSpec:
    """Make an agent from a task's `system_prompt` and the model that its `config_name` names.

    Raises:
        NotFound: `config.yaml` has no such model.
    """
    prompt, model = _text(metadata, "system_prompt"), _text(metadata, "config_name")
    fields: dict[str, Any] = {} if prompt is None else {"system_prompt": prompt}
    if model is not None:
        fields |= await asyncio.to_thread(lambda: AgentConfig.load(settings=settings).model_fields(model))
    return AgentSpec(**fields)


def unknown_agent(name: str, agents: Mapping[str, AgentSpec]) -> NotFound:
    """Return the error for an unknown agent."""
    nearest = difflib.get_close_matches(name, list(agents), n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(sorted(agents)) or 'none'}"
    return NotFound(
        f"no agent named {name!r}",
        hint=hint,
        details={"agent": name, "known": sorted(agents), "nearest": nearest[0] if nearest else None},
    )


def with_model(spec: AgentSpec, model: str | Model | None) -> AgentSpec:
    """Return `spec` with `model`, unless it names one already."""
    return spec if spec.model is not None or model is None else spec.model_copy(update={"model": model})


def is_data(recorded: Mapping[str, Any]) -> bool:
    """Whether any process can rebuild an agent from its record alone."""
    return not str(recorded.get("model")).startswith(MODEL_OBJECT) and not list_code(recorded)


def name_private_queue(spec: AgentSpec) -> str:
    """Return the private queue of an agent, which only programs that registered the agent serve.

    The name depends on the tools, so programs whose agents share a name but not the tools do not run each other's
    tasks.
    """
    toolsets = [toolset.id or type(toolset).__name__ for toolset in spec.toolsets]
    return _name_queue(spec.name, [name_tool(tool) for tool in spec.tools], toolsets)


def name_recorded_queue(recorded: Mapping[str, Any], agents: Mapping[str, AgentSpec]) -> str | None:
    """Return the private queue of a recorded agent that names code; None if the record is all data.

    Args:
        agents: Registered agents. The one of that name provides the code, so its queue is used even if its
            tools changed.
    """
    if is_data(recorded):
        return None
    if (registered := agents.get(str(recorded.get("name")))) is not None:
        return name_private_queue(registered)
    return _name_queue(str(recorded.get("name")), recorded.get("tools") or [], recorded.get("toolsets") or [])


def _name_queue(name: str, tools: Sequence[str], toolsets: Sequence[str]) -> str:
    # Without the module: the same script is `__main__` in one process and a module in another.
    functions = sorted(tool.partition(":")[2] for tool in tools)
    if not functions and not toolsets:
        return f"{PRIVATE}{name}"
    digest = hashlib.sha256(json.dumps([functions, sorted(toolsets)]).encode()).hexdigest()
    return f"{PRIVATE}{name}.{digest[:8]}"


def list_agents(specs: Iterable[AgentSpec]) -> list[AgentSpec]:
    """Return agents and all their sub-agents, depth first."""
    return [agent for spec in specs for agent in (spec, *list_agents(spec.sub_agents))]


def read_workspace(metadata: Mapping[str, Any]) -> Path:
    """Return the folder of a new conversation.

    Raises:
        InvalidInput: The `workspace` of the metadata is not a path.
    """
    workspace = metadata.get("workspace", ".")
    if isinstance(workspace, str | Path):
        return Path(workspace)
    raise InvalidInput(f"the workspace cannot be {workspace!r}", hint="give a path")


def _name_agent(task: Task) -> str | None:
    """Return the name of the agent that a task names; None if it names none."""
    return task.agent_name or _text(task.metadata, "agent_name")


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{key} must be text, not {value!r:.80}", details={"key": key})
