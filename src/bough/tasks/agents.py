"""Which agent a task runs, and its conversation opened with it."""

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
from bough.conversation.open import find_log, reopen
from bough.conversation.parts import Parts
from bough.conversation.rules import GivenRules, Rules
from bough.errors import BoughError, InvalidInput, NotFound
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard import HookSet, Secrets, analyzer_from_json
from bough.settings import Settings
from bough.tasks.model import Task
from bough.types import JsonObject

FindHooks: TypeAlias = Callable[[Path], HookSet]
"""Finds the hooks that hold in a workspace."""


class Credentials(NamedTuple):
    """What a conversation's log only names, for the run of its task.

    Attributes:
        model_key: The key of its model; None takes the operator's own.
    """

    secrets: Secrets | None = None
    model_key: str | None = None


FindCredentials: TypeAlias = Callable[[ConversationRecord, State], Awaitable[Credentials]]
"""Finds the secrets of a conversation that a task runs. Raises `Unavailable` where one cannot be opened."""


def register(known: dict[str, AgentSpec], specs: Mapping[str, AgentSpec] | Iterable[AgentSpec]) -> None:
    """Add agents and the sub-agents below them to `known`; a sub-agent takes the name of no other.

    Raises:
        InvalidInput: Something else than an `AgentSpec` is among them; those before it are added.
    """
    pairs: Iterable[tuple[str | None, AgentSpec]]
    if isinstance(specs, Mapping):
        pairs = cast("Mapping[str, AgentSpec]", specs).items()
    else:
        pairs = ((None, spec) for spec in specs)
    for name, spec in pairs:
        if not isinstance(spec, AgentSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"{spec!r:.80} is not an agent", hint="give AgentSpec objects")
        known[spec.name if name is None else name] = spec
        for below in spec.sub_agents:
            if below.name not in known:
                register(known, [below])


AGENT_PATH = "agent_path"
"""In a task's metadata: names of the agents from the one a person started down to its own, by which it is found.

An agent's name says who it is only below the agent that has it as a sub-agent.
"""

PRIVATE = "~"
"""Begins the queue of an agent that only the program which made it can run."""


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
    given: Rules | None = None,
    executor: CodeExecutor | None = None,
) -> Parts:
    """Return the conversation of a claimed task, with the agent that it is to be run by.

    Args:
        agents: Registered specs by name.
        model: For an agent without one of its own.
        credentials: Finds what the log only names; None: there is nothing of that kind.
        cache: Shares what several tasks have in common.
        given: Its parent's rules, where this process started it: hooks, analyzers and secrets are there as objects.
        executor: Runs scripts of an agent without one of its own; None takes the settings' one.

    Raises:
        NotFound: No agent of that name is known here: neither registered, nor recorded, nor configured.
        InvalidInput: The agent cannot be built, or its workspace is gone.
    """
    cid = task.conversation
    assert cid is not None  # noqa: S101 - what a store returns has one
    found = await find_log(log, cid, is_run=True)
    record, journal = found
    spec = await find_agent(task, journal.state, agents, settings)
    # What an imported record says of addresses stays recorded: only an agent that the task names replaces it.
    is_foreign = journal.state.quarantined and (spec is None or _name_agent(task) is None)
    if spec is None:
        spec = await find_recorded(read_record(journal.state), settings) or read_recorded_spec(journal.state, model)
    spec = with_model(_with_recorded_model(spec, journal.state), model)
    if spec.model is None:  # its first run: `reopen` records it
        spec = settle_spec(spec, settings)
    rules = Rules.build(settings, **cast("GivenRules", rules_of(spec)))
    if given is not None:
        rules = replace(rules, hooks=given.hooks, analyzer=rules.analyzer or given.analyzer, secrets=given.secrets)
    if hooks is not None:
        rules = replace(rules, hooks=rules.hooks.narrow(hooks(journal.state.workspace)))
    if credentials is not None:
        known = await credentials(record, journal.state)
        rules = replace(rules, secrets=known.secrets or rules.secrets)
        spec = spec if known.model_key is None else spec.model_copy(update={"api_key": known.model_key})
    if not journal.state.quarantined:
        rules = await complete_rules(rules, journal.state.policies, settings, is_own=record.owner is None)
    executor = None if spec.executor is not None else executor
    return await reopen(
        cid, log, spec, executor, settings, rules, cache=cache, found=found, record_agent=not is_foreign
    )


