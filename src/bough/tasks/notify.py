"""Waiting for transitions, and telling callbacks of them: on commits, never on a timer."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from bough.errors import BoughError
from bough.events.beside import Tables
from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.tasks.model import EventType, Task, TaskEvent
from bough.tasks.state import STOPPED_STATES, TERMINAL_STATES, TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import TaskRow, build_task, find_row, read_message

Callback: TypeAlias = Callable[[Task], Awaitable[None] | None]
"""Told of a task as it was when it reached a state."""


class TaskStanding(NamedTuple):
    """The state of a task without its messages: enough to decide whether a wait is over.

    Attributes:
        is_put_off: Whether it may not start before a certain time, as a pending one that failed before.
    """

    state: TaskState
    is_put_off: bool


Until: TypeAlias = Callable[[TaskStanding], bool]
"""Whether a wait is over."""

_UNKNOWN: Final = -1
"""Version of a task whose callbacks could not be told of its latest transition."""

_GONE: Final = sys.maxsize
"""Version of a task that was deleted."""

_FEW = 64
"""How many rows may be read in the caller's thread."""

_in_callback: ContextVar[bool] = ContextVar("in_callback", default=False)
"""Whether a callback is running: a wait in it must not wait for callbacks, since one of them is itself."""


def has_ended(task: TaskStanding) -> bool:
    """Whether a task has ended."""
    return task.state in TERMINAL_STATES


def has_stopped(task: TaskStanding) -> bool:
    """Whether a task has ended or waits for input."""
    return task.state in STOPPED_STATES


class Subscription:
    """A callback and the states that it is told of.

    Attributes:
        told: Seq of the latest transition that it was told of, or that it did not ask for.
    """

    def __init__(self, states: Collection[TaskState], callback: Callback) -> None:
        self.states = frozenset(TaskState(state) for state in states)
        self.callback = callback
        self.told = -1


