"""The context of a running tool, passed to every tool as PydanticAI's `deps`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.agents.delegation_protocol import Delegation, SharedBound
from bough.agents.writes import report_path
from bough.effects import effect_key
from bough.errors import NotFound
from bough.events.model import Event
from bough.events.record import Lease
from bough.execution.base import USUAL_GUARDS, CodeExecutor, Guards
from bough.types import Json


async def _discard_event(_: Event) -> None:
    """Discard the event: there is no log outside a conversation."""


async def _raise_no_result(result: str) -> str:
    """Raise `NotFound`: there are no results outside a conversation."""
    raise NotFound(f"no result {result!r}", hint="results can be read inside a conversation only")


def _find_no_task(_: str) -> str | None:
    """Return None: there are no tasks outside a conversation."""
    return None


def _read_no_secrets(names: Iterable[str]) -> Mapping[str, str]:
    """Return an empty mapping: there are no secrets outside a conversation."""
    return {}


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool can use of its run and conversation; the defaults apply outside a conversation.

    The object is created once per run and frozen. So attributes whose value changes during the run are functions.

    Attributes:
        workspace: The working folder; None: each script run gets a new folder.
        guards: The names in the workspace that neither scripts nor tools may change.
        readonly: Whether the workspace is read-only; if so, each script run gets a new folder.
        executor: Runs scripts if the toolset has no executor.
        emit: Appends an event to the conversation's log; the event is durable when it returns.
        active_skills: Returns the hashes of the skill texts in the conversation, by skill name.
        skill_trees: Returns the digests of the snapshots that active skills use, by skill name.
        changed_rules: Returns the digests of rule files that changed while tools of the conversation ran.
        secrets: Returns the values of secrets as environment variables, by name. Blocks while it reads providers.
        mask: Returns a text without the values of secrets.
        secret_names: Returns the names of all available secrets.
        timeout_seconds: Time limit of a script; None: the executor's default.
        conversation: The id of the conversation; None outside a conversation.
        lease: The lease of the run.
        rules: Returns the rules in force, by their parameter names in `AsyncConversation.create`.
        read_result: Returns the whole text of a tool result, by the hexadecimal id of its event.
        result_chars: Maximum length of a result for the model, in characters.
        delegation: Runs tasks of sub-agents; None if there is no broker.
        bounds: Returns the limits of a task that is started now.
        task_of_call: Returns the id of the task that a call has already started; None if it has started none.
        leaves_calls_open: Returns whether the run is stopping in such a way that another run continues its calls.
        unreported_tasks: Returns the ids of tasks whose end was not reported to the conversation yet.
    """

    workspace: Path | None = None
    guards: Guards = USUAL_GUARDS
    readonly: bool = False
    executor: CodeExecutor | None = None
    emit: Callable[[Event], Awaitable[None]] = _discard_event
    active_skills: Callable[[], Mapping[str, str]] = dict[str, str]
    skill_trees: Callable[[], Mapping[str, str]] = dict[str, str]
    changed_rules: Callable[[], Collection[str]] = frozenset[str]
    secrets: Callable[[Iterable[str]], Mapping[str, str]] = _read_no_secrets
    mask: Callable[[str], str] = str
    secret_names: Callable[[], tuple[str, ...]] = tuple[str, ...]
    timeout_seconds: float | None = None
    conversation: UUID | None = None
    lease: Lease | None = None
    rules: Callable[[], Mapping[str, Json]] = dict[str, Json]
    read_result: Callable[[str], Awaitable[str]] = _raise_no_result
    result_chars: int = 32_000
    delegation: Delegation | None = None
    bounds: Callable[[], tuple[SharedBound, ...]] = tuple[SharedBound, ...]
    unreported_tasks: Callable[[], tuple[str, ...]] = tuple[str, ...]
    task_of_call: Callable[[str], str | None] = _find_no_task
    leaves_calls_open: Callable[[], bool] = bool

    @property
    def effect_key(self) -> str:
        """The key of the tool call that is running; see `bough.effect_key`."""
        return effect_key()

    def wrote(self, path: str) -> None:
        """Report a file that the running call wrote, by its path relative to the workspace.

        A tool whose metadata has `"writes": "told"` must report every file; only these are examined after the call.
        """
        report_path(path)


def as_tool_context(deps: Any) -> ToolContext:
    """Return the deps of a run as a `ToolContext`.

    From deps of another type, it takes the attributes `code_executor` or `executor`, and `workspace`.
    """
    # `SkillToolset` can be used in any PydanticAI agent, so the deps may have any type.
    if isinstance(deps, ToolContext):
        return deps
    executor = getattr(deps, "code_executor", None) or getattr(deps, "executor", None)
    workspace = getattr(deps, "workspace", None)
    return ToolContext(
        executor=executor if hasattr(executor, "execute") else None,
        workspace=None if workspace is None else Path(workspace),
    )
