"""Which step of a conversation broke its files: a search by halves over the trees that its log names."""

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
from bough.conversation.fork.workspace import fork_workspace, name_unfinished, remove_workspace
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


class Found(NamedTuple):
    """The result of a search among candidates.

    Attributes:
        first_bad: The index of the first bad one; None if the last one is good.
        unjudged: The indices before it that the check could not judge: the first bad one may be among them.
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
        tool: Its tool.
        checks: How often the check ran.
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


async def search(candidates: Sequence[Candidate], judge: Judge) -> Found:
    """Return the first bad candidate. At most 2 + log2(candidates) checks, unless the check cannot judge some.

    Raises:
        InvalidInput: The check cannot judge the last files, or fails before the first step.
    """
    last = len(candidates) - 1
    # The bad end first: without it, a search would name the last step of files that are good.
    verdict = await judge(candidates[last].tree)
    if verdict == "good":
        return Found(None)
    if verdict == "skip":
        raise InvalidInput(f"the check cannot judge the last files: it exits with {SKIP_CODE}", hint="use --bad")
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
    open_between = tuple(sorted(index for index in unjudged if good < index < bad))
    if bad > 0 or open_between:
        return Found(bad, open_between)
    # The first step is the answer: then nothing has shown yet that the files before it are good.
    if await judge(candidates[0].before) == "bad":
        raise InvalidInput("the check fails before the first step too", hint="name a good event with --good")
    return Found(0, start_checked=True)


def _find_nearest(indices: Sequence[int], target: int) -> int:
    return min(indices, key=lambda index: abs(index - target))


class FileJudge:
    """Runs a check on trees of files, each written into one folder that nothing else uses.

    Attributes:
        checks: How often the check ran.
    """

    def __init__(self, check: RunCheck, executor: CodeExecutor, workspace: WorkspaceFolder, home: Path) -> None:
        self.checks = 0
        self._check = check
        self._executor = executor
        self._workspace = workspace
        self._folder = name_unfinished(home, new_id().hex)  # removed by the next `bough doctor` after a kill
        self._path: Path | None = None

    async def aclose(self) -> None:
        """Remove the folder."""
        await remove_workspace(self._folder)

    async def judge(self, tree: str) -> Verdict:
        """Return the check's verdict on a tree.

        Raises:
            ExecutorError: The command cannot be run, or was killed by something else than its time limit.
            NotFound: The files are not in this store.
        """
        await self._write(tree)
        assert self._path is not None  # noqa: S101 - `_write` made it
        self.checks += 1
        result = await run_in_folder(
            self._check.command,
            self._check.timeout_seconds,
            executor=self._executor,
            folder=self._path,
            guards=NO_GUARDS,
            name=f"bisect-{self._folder.name}",
        )
        return read_verdict(result)

    async def _write(self, tree: str) -> None:
        """Write a tree into the folder: the first one with the files that are not kept, later ones as changes."""
        workspace = self._workspace
        if self._path is None:
            past = PastFiles(workspace.file_store, workspace.bounds, KeptTree(tree))
            self._path = (await fork_workspace("copy", workspace.folder, self._folder, past=past)).path
        else:
            copy = replace(workspace, folder=self._path, guards=NO_GUARDS)
            await finish(asyncio.to_thread(_replace_files, copy, tree))


def _replace_files(folder: WorkspaceFolder, tree: str) -> None:
    """Make a folder as a tree; files that a check wrote are removed. Blocks."""
    with folder.file_store.objects() as objects:
        folder.change(objects, replace_by(tree), conflicts="force")


def read_verdict(result: CodeExecutionResult) -> Verdict:
    """Return what a check says about the files: 0 good, 125 skip, 1 to 124 and a timeout bad.

    Raises:
        ExecutorError: Any other end, such as a command that does not exist.
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
    how = f"exited with {code}" if code is not None else f"was ended: {result.killed_by or 'by a signal'}"
    last_lines = result.error_text.strip().splitlines()[-1:]
    raise ExecutorError(
        f"the check {how}: {last_lines[0][:200] if last_lines else 'it printed no error'}",
        hint="0 is good, 1 to 124 bad, 125 cannot be judged",
    )


async def find_tool(store: EventStore, conversation: UUID, candidate: Candidate) -> str | None:
    """Return the tool whose call changed the files; None if the log does not name it."""
    async for stored in store.read(conversation, 0, candidate.seq, reverse=True, kinds={"ToolCalled"}):
        if isinstance(event := stored.event, ToolCalled) and event.tool_call_id == candidate.tool_call_id:
            return event.tool
    return None
