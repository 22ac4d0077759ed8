"""Finds the step of a conversation that broke its files: a binary search over the trees that its log names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from bough.cancellation import finish
from bough.conversation.check import RunCheck, run_in_folder
from bough.conversation.fork.file_changes import FileChanges
from bough.conversation.fork.files import KeptTree, PastFiles, WorkspaceFolder, replace_by
from bough.conversation.fork.workspace import fork_workspace, make_unfinished_path, remove_workspace
from bough.errors import ExecutorError, InvalidInput, NotFound
from bough.events.model import FilesKept, ToolCalled
from bough.events.store import EventStore
from bough.execution.base import NO_GUARDS, CodeExecutionResult, CodeExecutor
from bough.types import JsonObject, new_id

SKIP_CODE: Final = 125
"""Exit code of a check that cannot judge the files, as for `git bisect run`."""

_MAX_BAD_CODE: Final = 124

Verdict: TypeAlias = Literal["good", "bad", "skip"]
Judge: TypeAlias = Callable[[str], Awaitable[Verdict]]
"""Judges a tree of files."""


class Candidate(NamedTuple):
    """A step that changed files: the seq of its event, its call, and the trees before and after it."""

    seq: int
    tool_call_id: str | None
    before: str
    tree: str


class SearchResult(NamedTuple):
    """The result of a search among candidates.

    Attributes:
        first_bad: The index of the first bad candidate; None if the last candidate is good.
        unjudged: Indices of earlier candidates that the check could not judge. One of them may be the first bad one.
        start_checked: Whether the files before the first candidate were judged too.
    """

    first_bad: int | None
    unjudged: tuple[int, ...] = ()
    start_checked: bool = False


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The result of a search for the step that broke the files.

    Attributes:
        seq: Seq of the event that names the first bad files; None if the last files are good.
        tool_call_id: The call that changed them.
        tool: The tool of that call.
        checks: How many times the check ran.
        changes: What the step changed, with the patch.
        start_checked: Whether the check has passed with the files before the first step.
        unjudged: Seqs of earlier steps that the check could not judge; each of them may be the first bad one.
    """

    seq: int | None
    checks: int
    tool_call_id: str | None = None
    tool: str | None = None
    changes: FileChanges = field(default_factory=FileChanges)
    start_checked: bool = False
    unjudged: tuple[int, ...] = ()

    def to_json(self) -> JsonObject:
        """Return the result as JSON, without the patch."""
        return {
            "step": None
            if self.seq is None
            else {"seq": self.seq, "tool_call_id": self.tool_call_id, "tool": self.tool},
            "checks": self.checks,
            "start_checked": self.start_checked,
            "unjudged": list(self.unjudged),
            "files": self.changes.to_json()["files"],
        }


async def list_candidates(store: EventStore, conversation: UUID, start: int, stop: int) -> list[Candidate]:
    """Return the steps of a part of a log that changed files, oldest first. O(events of this kind).

    Raises:
        NotFound: No step of this part changed files.
    """
    candidates: list[Candidate] = []
    async for stored in store.read(conversation, start, stop, kinds={"FilesKept"}):
        if not isinstance(event := stored.event, FilesKept) or event.by != "tool":
            continue
        if event.tree is not None and event.before is not None and event.tree != event.before:
            candidates.append(Candidate(stored.seq, event.tool_call_id, event.before, event.tree))
    if not candidates:
        raise NotFound(
            f"no step between events {start} and {stop} changed files that were kept",
            hint="`keep_files` keeps them while an agent works",
        )
    return candidates


