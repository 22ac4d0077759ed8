"""Which agent a task runs, and its conversation opened with it."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic_ai.models import Model

from bough.agents.build import BlueprintCache
from bough.agents.config.agents import AgentConfig
from bough.agents.spec import MODEL_OBJECT, AgentSpec
from bough.config import Settings
from bough.conversation.agent import CODE_KEYS, recorded_spec, settled_spec
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.open import reopened
from bough.conversation.parts import Parts
from bough.conversation.rules import GivenRules, Rules
from bough.errors import InvalidInput, NotFound
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.guard import HookSet, Secrets
from bough.tasks.model import Task

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
) -> Parts:
    """Return the conversation of a claimed task, with the agent that it is to be run by.

    Args:
        agents: Registered specs by name.
        model: For an agent without one of its own.
        credentials: Finds what the log only names; None: there is nothing of that kind.
        cache: Shares what several tasks have in common.

    Raises:
        NotFound: No agent of that name is known here: neither registered, nor recorded, nor configured.
        InvalidInput: The agent cannot be built, or its workspace is gone.
    """
    cid = task.conversation
    assert cid is not None  # noqa: S101 - what a store returns has one
    journal = Journal(log, cid)
    await journal.catch_up()
    recorded = journal.state.agent
    spec = await find_agent(task, recorded, agents, settings)
    if spec is None:
        spec = recorded_spec(journal.state)
    spec = with_model(spec, model)
    rules = Rules.given(settings, **cast("GivenRules", rules_of(spec)))
    if hooks is not None:
        rules = replace(rules, hooks=hooks(journal.state.workspace))
    if credentials is not None:
        found = await credentials(await log.get(cid), journal.state)
        rules = replace(rules, secrets=found.secrets or rules.secrets)
        spec = spec if found.model_key is None else spec.model_copy(update={"api_key": found.model_key})
    return await reopened(cid, log, spec, None, settings, rules, cache=cache)


async def find_agent(
    task: Task, recorded: Mapping[str, Any], known: Mapping[str, AgentSpec], settings: Settings
) -> AgentSpec | None:
    """Return the agent of a task: registered, or of `config.yaml`, or made of its metadata; None for the recorded one.

    What is recorded goes before `config.yaml` where it is all data.

    Raises:
        NotFound: Nobody here knows the name; `details` has `known` and `nearest`.
        PermissionDenied: `config.yaml` names code for it, and that is not trusted.
        InvalidInput: `config.yaml` has a mistake.
    """
    name = task.agent_name or _text(task.metadata, "agent_name")
    registered = find_registered(task.metadata, name, known)
    if registered is not None:
        return registered
    if recorded:
        same = find_same(recorded, known, settings)
        if same is not None or queue_of_recorded(recorded) is None:
            return same
    if name is None:
        return None if recorded else await make_agent(task.metadata, settings)
    configured = await find_configured(task.metadata, name, settings)
    if configured is not None:
        return settled_spec(configured, settings)
    if recorded:
        return None  # which says what its record only names
    raise unknown_agent(name, known)


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


def find_same(recorded: Mapping[str, Any], known: Mapping[str, AgentSpec], settings: Settings) -> AgentSpec | None:
    """Return the registered spec that a log recorded, whose Python tools it only names; None where none is the same."""
    registered = known.get(str(recorded.get("name")))
    if registered is None:
        return None
    settled = settled_spec(registered, settings)
    return settled if settled.snapshot() == recorded else None


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


def is_all_data(spec: AgentSpec) -> bool:
    """Whether a log that records the spec is enough to build it again, in any process."""
    has_code = isinstance(spec.model, Model) or spec.tools or spec.agent is not None or spec.executor is not None
    return not (has_code or spec.a2a_clients or spec.skills is not None or spec.sub_agents)


def queue_of_recorded(recorded: Mapping[str, Any]) -> str | None:
    """Return the queue of an agent whose record names code: programs that registered it serve it; None for data."""
    has_model = str(recorded.get("model")).startswith(MODEL_OBJECT)
    is_data = not has_model and not any(recorded.get(key) for key in CODE_KEYS)
    return None if is_data else f"{PRIVATE}{recorded.get('name')}"


def list_names(specs: Iterable[AgentSpec]) -> set[str]:
    """Return the names of agents and of all that stand below them."""
    return {name for spec in specs for name in (spec.name, *list_names(spec.sub_agents))}


def workspace_of(metadata: Mapping[str, Any]) -> Path:
    """Return the folder of a new conversation.

    Raises:
        InvalidInput: It is named by something that is not a path.
    """
    given = metadata.get("workspace", ".")
    if isinstance(given, str | Path):
        return Path(given)
    raise InvalidInput(f"the workspace cannot be {given!r}", hint="give a path")


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{key} must be text, not {value!r:.80}", details={"key": key})
