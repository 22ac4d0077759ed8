"""The keeper of a run's files: it records the files of the workspace before the run and after each step that may write.

One reading of the folder by `bough.files.look.look` is a look. A step that cannot write costs nothing. What changed
between two runs is recorded as changed from outside. A look that fails is recorded with its reason, and never fails
the run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from bough.agents.writes import CallWrites, Writes, read_writes
from bough.cancellation import acquire, finish
from bough.conversation.file_store import make_event
from bough.conversation.log.journal import Journal
from bough.errors import BoughError, Conflict
from bough.events.model import Event, FilesKept
from bough.execution.base import Guards
from bough.files import FileStore, KeepBounds, Looked, Objects, look, write
from bough.types import JsonObject

FIRST_SECONDS = 60.0
"""How long the first look at a folder may take; the next run continues it."""

INTERRUPTED_SECONDS = 2.0
"""How long the look after an interrupted call may take. If it takes longer, the next look finds the call's changes."""

_LOCK_SECONDS = 60.0
_MAX_SKIPPED = 20
_log = logging.getLogger("bough.files")


class _Kept(NamedTuple):
    """The result of a look, with the objects that it opened; None if it failed.

    The objects stay open until the event that names its tree is durable.
    """

    looked: Looked
    objects: Objects | None


class Keeper:
    """Keeps the files of one run's workspace.

    Args:
        journal: The journal of the run.
        file_store: The kept files of the store.
        folder: The workspace.
        bounds: How much is kept.
    """

    def __init__(self, journal: Journal, file_store: FileStore, folder: Path, bounds: KeepBounds) -> None:
        self._journal = journal
        self._file_store = file_store
        self._folder = folder
        self._bounds = bounds
        self._lock = asyncio.Lock()
        self._first: asyncio.Task[_Kept] | None = None
        self._is_ready = False
        self._has_stopped = False
        self._full_looks = 0
        self._should_stop = threading.Event()
        self._hold = ExitStack()
        self._closing: set[asyncio.Task[None]] = set()
        self._named_skips: set[tuple[str, str]] = set()

    def begin(self, tools: Iterable[JsonObject | None]) -> None:
        """Start the first look at a folder, in parallel with the model request, if one of the tools may write.

        Args:
            tools: The metadata of the agent's tools.
        """
        if self._first is not None or self._is_ready or all(read_writes(metadata) == "none" for metadata in tools):
            return
        if self._file_store.index(self._folder).read_last_tree() is None:
            self._first = asyncio.create_task(self._look(seconds=FIRST_SECONDS), name=f"files of {self._folder}")

    async def before(self, writes: Writes) -> None:
        """Record the files before the first tool of the run that may write."""
        if writes == "none" or self._is_ready:
            return
        async with self._lock:
            if self._is_ready:
                return
            # Before the look: the run would not notice a restore between the look and the first write.
            await self._hold_folder()
            # The first look is finished even if the run is cancelled, because it reads files in a thread.
            result = await (self._look(seconds=FIRST_SECONDS) if self._first is None else finish(self._first))
            self._is_ready = True
            state = self._journal.state.files
            is_first = state is None or state.tree is None
            self._journal.stage(*self._record(result, "first" if is_first else "outside"))

    async def after(self, call: str, writes: Writes, reported: CallWrites) -> list[Event]:
        """Return the event to stage before the outcome of a call that has ended; empty if it changed nothing."""
        if writes == "none" or (writes == "told" and not reported.paths) or reported.excludes_changes:
            return []
        # Read before the lock is awaited: only a look that begins after this line sees what the call wrote.
        looks_begun = self._full_looks
        async with self._lock:
            if not self._is_ready or self._has_stopped or (writes == "any" and self._full_looks > looks_begun):
                return []  # a look that began after this call had ended has recorded its changes
            result = await self._look(sorted(reported.paths) if writes == "told" else None)
            return self._record(result, "tool", call)

    async def after_lost(self, call: str, *, seconds: float = FIRST_SECONDS) -> list[Event]:
        """Return the event with the changes of a call that was interrupted, or whose process died; empty for none.

        Does nothing if no files were kept before the call.
        """
        state = self._journal.state.files
        if state is None or state.tree is None or self._has_stopped:
            return []
        async with self._lock:
            await self._hold_folder()
            self._is_ready = True
            result = await self._look(seconds=seconds)
            return self._record(result, "tool", call)

    async def record_present(self) -> str | None:
        """Record the present files, any change as one from outside. Returns their tree; None if none is kept."""
        if not self._is_ready:
            await self.before("any")
        elif not self._has_stopped:
            async with self._lock:
                self._journal.stage(*self._record(await self._look(), "outside"))
        state = self._journal.state.files
        return None if state is None else state.tree

    async def restore_tree(self, tree: str, guards: Guards) -> None:
        """Restore the files of `tree` in the folder, which only this run uses. Files that are not kept stay."""
        async with self._lock:
            await finish(asyncio.to_thread(self._write_blocking, tree, guards))

    def _write_blocking(self, tree: str, guards: Guards) -> None:
        with self._file_store.objects() as objects:
            looked = look(self._file_store, objects, self._folder, bounds=self._bounds, seconds=FIRST_SECONDS)
            if looked.tree is not None and looked.tree != tree:
                objects.flush()

                def is_guarded(path: str) -> bool:
                    return guards.covers(path.split("/"))

                write(self._file_store, objects, self._folder, looked.tree, tree, is_guarded=is_guarded)

    async def aclose(self) -> None:
        """End looks in progress, release the folder and save the index of its files."""
        # Before the first look is awaited: it stops before the next file.
        self._should_stop.set()
        if self._first is not None and not self._is_ready:
            await _close(await finish(self._first))
        if self._closing:
            await asyncio.wait(self._closing)
        self._hold.close()
        await asyncio.to_thread(self._file_store.save_indexes)

    async def _hold_folder(self) -> None:
        """Hold the folder until the end of the run, so that no restore changes it meanwhile."""
        if self._is_ready:
            return
        try:
            lock = self._file_store.hold_folder(self._folder, exclusive=False, wait_seconds=_LOCK_SECONDS)
            await finish(asyncio.to_thread(self._hold.enter_context, lock))
        except Conflict as error:
            _log.warning("%s: %s", self._folder, error.message)
        except BoughError as error:
            _log.warning("the files of %s are not kept: %s", self._folder, error.message)

    async def _look(self, paths: Sequence[str] | None = None, *, seconds: float | None = None) -> _Kept:
        self._full_looks += paths is None
        return await acquire(asyncio.to_thread(self._look_blocking, paths, seconds), _close)

    def _look_blocking(self, paths: Sequence[str] | None, seconds: float | None) -> _Kept:
        with ExitStack() as stack:
            try:
                objects = stack.enter_context(self._file_store.objects())
                looked = look(
                    self._file_store,
                    objects,
                    self._folder,
                    paths=paths,
                    bounds=self._bounds,
                    seconds=seconds,
                    should_stop=self._should_stop.is_set,
                )
            except BoughError as error:
                reason = str(error.details.get("reason") or error.message)
                return _Kept(Looked(tree=None, reason=reason), None)
            except Exception as error:  # noqa: BLE001 - keeping files never fails a run; the reason is recorded
                _log.warning("the files of %s are not kept", self._folder, exc_info=error)
                return _Kept(Looked(tree=None, reason=f"{type(error).__name__}: {error}"), None)
            # The objects stay open: until the event is durable, a collection would remove the objects that it names.
            stack.pop_all()
            return _Kept(looked, objects)

    def _record(self, result: _Kept, by: Literal["first", "outside", "tool"], call: str | None = None) -> list[Event]:
        """Return the event that records a look; empty if the log already has its tree. The caller stages it at once."""
        events: list[Event]
        try:
            events = self._make_events(result.looked, by, call)
        except Exception as error:  # noqa: BLE001 - keeping files never fails a run; the reason is recorded
            _log.warning("the files of %s are not kept", self._folder, exc_info=error)
            self._has_stopped = True
            # Without this event, the log would have the files before this step as the files after it.
            reason = f"{type(error).__name__}: {error}"
            events = [FilesKept(tree=None, before=None, by=by, tool_call_id=call, reason=reason)]
        if result.objects is not None:
            closing = asyncio.create_task(self._close_when_durable(result.objects))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return events

    def _make_events(self, looked: Looked, by: Literal["first", "outside", "tool"], call: str | None) -> list[Event]:
        state = self._journal.state.files
        events: list[Event] = []
        if looked.tree is None or state is None or state.tree != looked.tree:
            self._has_stopped = looked.tree is None
            skipped = [skip for skip in looked.skipped if skip not in self._named_skips][:_MAX_SKIPPED]
            self._named_skips.update(skipped)
            event = make_event(looked, self._file_store, by=by, tool_call_id=call, skipped=tuple(skipped))
            events.append(event)
        return events

    async def _close_when_durable(self, objects: Objects) -> None:
        """Close objects once the staged event that names them is durable: no collection removes open objects."""
        try:
            with suppress(BoughError):  # the run itself reports a store that cannot write
                await self._journal.settle()
        finally:
            await finish(asyncio.to_thread(objects.close))


async def _close(result: _Kept) -> None:
    if result.objects is not None:
        await asyncio.to_thread(result.objects.close)
