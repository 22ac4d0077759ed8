"""What a running tool call reports about the files of its workspace, so that a run need not search for changes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from bough.types import JsonObject

WRITES: Final = "writes"
"""Key in the metadata of a tool: `False` for a tool that writes no file of the workspace, `"told"` for one that reports
every path with `ToolContext.wrote`. Without it, the workspace is searched for changes after each call."""

Writes: TypeAlias = Literal["none", "told", "any"]
"""What a tool may write: no file, the files whose paths it reports, or any file."""


def read_writes(metadata: JsonObject | None) -> Writes:
    """Return what a tool with this metadata may write."""
    match (metadata or {}).get(WRITES):
        case False:
            return "none"
        case "told":
            return "told"
        case _:
            return "any"


@dataclass
class CallWrites:
    """What one tool call reported.

    Attributes:
        paths: The paths that it wrote, relative to the workspace.
        executions: For each run of code, whether it changed the workspace; None if that is not known.
    """

    paths: set[str] = field(default_factory=set[str])
    executions: list[bool | None] = field(default_factory=list[bool | None])

    @property
    def excludes_changes(self) -> bool:
        """Whether the call only ran code that did not change the workspace, and wrote no file itself."""
        return bool(self.executions) and not self.paths and all(changed is False for changed in self.executions)


_current: ContextVar[CallWrites | None] = ContextVar("call_writes", default=None)


@contextmanager
def collect_writes() -> Generator[CallWrites]:
    """Collect the reports of the block, and of the threads and tasks that it starts."""
    writes = CallWrites()
    token = _current.set(writes)
    try:
        yield writes
    finally:
        _current.reset(token)


def report_path(path: str) -> None:
    """Report that the running tool call wrote a file. Does nothing outside a call."""
    if (writes := _current.get()) is not None:
        writes.paths.add(path)


def report_execution(changed: bool | None) -> None:
    """Report whether code that the running tool call ran changed the workspace; None if that is not known."""
    if (writes := _current.get()) is not None:
        writes.executions.append(changed)
