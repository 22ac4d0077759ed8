"""What a tool may use while it runs: handed to every tool as PydanticAI's `deps`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.agents.delegation import Delegation, SharedBound
from bough.errors import NotFound
from bough.events.model import Event
from bough.events.record import Lease
from bough.execution.base import USUAL_GUARDS, CodeExecutor, Guards


async def _drop(_: Event) -> None:
    """Record nothing: a tool that runs outside a conversation has no log."""


async def _no_result(result: str) -> str:
    """Find nothing: a tool that runs outside a conversation has no results to read."""
    raise NotFound(f"there is no result {result!r}", hint="results are kept by conversations")


def _no_task(_: str) -> str | None:
    """Find nothing: a tool that runs outside a conversation has started nothing."""
    return None


def _no_secrets(names: Iterable[str]) -> Mapping[str, str]:
    """Give nothing: a tool that runs outside a conversation has no secrets."""
    return {}


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """The environment of one run.

    Attributes:
        workspace: The working folder; None gives scripts a fresh one each time.
        guards: What of the workspace neither scripts nor tools change.
        readonly: Whether the workspace may only be read; scripts get a fresh folder instead of it.
        executor: What runs scripts where the toolset has none of its own.
        emit: Appends an event to the conversation's log, durable on return.
        active_skills: Returns the names of the skills whose text is in the conversation now, with their hashes.
        skill_trees: Returns, by name, the digest of the copy that an active skill's scripts and files are taken from.
        secrets: Returns the environment of a script that declares these names of secrets; it blocks as providers do.
        secret_names: Returns the names of the secrets that there are.
        timeout_seconds: Wall time of a script; None takes the executor's default.
        conversation: Which conversation runs; None outside one.
        lease: The lease it runs under.
        rules: Returns the rules in force now, by the names that `AsyncConversation.create` takes them by.
        read_result: Returns the whole text of a result of this conversation, by its event's id in hexadecimal.
        result_chars: How much of a result the model is shown.
        delegation: Runs tasks of sub-agents; None where nobody does.
        bounds: Returns the bounds that a task started now has to keep.
        task_of_call: Returns the id of the task that a call has started before, None where it has started none.
        leaves_calls_open: Says whether the run is being stopped so that another one continues with its calls.
        untold_tasks: Returns the ids of the conversation's tasks whose end it was not told.
    """

    workspace: Path | None = None
    guards: Guards = USUAL_GUARDS
    readonly: bool = False
    executor: CodeExecutor | None = None
    emit: Callable[[Event], Awaitable[None]] = _drop
    active_skills: Callable[[], Mapping[str, str]] = dict[str, str]
    skill_trees: Callable[[], Mapping[str, str]] = dict[str, str]
    secrets: Callable[[Iterable[str]], Mapping[str, str]] = _no_secrets
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


def context_of(deps: Any) -> ToolContext:
    """Return the environment that a run's deps give: themselves, or what an object of another kind has of them.

    Of another kind of deps, `code_executor` or `executor` runs scripts, and `workspace` is the folder they work in.
    """
    if isinstance(deps, ToolContext):
        return deps
    executor = getattr(deps, "code_executor", None) or getattr(deps, "executor", None)
    workspace = getattr(deps, "workspace", None)
    return ToolContext(
        executor=executor if hasattr(executor, "execute") else None,
        workspace=None if workspace is None else Path(workspace),
    )