async def search(candidates: Sequence[Candidate], judge: Judge) -> SearchResult:
    """Return the first bad candidate. Checks at most 2 + log2(candidates) trees, more if some cannot be judged.

    Raises:
        InvalidInput: The check cannot judge the last files, or fails before the first step.
    """
    last = len(candidates) - 1
    # The last candidate first: if it is good, no step broke the files, and a search would name a wrong one.
    verdict = await judge(candidates[last].tree)
    if verdict == "good":
        return SearchResult(None)
    if verdict == "skip":
        raise InvalidInput(f"the check cannot judge the last files: it exited with {SKIP_CODE}", hint="use --bad")
    good, bad, unjudged = -1, last, set[int]()
    while open_indices := [index for index in range(good + 1, bad) if index not in unjudged]:
        index = _find_nearest(open_indices, (good + bad) // 2)
        match await judge(candidates[index].tree):
            case "good":
                good = index
            case "bad":
                bad = index
            case "skip":
                unjudged.add(index)
    unjudged_between = tuple(sorted(index for index in unjudged if good < index < bad))
    if bad > 0 or unjudged_between:
        return SearchResult(bad, unjudged_between)
    # The first step seems to be the bad one, but the files before it have not been checked yet.
    if await judge(candidates[0].before) == "bad":
        raise InvalidInput("the check fails before the first step too", hint="name a good event with --good")
    return SearchResult(0, start_checked=True)


def _find_nearest(indices: Sequence[int], target: int) -> int:
    return min(indices, key=lambda index: abs(index - target))


class FileJudge:
    """Runs a check on trees of files. Each tree is written into the same folder, which nothing else uses.

    Attributes:
        checks: How many times the check ran.
    """

    def __init__(self, check: RunCheck, executor: CodeExecutor, workspace: WorkspaceFolder, home: Path) -> None:
        self.checks = 0
        self._check = check
        self._executor = executor
        self._workspace = workspace
        self._own_folder = make_unfinished_path(home, new_id().hex)  # after a kill, the next `bough doctor` removes it
        self._working_folder: Path | None = None

    async def aclose(self) -> None:
        """Remove the folder."""
        await remove_workspace(self._own_folder)

    async def judge(self, tree: str) -> Verdict:
        """Return the check's verdict on a tree.

        Raises:
            ExecutorError: The command cannot be run, or was killed, but not by its time limit.
            NotFound: The files are not in this store.
        """
        await self._write(tree)
        assert self._working_folder is not None  # noqa: S101 - `_write` made it
        self.checks += 1
        result = await run_in_folder(
            self._check.command,
            self._check.timeout_seconds,
            executor=self._executor,
            folder=self._working_folder,
            guards=NO_GUARDS,
            name=f"bisect-{self._own_folder.name}",
        )
        return read_verdict(result)

    async def _write(self, tree: str) -> None:
        """Write a tree into the folder. The first call copies the workspace, with the files that are not kept."""
        workspace = self._workspace
        if self._working_folder is None:
            past = PastFiles(workspace.file_store, workspace.bounds, KeptTree(tree))
            copied = await fork_workspace("copy", workspace.folder, self._own_folder, past=past)
            self._working_folder = copied.path
        else:
            copy = replace(workspace, folder=self._working_folder, guards=NO_GUARDS)
            await finish(asyncio.to_thread(_replace_files, copy, tree))


def _replace_files(folder: WorkspaceFolder, tree: str) -> None:
    """Replace the files of a folder by a tree, and remove files that a check wrote. Blocks."""
    with folder.file_store.objects() as objects:
        folder.change(objects, replace_by(tree), conflicts="force")


def read_verdict(result: CodeExecutionResult) -> Verdict:
    """Return the verdict of a check: good for exit code 0, skip for 125, bad for 1 to 124 and after a timeout.

    Raises:
        ExecutorError: The check ended in any other way, for example because the command does not exist.
    """
    if result.timed_out:
        return "bad"
    code = result.exit_code
    if code == 0:
        return "good"
    if code == SKIP_CODE:
        return "skip"
    if code is not None and 0 < code <= _MAX_BAD_CODE:
        return "bad"
    end = f"exited with {code}" if code is not None else f"was killed: {result.killed_by or 'by a signal'}"
    last_lines = result.error_text.strip().splitlines()[-1:]
    raise ExecutorError(
        f"the check {end}: {last_lines[0][:200] if last_lines else 'it printed no error'}",
        hint="exit with 0 for good files, 1 to 124 for bad ones, 125 if they cannot be judged",
    )


async def find_tool(store: EventStore, conversation: UUID, candidate: Candidate) -> str | None:
    """Return the tool whose call changed the files; None if the log does not name it."""
    async for stored in store.read(conversation, 0, candidate.seq, reverse=True, kinds={"ToolCalled"}):
        if isinstance(event := stored.event, ToolCalled) and event.tool_call_id == candidate.tool_call_id:
            return event.tool
    return None