def _with_recorded_model(spec: AgentSpec, state: State) -> AgentSpec:
    """Return a spec that names no model with the one that its submission or an earlier run recorded."""
    recorded = read_record(state)
    name = recorded.get("model")
    if spec.model is not None or not isinstance(name, str) or name.startswith(MODEL_OBJECT):
        return spec
    return spec.model_copy(update={"model": name, "base_url": spec.base_url or recorded.get("base_url")})


async def find_agent(task: Task, state: State, known: Mapping[str, AgentSpec], settings: Settings) -> AgentSpec | None:
    """Return the agent of a task: registered, or of `config.yaml`, or made of its metadata; None for the recorded one.

    What is recorded goes before `config.yaml` where it is all data.

    Raises:
        NotFound: Nobody here knows the name; `details` has `known` and `nearest`.
        PermissionDenied: `config.yaml` names code for it, and that is not trusted.
        InvalidInput: `config.yaml` has a mistake.
    """
    name, recorded = _name_agent(task), state.agent
    registered = find_registered(task.metadata, name, known)
    if registered is not None:
        return registered
    if recorded:
        found = find_for_record(state, known, settings)
        if found is not None or is_data(recorded):
            return found
    if name is None:
        return None if recorded else await make_agent(task.metadata, settings)
    configured = await find_configured(task.metadata, name, settings)
    if configured is not None:
        return settle_spec(configured, settings)
    if recorded:
        return None
    raise unknown_agent(name, known)


async def find_recorded(recorded: Mapping[str, Any], settings: Settings) -> AgentSpec | None:
    """Return the agent of a record whose tools `config.yaml` names, and which is data otherwise; None for another.

    Raises: see `NamedParts`.
    """
    if list_code(recorded) != {"tools"}:
        return None
    named = await asyncio.to_thread(lambda: NamedParts.load(settings).find_tools(recorded["tools"]))
    if named is None:
        return None
    data = {key: value for key, value in recorded.items() if value is not None and key not in CODE_KEYS}
    return AgentSpec.model_validate({**data, "tools": named})


async def complete_rules(rules: Rules, recorded: JsonObject, settings: Settings, *, is_own: bool) -> Rules:
    """Return rules with those hooks, that analyzer and those secrets of `config.yaml` which a log names and they lack.

    Args:
        recorded: The rules of the log.
        is_own: Whether the conversation is nobody else's: the operator's secrets are not for tenants.

    Raises: see `NamedParts`.
    """
    hooks = find_missing_hooks(rules, recorded)
    said: JsonObject | None = recorded.get("analyzer")
    analyzer = None if said is None or rules.analyzer is not None or is_plain_analyzer(said) else said
    secrets: list[str] = (recorded.get("secrets") or []) if is_own and not rules.secrets.names else []
    if not (hooks or analyzer or secrets):
        return rules

    def look() -> Rules:
        named = NamedParts.load(settings)
        return replace(
            rules,
            hooks=rules.hooks.narrow(named.find_hooks(hooks)) if hooks else rules.hooks,
            analyzer=named.find_analyzer(analyzer) if analyzer is not None else rules.analyzer,
            secrets=named.find_secrets(secrets) if secrets else rules.secrets,
        )

    return await asyncio.to_thread(look)


async def has_recorded_agent(spec: AgentSpec, settings: Settings) -> bool:
    """Whether any process with this `config.yaml` can make an agent of what a log says of it."""
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
    except BoughError:  # nobody has trusted the file, or it has a mistake: then nobody else finds anything in it
        return False


async def has_recorded_rules(rules: Rules, settings: Settings) -> bool:
    """Whether any process with this `config.yaml` has the hooks, the analyzer and the secrets that a log only names."""
    said = rules.to_json()
    commands = HookSet(tuple(hook for hook in rules.hooks.hooks if hook.function is None))
    analyzer = said["analyzer"]
    is_plain = analyzer is None or is_plain_analyzer(analyzer)
    if is_plain and not rules.secrets.names and len(commands.hooks) == len(rules.hooks.hooks):
        return True
    bare = replace(rules, hooks=commands, analyzer=None, secrets=Secrets())
    try:
        found = await complete_rules(bare, said, settings, is_own=True)
    except BoughError:
        return False
    has_analyzer = is_plain or found.analyzer is not None
    return has_analyzer and not find_missing_hooks(found, said) and found.secrets.names == rules.secrets.names