class Watched:
    """A task that this process waits for.

    Attributes:
        version: Of the latest transition that is known.
        standing: Its state after that transition; None once the task is deleted.
        waiters: Futures that the next transition resolves.
        subscriptions: Its callbacks. One runs at a time; each is called once for a state, in the order of the states.
    """

    __slots__ = ("id", "k", "standing", "subscriptions", "telling", "version", "waiters")

    def __init__(self, row: TaskRow) -> None:
        self.id = UUID(bytes=row.id)
        self.k = row.k
        self.version = row.version
        self.standing: TaskStanding | None = TaskStanding(row.current, row.not_before is not None)
        self.waiters: list[asyncio.Future[None]] = []
        self.subscriptions: tuple[Subscription, ...] = ()
        self.telling: asyncio.Lock | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for it any more."""
        return not self.waiters and not self.subscriptions

    def wake(self) -> None:
        """Resolve the futures of all waiters."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class TransitionWatch:
    """Watches tasks of a store for a process: one follower of commits, one statement for all that are waited for."""

    def __init__(self, store: RelationalTaskStore) -> None:
        self._store = store
        self._watched: dict[UUID, Watched] = {}
        self._follower: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._looks = asyncio.Event()
        self._new: list[Watched] = []
        self._may_have_moved = False

    def wait(self, id: UUID, until: Until, timeout: float | None) -> Coroutine[Any, Any, bool]:
        """Return once `until` holds of the state of a task, or after `timeout` seconds.

        Callbacks for that state have returned by then, unless a callback is the caller.

        Returns:
            Whether there is such a task.
        """
        return self._wait(id, until) if timeout is None else self._wait_within(id, until, timeout)

    async def _wait_within(self, id: UUID, until: Until, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(id, until)
        except TimeoutError:
            return True

    async def _wait(self, id: UUID, until: Until) -> bool:
        watched = await self._watch(id)
        while watched is not None and watched.standing is not None:
            if until(watched.standing):
                if not _in_callback.get():
                    await self._tell(watched)
                self._forget(watched)
                return True
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watched.waiters.append(waiter)
            try:
                self._keep_following(watched)
                await waiter
            finally:
                watched.waiters.remove(waiter)
                self._forget(watched)
        return False

    async def subscribe(self, id: UUID, states: Collection[TaskState], callback: Callback) -> bool:
        """Have `callback` called for some states; for those that were already reached, before this returns.

        If a callback is the caller, these calls come later.

        Returns:
            Whether there is such a task.

        Raises:
            BoughError: The states that were reached cannot be read; the callback will not be called.
        """
        watched = await self._watch(id)
        if watched is None:
            return False
        subscription = Subscription(states, callback)
        watched.subscriptions += (subscription,)
        self._keep_following(watched)
        if _in_callback.get():
            self._begin_telling(watched)
            return True
        try:
            await self._tell(watched)
        except BoughError:
            watched.subscriptions = tuple(each for each in watched.subscriptions if each is not subscription)
            self._forget(watched)
            raise
        return True

    def look(self) -> None:
        """Look at all tasks that are waited for: something was written."""
        self._may_have_moved = True
        self._looks.set()

    async def aclose(self) -> None:
        """Stop watching. Waits that are left are the caller's to cancel."""
        follower, self._follower = self._follower, None
        ending = {*self._telling, *([] if follower is None else [follower])} - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _watch(self, id: UUID) -> Watched | None:
        """Read the row of a task; return what is known of it; None for no such task."""
        row = await self._store.look(lambda tables: find_row(tables, id), small=True)
        if row is None:
            return None
        watched = self._watched.setdefault(id, Watched(row))
        if row.version > watched.version:
            self._note(watched, row.version, TaskStanding(row.current, row.not_before is not None))
        return watched

    def _note(self, watched: Watched, version: int, standing: TaskStanding | None) -> None:
        """Note that a task has changed or is gone, and wake what waits for it."""
        watched.version, watched.standing = version, standing
        if watched.subscriptions:
            self._begin_telling(watched)
        watched.wake()

    def _keep_following(self, watched: Watched) -> None:
        """Follow commits for a task, and look at it once: it may have changed since it was read."""
        self._watched.setdefault(watched.id, watched)
        self._new.append(watched)
        self._looks.set()
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow(), name="transitions of tasks")

    def _forget(self, watched: Watched) -> None:
        if watched.is_idle and self._watched.get(watched.id) is watched:
            del self._watched[watched.id]

    async def _follow(self) -> None:
        """Look at watched tasks after every commit of any process, until nothing is watched any more."""
        while self._watched:  # again: a wait may have begun while the listener was being ended
            listener = asyncio.create_task(self._listen(), name="commits of tasks")
            await asyncio.sleep(0)  # it must listen before the first look, so that no commit is missed in between
            try:
                while self._watched:
                    self._looks.clear()
                    watching = list(self._watched.values()) if self._may_have_moved else self._new
                    self._may_have_moved, self._new = False, []
                    with suppress(BoughError):  # the store may be back at the next commit
                        await self._look_at(watching)
                    await self._looks.wait()
            finally:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        log = await self._store.open()
        async for _ in log.commits(appends=False):
            self.look()

    async def _look_at(self, watching: Sequence[Watched]) -> None:
        ks = json.dumps([watched.k for watched in watching])
        is_small = len(watching) <= _FEW
        rows = await self._store.look(lambda tables: tables.run("task.states", ks=ks), small=is_small)
        found = {
            k: (version, TaskStanding(TaskState.from_number(state), not_before is not None))
            for k, state, version, not_before in rows
        }
        for watched in watching:
            version, standing = found.get(watched.k, (_GONE, None))
            if version > watched.version:
                self._note(watched, version, standing)

    def _begin_telling(self, watched: Watched) -> None:
        """Call the callbacks of a task in an asyncio task of its own: one that waits for another holds up nothing."""
        task = asyncio.create_task(self._tell_or_retry(watched), name=f"callbacks of task {watched.id}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_or_retry(self, watched: Watched) -> None:
        try:
            await self._tell(watched)
        except BoughError:  # the store is away: the look after the next commit finds the task changed again
            watched.version = _UNKNOWN

    async def _tell(self, watched: Watched) -> None:
        """Call the callbacks of a task for the transitions that they were not called for yet."""
        if not watched.subscriptions:
            return
        watched.telling = watched.telling or asyncio.Lock()
        async with watched.telling:
            reached = await self._store.look(lambda tables: _read_transitions(tables, watched.id))
            for seq, task in reached:
                for subscription in watched.subscriptions:
                    if subscription.told < seq:
                        subscription.told = seq
                        await self._call(subscription, task)
            if not reached or reached[-1][1].is_terminal:
                watched.subscriptions = ()
        self._forget(watched)

    async def _call(self, subscription: Subscription, task: Task) -> None:
        """Call a callback; what it raises is noted with the task, and the others are called all the same."""
        if task.state not in subscription.states:
            return
        calling = _in_callback.set(True)
        try:
            answer: Any = subscription.callback(task)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - a program's own callback: recorded
            name = getattr(subscription.callback, "__qualname__", type(subscription.callback).__name__)
            payload = {"callback": name, "error": f"{type(error).__name__}: {error}"}
            with suppress(BoughError):
                await self._store.add_event(
                    task.id, TaskEvent(task_id=task.id, event_type=EventType.LOG, payload=payload)
                )
        finally:
            _in_callback.reset(calling)


def _read_transitions(tables: Tables, id: UUID) -> list[tuple[int, Task]]:
    """Return the task as it was after each of its transitions, with their seqs."""
    row = find_row(tables, id)
    if row is None:
        return []
    rows = tables.run("task.changes", cid=row.cid, first=row.first)
    stored = [each for each in StoredEvent.of_rows(rows) if _is_of(each, row)]  # pyright: ignore[reportArgumentType]
    if not stored:
        return []
    message = read_message(tables, row, stored[0])
    reached: list[tuple[int, Task]] = []
    for version, each in enumerate(stored):
        event = each.event
        if isinstance(event, TaskChanged):
            then = row._replace(state=TaskState(event.state).number, version=version, attempts=event.attempt)
            reached.append((each.seq, build_task(then, stored[0], each, message)))
    return reached


def _is_of(stored: StoredEvent, row: TaskRow) -> bool:
    event = stored.event
    return isinstance(event, TaskChanged) and event.task_id == row.task_id
