"""The context of a running tool, passed to every tool as PydanticAI's `deps`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.agents.delegation_protocol import Delegation, SharedBound
from bough.effects import effect_key
from bough.errors import NotFound
from bough.events.model import Event
from bough.events.record import Lease
from bough.execution.base import USUAL_GUARDS, CodeExecutor, Guards


async def _drop(_: Event) -> None:
    """Discard the event: there is no log outside a conversation."""


async def _no_result(result: str) -> str:
    """Find nothing: outside a conversation there are no results."""
    raise NotFound(f"no result {result!r}", hint="results can be read inside a conversation only")


def _no_task(_: str) -> str | None:
    """Find nothing: outside a conversation no task was started."""
    return None


def _no_secrets(names: Iterable[str]) -> Mapping[str, str]:
    """Return nothing: outside a conversation there are no secrets."""
    return {}


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """The context of one run.

    The defaults are those of a tool outside a conversation. What changes during a run is a function, because the object
    itself is created once and frozen.

    Attributes:
        workspace: The working folder; None gives each script run a new folder.
        guards: The names in the workspace that neither scripts nor tools may change.
        readonly: Whether the workspace is read-only; scripts get a new folder instead of it.
        executor: Runs scripts if the toolset has no executor.
        emit: Appends an event to the conversation's log; durable when it returns.
        active_skills: Returns the skills whose text is in the conversation now: hash by name.
        skill_trees: Returns the snapshots that scripts and files of active skills come from: digest by skill name.
        changed_rules: Returns the digests of the rule files that tools of the conversation changed.
        secrets: Returns the environment of a script that declares these secrets. Blocks while providers are read.
        mask: Returns a text without the values of secrets.
        secret_names: Returns the names of all available secrets.
        timeout_seconds: Wall time of a script; None takes the executor's default.
        conversation: The id of the conversation; None outside a conversation.
        lease: The lease it runs under.
        rules: Returns the rules in force, by their parameter names in `AsyncConversation.create`.
        read_result: Returns the whole text of a result of this conversation, by the id of its event in hexadecimal.
        result_chars: Maximum length of a result that the model sees, in characters.
        delegation: Runs tasks of sub-agents; None if there is no broker.
        bounds: Returns the bounds of a task that is started now.
        task_of_call: Returns the id of the task that a call started before, or None.
        leaves_calls_open: Returns whether the run is being stopped so that another run continues its calls.
        untold_tasks: Returns the ids of ended tasks whose end was not reported to the conversation yet.
    """

    workspace: Path | None = None
    guards: Guards = USUAL_GUARDS
    readonly: bool = False
    executor: CodeExecutor | None = None
    emit: Callable[[Event], Awaitable[None]] = _drop
    active_skills: Callable[[], Mapping[str, str]] = dict[str, str]
    skill_trees: Callable[[], Mapping[str, str]] = dict[str, str]
    changed_rules: Callable[[], Collection[str]] = frozenset[str]
    secrets: Callable[[Iterable[str]], Mapping[str, str]] = _no_secrets
    mask: Callable[[str], str] = str
    secret_names: Callable[[], tuple[str, ...]] = tuple[str, ...]
    timeout_seconds: float | None = None
    conversation: UUID | None = None
    lease: Lease | None = None
    rules: Callable[[], Mapping[str, Any]] = dict[str, Any]
    read_result: Callable[[str], Awaitable[str]] = _no_result
    result_chars: int = 32_000
    delegation: Delegation | None = None
    bounds: Callable[[], tuple[SharedBound, ...]] = tuple[SharedBound, ...]
    untold_tasks: Callable[[], tuple[str, ...]] = tuple[str, ...]
    task_of_call: Callable[[str], str | None] = _no_task
    leaves_calls_open: Callable[[], bool] = bool

    @property
    def effect_key(self) -> str:
        """The key of the tool call that is running; see `bough.effect_key`."""
        return effect_key()


def as_tool_context(deps: Any) -> ToolContext:
    """Convert the deps of a run to a `ToolContext`.

    For deps of another type, their `code_executor` or `executor` runs scripts, in the folder `workspace`.
    """
    # `SkillToolset` also works in a plain PydanticAI agent, whose deps may be anything.
    if isinstance(deps, ToolContext):
        return deps
    executor = getattr(deps, "code_executor", None) or getattr(deps, "executor", None)
    workspace = getattr(deps, "workspace", None)
    return ToolContext(
        executor=executor if hasattr(executor, "execute") else None,
        workspace=None if workspace is None else Path(workspace),
    )