def find_missing_hooks(rules: Rules, recorded: JsonObject) -> list[JsonObject]:
    """Return the hooks of recorded rules that these rules do not have."""
    here, said = rules.hooks.to_json(), recorded.get("hooks")
    wanted = cast("list[JsonObject]", said or [])
    return [hook for hook in wanted if hook not in cast("list[JsonObject]", here or [])]


def is_plain_analyzer(recorded: JsonObject) -> bool:
    """Whether a recorded analyzer can be made of its record."""
    try:
        analyzer_from_json(recorded)
    except InvalidInput:
        return False
    return True


def list_code(recorded: Mapping[str, Any]) -> set[str]:
    """Return the fields of a recorded agent that its record only names."""
    return {key for key in CODE_KEYS if recorded.get(key)}


def find_registered(metadata: Mapping[str, Any], name: str | None, known: Mapping[str, AgentSpec]) -> AgentSpec | None:
    """Return the registered agent of a task: by the way down to it, else by its name; None where there is none."""
    path: Any = metadata.get(AGENT_PATH) or ()
    by_path = find_by_path(known, cast("Sequence[str]", path)) if isinstance(path, list | tuple) else None
    return by_path or (None if name is None else known.get(name))


def find_by_path(known: Mapping[str, AgentSpec], path: Sequence[str]) -> AgentSpec | None:
    """Return the agent at the end of a way down from a registered one; None where the way leads nowhere."""
    spec = known.get(path[0]) if path else None
    for name in path[1:]:
        spec = None if spec is None else next((each for each in spec.sub_agents if each.name == name), None)
    return spec


def find_for_record(state: State, known: Mapping[str, AgentSpec], settings: Settings) -> AgentSpec | None:
    """Return the agent of a record with the code of the registered agent of that name; everything else is recorded.

    None where no agent of that name is registered, and for a record that is all data and differs from that agent: it
    may be somebody else's agent of that name, which must not get its code. A record from elsewhere does not say where
    the model is asked, nor which files are read.

    Raises:
        InvalidInput: The record does not fit.
    """
    recorded = state.agent
    registered = known.get(str(recorded.get("name")))
    if registered is None:
        return None
    if isinstance(registered.model, str):  # its name is final; looking it up would need its key
        settled = registered.model_copy(update={"base_url": registered.base_url or settings.base_url})
    else:
        settled = settle_spec(registered, settings)
    present = settled.snapshot()
    if present == recorded:
        return settled
    if is_data(recorded):
        return None
    return _update_from_record(settled, present, read_record(state) if state.quarantined else recorded)


