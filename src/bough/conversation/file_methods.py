"""Methods of a conversation for the files of its workspace: they read, compare and restore files of past events."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bough.cancellation import acquire, finish
from bough.conversation.check import CHECK_SECONDS, RunCheck, describe_result, run_in_folder
from bough.conversation.file_store import make_event, read_bounds
from bough.conversation.fork.file_changes import FileChanges, FileTree
from bough.conversation.fork.files import (
    Changed,
    Conflicts,
    FileStep,
    KeptTree,
    MakeTarget,
    WorkspaceFolder,
    apply_difference,
    check_conflicts_argument,
    describe_damage,
    find_restore,
    find_tree,
    list_steps,
    replace_by,
    revert_steps,
)
from bough.conversation.fork.past_files import PastWorkspace
from bough.conversation.fork.request import find_cut
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.log.turns import Turn
from bough.conversation.parts import Parts
from bough.errors import BoughError, Conflict, InvalidInput, NotFound, PermissionDenied, Unavailable
from bough.events.model import CheckRan, Event, UserMessage
from bough.events.store import Cut
from bough.files import FileStore, Objects
from bough.types import JsonObject

_MAX_NAMED = 50


class FileMethods:
    """Methods of `AsyncConversation` that read and change the files of its workspace."""

    _parts: Parts

    @property
    @abstractmethod
    def state(self) -> State:
        """The state after the events that this object has read."""

    @property
    @abstractmethod
    def _journal(self) -> Journal: ...

    @property
    @abstractmethod
    def _open_log(self) -> Journal: ...

    async def files(self, at: Cut | Turn | None = None) -> FileTree:
        """Return the files of the workspace at an event.

        Args:
            at: The number of events, the id of the last one, or `Turn(n)`; None for the present files.

        Raises:
            NotFound: The files were not kept.
            CorruptLog: The kept files are damaged.
        """
        return await self._past_workspace.list(at)

    async def diff(
        self,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        *,
        other: FileMethods | None = None,
        own: bool = False,
        paths: Sequence[str] = (),
    ) -> FileChanges:
        """Return which files differ between two events, with the patch and the numbers of lines.

        Args:
            start: As `at` of `files`; None for the first event, or for the cut of a fork.
            stop: As `at` of `files`; None for the present files.
            other: A conversation of the same store, to which `stop` belongs; None for this one.
            own: Whether to return only the changes of this conversation, without the changes of others.
            paths: Only these paths; a folder includes everything below it.

        Raises:
            NotFound: The files were not kept.
            CorruptLog: The kept files are damaged.
        """
        workspace = self._past_workspace
        if own:
            if other is not None:
                raise InvalidInput(
                    "own and other cannot be combined", hint="own compares the steps of one conversation"
                )
            return await workspace.compare_own(start, stop, paths=paths)
        other_workspace = None if other is None else other._past_workspace
        return await workspace.compare(start, stop, other=other_workspace, paths=paths)

    async def _compare_trees(self, before: str, after: str) -> FileChanges:
        return await asyncio.to_thread(self._workspace_folder().compare, before, after, ())

    async def restore(
        self,
        at: Cut | Turn,
        *,
        paths: Sequence[str] = (),
        exact: bool = False,
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
    ) -> FileChanges:
        """Take back the changes that this conversation made to its files after an event. Changes of others stay.

        The present files are kept first, so `redo` can bring them back. The log records the restore, and a message
        tells the model which files were written.

        Args:
            at: The number of events, the id of the last one, or `Turn(n)`.
            paths: Only these paths, relative to the workspace; a folder includes everything below it.
            exact: Restore the folder exactly, and also take back the changes of others.
            conflicts: How to treat files that somebody else changed too: `refuse` writes nothing, `leave` skips these
                files, `force` overwrites them.
            dry_run: Write nothing, and return what would be written.

        Raises:
            Conflict: A run uses the folder, or somebody else changed a file (`details["paths"]`).
            NotFound: The files were not kept.
            PermissionDenied: The workspace is read-only, or `paths` names a protected file.
            CorruptLog: The kept files are damaged.
        """
        check_conflicts_argument(conflicts)
        journal = self._require_writable()
        await journal.catch_up()
        cut, log = await find_cut(journal, at, pending="close")
        head = journal.durable
        kept_trees = _list_last_tree(self.state)
        if exact:
            kept_tree = await find_tree(journal.store, journal.cid, log.state, head)
            target = revert_steps((), conflicts) if kept_tree is None else replace_by(kept_tree.tree)
            kept_trees = kept_trees if kept_tree is None else [kept_tree]
        else:
            if self.state.files is None:
                await find_tree(journal.store, journal.cid, log.state, head)  # raises if calls may have written files
            steps = await list_steps(journal.store, journal.cid, cut.at, head)
            target = self._revert_all(steps, conflicts)
        options: JsonObject = {"conflicts": conflicts, "paths": paths, "dry_run": dry_run}
        # Finished even if the caller is cancelled: the folder must not change without an event.
        return await finish(self._change_files(target, "restore", {"at": cut.at}, options, kept_trees))

    async def redo(self) -> FileChanges:
        """Take back the last restore: bring back the files that it changed.

        Raises:
            NotFound: The conversation has changed its files since the last restore, or nothing was restored.
            Conflict: As for `restore`.
        """
        journal = self._require_writable()
        await journal.catch_up()
        step = await find_restore(journal.store, journal.cid, 0, journal.durable)
        if step is None:
            raise NotFound(
                "the last change of the files was not a restore", hint="call restore(at) first; redo takes it back"
            )
        options: JsonObject = {"conflicts": "refuse", "paths": (), "dry_run": False}
        target, kept_trees = revert_steps([step], "refuse"), _list_last_tree(self.state)
        return await finish(self._change_files(target, "restore", {"redo": step.seq}, options, kept_trees))

    async def apply(
        self,
        source: FileMethods,
        *,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        paths: Sequence[str] = (),
        conflicts: Conflicts = "refuse",
        check: str | None = None,
        check_timeout: float = CHECK_SECONDS,
        dry_run: bool = False,
    ) -> FileChanges:
        """Merge the changes that another conversation made to its files into this workspace.

        Args:
            source: The conversation whose changes are merged, in the same store; for example, a fork of this one.
            start: An event of `source`, as for `restore`; None for the last event that both share.
            stop: None for the present files of `source`.
            paths: As for `restore`, like `conflicts` and `dry_run`.
            check: A bash command that judges the files then, in the sandbox. If it fails, the changes are taken back;
                the result has it as `check`. A dry run runs none.

        Raises: see `restore`; `ExecutorError` if the check cannot be run, with the changes taken back.
        """
        check_conflicts_argument(conflicts)
        run_check = None if check is None else RunCheck(command=check, timeout_seconds=check_timeout)
        journal, other = self._require_writable(), source._open_log
        await journal.catch_up()
        await other.catch_up()
        if start is None:
            ancestor = await journal.store.common_ancestor(journal.cid, other.cid)
            start = 0 if ancestor is None else ancestor[1]
        before, after = await source._past_workspace.find(start), await source._past_workspace.find(stop)
        of: JsonObject = {"conversation": str(other.cid), "start": str(start), "stop": str(stop or other.durable)}
        options: JsonObject = {"conflicts": conflicts, "paths": paths, "dry_run": dry_run}
        target = apply_difference(before.tree, after.tree, conflicts)
        stop_check = asyncio.Event()
        judge = None if run_check is None else partial(self._judge_change, run_check, stop_check)
        task = asyncio.ensure_future(self._change_files(target, "apply", of, options, [before, after], judge))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A running check is ended, and the change is taken back. Otherwise the change is finished, as in `restore`.
            stop_check.set()
            with suppress(asyncio.CancelledError, BoughError):
                await finish(task)
            raise

    async def _keep_fork_files(self) -> None:
        """Record the files with which a new fork begins, so that its own changes can be computed later.

        Does nothing if the fork has already run, or keeps no files.
        """
        journal, file_store = self._journal, self._parts.environment.file_store
        settings = self._parts.environment.settings
        if file_store is None or not (settings.keep_files and self._parts.rules().keep_files):
            return
        async for _ in journal.store.read(journal.cid, self.state.base, kinds={"FilesKept", "ToolCalled"}):
            return
        folder = self._workspace_folder()
        objects = await acquire(asyncio.to_thread(file_store.objects), _close)
        try:
            looked = await asyncio.to_thread(folder.look, objects)
            await journal.append(make_event(replace(looked, before=None), file_store, by="fork"))
        except NotFound:
            return  # the run records why the files cannot be kept
        finally:
            await _close(objects)

    def _revert_all(self, steps: Sequence[FileStep], conflicts: Conflicts) -> MakeTarget:
        """Return a function that takes back steps, and the changes of a call whose process died before its end."""
        state = self.state
        last_tree = None if state.files is None else state.files.tree
        has_lost_call = last_tree is not None and any(call.started for call in state.open_calls)

        def make_target(objects: Objects, now: str) -> Any:
            lost_steps = [FileStep(last_tree, now, state.head)] if has_lost_call and last_tree != now else []
            return revert_steps([*steps, *lost_steps], conflicts)(objects, now)

        return make_target

    async def _change_files(
        self,
        target: MakeTarget,
        by: Literal["restore", "apply"],
        of: JsonObject,
        options: JsonObject,
        kept_trees: Sequence[KeptTree],
        judge: Callable[[Objects, Changed], Awaitable[CheckRan]] | None = None,
    ) -> FileChanges:
        """Change the workspace, and record its files before and after the change.

        Args:
            kept_trees: The trees that the target needs; an error about them names their events.
            judge: Tests the files after the change. If the test fails, `judge` has taken the change back.
        """
        journal, file_store, folder = self._journal, self._file_store, self._workspace_folder()
        objects = await acquire(asyncio.to_thread(file_store.objects), _close)
        try:
            with describe_damage(*kept_trees):
                changed = await asyncio.to_thread(folder.change, objects, target, **options)
            if options["dry_run"]:
                return changed.summarize()
            check_events = () if judge is None else (await judge(objects, changed),)
            has_failed = any(not event.passed for event in check_events)
            # While the objects are open: otherwise a collection could remove the trees that these events name.
            if changed.changes and not has_failed:
                await journal.append(*self._describe_change(changed, by, of), *check_events)
            elif check_events:
                await journal.append(*check_events)
            summary = FileChanges(skipped=changed.summarize().skipped) if has_failed else changed.summarize()
            return replace(summary, check=next(iter(check_events), None))
        finally:
            await _close(objects)

    async def _judge_change(self, check: RunCheck, stop: asyncio.Event, objects: Objects, changed: Changed) -> CheckRan:
        """Run a check in the changed workspace. If it does not pass, take the change back, but no changes of others."""
        folder, has_passed = self._workspace_folder(), False
        running = asyncio.create_task(
            run_in_folder(
                check.command,
                check.timeout_seconds,
                executor=self._parts.environment.executor,
                folder=folder.folder,
                guards=folder.guards,
                name=f"check-{self._journal.cid}",
            )
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not running.done():
                running.cancel()
            result = await running
            has_passed = result.ok
            return describe_result(check, result, changed.tree)
        finally:
            if not has_passed and changed.changes:
                target = apply_difference(changed.tree, changed.looked.tree, "leave")
                await asyncio.to_thread(folder.change, objects, target, conflicts="leave")

    def _describe_change(self, changed: Changed, by: Literal["restore", "apply"], of: JsonObject) -> list[Event]:
        state, file_store = self.state, self._file_store
        # Changes from outside are recorded before the restore, so that they never count as the conversation's.
        events: list[Event] = []
        last_tree, now = None if state.files is None else state.files.tree, changed.looked.tree
        if last_tree != now:
            lost_call = next((call.id for call in state.open_calls if call.started), None)
            changed_by: Literal["first", "outside", "tool"] = "outside" if lost_call is None else "tool"
            if last_tree is None:
                changed_by = "first"
            events.append(make_event(changed.looked, file_store, by=changed_by, tool_call_id=lost_call))
        looked = changed.describe()
        events.append(make_event(looked, file_store, by=by, of=of))
        names = ", ".join(f"{change.path} ({change.change})" for change in changed.summarize().changes[:_MAX_NAMED])
        action = "were put back to an earlier state" if by == "restore" else "were changed by another conversation"
        text = f"These files of the workspace {action}: {names}. Read them again before you rely on their content."
        return [*events, UserMessage.text(text, sender="bough")]

    def _require_writable(self) -> Journal:
        """Return the journal. Raises an error if the files must not be changed."""
        journal = self._journal
        if self.state.quarantined:
            raise Conflict("the conversation was imported and not adopted", hint="adopt it first")
        if self.state.workspace_policy == "readonly":
            raise PermissionDenied("the workspace is read-only", hint="fork with workspace=copy")
        return journal

    @property
    def _file_store(self) -> FileStore:
        if (file_store := self._parts.environment.file_store) is None:
            raise Unavailable("this store keeps no files", hint="use a SQLite or Postgres store")
        return file_store

    @property
    def _past_workspace(self) -> PastWorkspace:
        return PastWorkspace(self._open_log, self._workspace_folder())

    def _workspace_folder(self) -> WorkspaceFolder:
        settings = self._parts.environment.settings
        workspace: Path = self.state.workspace
        guards = self._parts.environment.list_guards(self._parts.agent.spec, self._parts.rules(), workspace)
        return WorkspaceFolder(self._file_store, workspace, read_bounds(settings), guards)


async def _close(objects: Objects) -> None:
    await asyncio.to_thread(objects.close)


def _list_last_tree(state: State) -> list[KeptTree]:
    """Return the latest tree that the log names in a list; an empty list if there is none."""
    files = state.files
    return [] if files is None or files.tree is None else [KeptTree(files.tree, files.seq)]
