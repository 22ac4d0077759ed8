"""The warm sandboxes of an executor, and which runs use one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from typing import Final

from bough.cancellation import finish
from bough.errors import Conflict, ExecutorError
from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.process.files import Collected
from bough.execution.process.result import build_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan
from bough.execution.warm.zygote import Key, WarmChild, WarmRung, Zygote, make_key

MAX_KEPT: Final = 8
IDLE_SECONDS: Final = 60.0
_MAX_REMEMBERED_KEYS: Final = 1000

_log = logging.getLogger("bough.execution")


class WarmSandboxes:
    """The zygotes of an executor, at most one for plans with the same key.

    At most `max_kept` exist at a time; the least recently used one that is idle is closed first. A zygote is also
    closed after it was idle for `idle_seconds`.

    Args:
        counts: Counts started `zygotes`.
    """

    def __init__(
        self,
        rung: WarmRung,
        run_directory: RunDirectory,
        *,
        isolation: Isolation,
        counts: Counter[str],
        max_kept: int = MAX_KEPT,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._rung = rung
        self._run_directory = run_directory
        self._isolation = isolation
        self._counts = counts
        self._max_kept = max_kept
        self._idle_seconds = idle_seconds
        self._zygotes: OrderedDict[Key, Zygote] = OrderedDict()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._starting: dict[Key, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._keys_run_cold: OrderedDict[Key, None] = OrderedDict()

    async def run(self, plan: Plan) -> CodeExecutionResult | None:
        """Run `plan` in its zygote. Returns None and runs nothing if the zygote is missing, busy or dead."""
        key = make_key(plan)
        zygote = self._zygotes.get(key)
        if zygote is None or zygote.busy.locked():
            return None
        async with zygote.busy:
            if not zygote.alive:
                self._close_in_background(key)
                return None
            self._mark_used(key)
            try:
                result = await self._run(plan, zygote)
            except Conflict:
                self._close_in_background(key)  # its mounts show the files that were replaced since its start
                raise
            if result is None:
                self._close_in_background(key)
            return result

    async def _run(self, plan: Plan, zygote: Zygote) -> CodeExecutionResult | None:
        """Run `plan` in a zygote; None if the zygote exited before the run was sent to it."""
        workspace = await finish(asyncio.to_thread(zygote.prepare, plan))
        earlier_kills = zygote.group.memory_kills
        child = WarmChild(zygote.launch(plan, workspace), zygote)
        try:
            process_end, collected = await child.run(
                timeout_seconds=plan.timeout_seconds,
                watch=lambda running: watch(running, plan, workspace, group=zygote.group),
                collect_output=lambda: finish(asyncio.to_thread(_collect_and_remove, plan, workspace)),
            )
        except BaseException as error:
            await finish(asyncio.to_thread(workspace.remove))
            if isinstance(error, ExecutorError) and not child.sent:
                return None
            raise
        memory_ran_out = zygote.group.memory_kills > earlier_kills
        return build_result(plan, process_end, collected, isolation=self._isolation, memory_ran_out=memory_ran_out)

    def has(self, plan: Plan) -> bool:
        """Whether there is a zygote for plans like `plan`."""
        zygote = self._zygotes.get(make_key(plan))
        return zygote is not None and zygote.alive

    def note_cold_run(self, plan: Plan) -> None:
        """Record a run without a zygote. The second one starts a zygote; for a single run it would be a waste."""
        key = make_key(plan)
        if key in self._keys_run_cold:
            self.expect(plan)
            return
        self._keys_run_cold[key] = None
        if len(self._keys_run_cold) > _MAX_REMEMBERED_KEYS:
            self._keys_run_cold.popitem(last=False)

    def expect(self, plan: Plan) -> None:
        """Start a zygote for more runs like `plan` in the background, unless it exists."""
        key = make_key(plan)
        if key not in self._zygotes and key not in self._starting:
            self._starting[key] = asyncio.get_running_loop().create_task(self._start(key, plan))

    async def settle(self) -> None:
        """Wait until all zygotes that are starting are ready, and all that are closing have exited."""
        await asyncio.gather(*self._starting.values(), *self._closing, return_exceptions=True)

    async def close(self) -> None:
        """End all zygotes. Idempotent."""
        for task in self._starting.values():
            task.cancel()
        await self.settle()
        for key in list(self._zygotes):
            self._close_in_background(key)
        await self.settle()

    async def _start(self, key: Key, plan: Plan) -> None:
        """Start a zygote; close idle ones if there are too many. A failure is only logged."""
        try:
            zygote = await Zygote.start(plan, self._rung, self._run_directory)
        except OSError as error:
            _log.warning("cannot start a warm sandbox; every run starts a new sandbox: %s", error)
            return
        finally:
            self._starting.pop(key, None)
        self._counts["zygotes"] += 1
        self._zygotes[key] = zygote
        self._mark_used(key)
        while len(self._zygotes) > self._max_kept:
            idle_keys = [other for other, sandbox in self._zygotes.items() if not sandbox.busy.locked()]
            self._close_in_background(idle_keys[0])  # there is at least one: the new zygote

    def _mark_used(self, key: Key) -> None:
        """Record a use of a zygote: it becomes the last one to be closed, and its idle time starts again."""
        self._zygotes.move_to_end(key)
        if key in self._timers:
            self._timers.pop(key).cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle, key)

    def _end_idle(self, key: Key) -> None:
        """Close an idle zygote; if it is busy, its idle time starts again."""
        zygote = self._zygotes.get(key)
        if zygote is not None and zygote.busy.locked():
            self._mark_used(key)
        else:
            self._close_in_background(key)

    def _close_in_background(self, key: Key) -> None:
        """Remove the zygote of a key and close it in a background task, after its current run."""
        zygote = self._zygotes.pop(key, None)
        if key in self._timers:
            self._timers.pop(key).cancel()
        if zygote is not None:
            task = asyncio.get_running_loop().create_task(self._close_when_idle(zygote))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close_when_idle(self, zygote: Zygote) -> None:
        """Close a zygote; if it is alive, after its current run."""
        if zygote.alive:
            async with zygote.busy:
                await asyncio.to_thread(zygote.close)
        else:
            await asyncio.to_thread(zygote.close)


def _collect_and_remove(plan: Plan, workspace: Workspace) -> Collected:
    """Return the output files, and remove the run's folders."""
    try:
        return workspace.collect(plan)
    finally:
        workspace.remove()