def _update_from_record(registered: AgentSpec, present: Mapping[str, Any], recorded: Mapping[str, Any]) -> AgentSpec:
    """Return a registered agent with what was recorded of it as data.

    A key is only for the provider and address that it was registered for, and so are headers and bodies of requests.

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
    if is_same_recipient(spec.snapshot(), dict(present)):
        return spec.model_copy(update={"settings": {**unrecorded, **spec.settings}}) if unrecorded else spec
    settings = {key: value for key, value in spec.settings.items() if key not in UNRECORDED_SETTINGS}
    return spec.model_copy(update={"api_key": None, "settings": settings})


async def find_configured(metadata: Mapping[str, Any], name: str, settings: Settings) -> AgentSpec | None:
    """Return the agent that `config.yaml` describes, by the way down to it, else by its name; None for none.

    Code that it names is imported in a thread: factories may block.

    Raises: see `AgentSpec.from_config`.
    """
    path: Any = metadata.get(AGENT_PATH) or (name,)
    root = await asyncio.to_thread(_load_configured, str(path[0]), settings)
    found = None if root is None else find_by_path({root.name: root}, cast("Sequence[str]", path))
    return found or (await asyncio.to_thread(_load_configured, name, settings) if len(path) > 1 else None)


def _load_configured(name: str, settings: Settings) -> AgentSpec | None:
    if name not in AgentConfig.load(settings=settings).names:
        return None
    return AgentSpec.from_config(name, settings=settings)


async def make_agent(metadata: Mapping[str, Any], settings: Settings) -> AgentSpec:
    """Return the agent of a task without one: of its `system_prompt`, and the model that `config_name` names.

    Raises:
        NotFound: `config.yaml` has no such model.
    """
    prompt, model = _text(metadata, "system_prompt"), _text(metadata, "config_name")
    fields: dict[str, Any] = {} if prompt is None else {"system_prompt": prompt}
    if model is not None:
        fields |= await asyncio.to_thread(lambda: AgentConfig.load(settings=settings).model_fields(model))
    return AgentSpec(**fields)


def unknown_agent(name: str, known: Mapping[str, AgentSpec]) -> NotFound:
    """Return the error of an agent that nobody here knows."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(sorted(known)) or 'none'}"
    return NotFound(
        f"no agent named {name!r}",
        hint=hint,
        details={"agent": name, "known": sorted(known), "nearest": nearest[0] if nearest else None},
    )


def with_model(spec: AgentSpec, model: str | Model | None) -> AgentSpec:
    """Return the spec with a model: its own wins."""
    return spec if spec.model is not None or model is None else spec.model_copy(update={"model": model})


def rules_of(spec: AgentSpec) -> dict[str, Any]:
    """Return the rules that a spec gives its conversations, by the names of `GivenRules`."""
    given = {
        "limits": spec.limits,
        "confirmation_policy": spec.confirmation_policy,
        "allow_list": spec.allow_list,
    }
    return {name: rule for name, rule in given.items() if rule is not None}


def is_data(recorded: Mapping[str, Any]) -> bool:
    """Whether a recorded agent can be made of its record, in any process."""
    return not str(recorded.get("model")).startswith(MODEL_OBJECT) and not list_code(recorded)


def name_private_queue(spec: AgentSpec) -> str:
    """Return the queue of an agent that only programs which registered it can run.

    Of two programs whose agents share a name, and have not the same tools, neither serves the other's.
    """
    toolsets = [toolset.id or type(toolset).__name__ for toolset in spec.toolsets]
    return _name_queue(spec.name, [name_tool(tool) for tool in spec.tools], toolsets)


def queue_of_recorded(recorded: Mapping[str, Any], known: Mapping[str, AgentSpec]) -> str | None:
    """Return the private queue of an agent whose record names code; None for one that is data.

    Args:
        known: Registered agents. One of that name gives the code, so its queue counts, whatever tools it has now.
    """
    if is_data(recorded):
        return None
    if (registered := known.get(str(recorded.get("name")))) is not None:
        return name_private_queue(registered)
    return _name_queue(str(recorded.get("name")), recorded.get("tools") or [], recorded.get("toolsets") or [])


def _name_queue(name: str, tools: Sequence[str], toolsets: Sequence[str]) -> str:
    functions = sorted(tool.partition(":")[2] for tool in tools)  # `__main__` has another name in other processes
    if not functions and not toolsets:
        return f"{PRIVATE}{name}"
    return f"{PRIVATE}{name}.{hashlib.sha256(json.dumps([functions, sorted(toolsets)]).encode()).hexdigest()[:8]}"


def list_agents(specs: Iterable[AgentSpec]) -> list[AgentSpec]:
    """Return agents and all that stand below them."""
    return [each for spec in specs for each in (spec, *list_agents(spec.sub_agents))]


def workspace_of(metadata: Mapping[str, Any]) -> Path:
    """Return the folder of a new conversation.

    Raises:
        InvalidInput: It is named by something that is not a path.
    """
    given = metadata.get("workspace", ".")
    if isinstance(given, str | Path):
        return Path(given)
    raise InvalidInput(f"the workspace cannot be {given!r}", hint="give a path")


def _name_agent(task: Task) -> str | None:
    """Return the name of the agent that a task asks for."""
    return task.agent_name or _text(task.metadata, "agent_name")


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{key} must be text, not {value!r:.80}", details={"key": key})
