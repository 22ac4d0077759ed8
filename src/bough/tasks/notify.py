"""Wait for transitions of tasks and call callbacks for them. Driven by commits, never by a timer."""

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
from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.events.side_tables import Tables
from bough.tasks.model import EventType, Task, TaskEvent
from bough.tasks.state import STOPPED_STATES, TERMINAL_STATES, TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import TaskRow, build_task, find_row, read_message

Callback: TypeAlias = Callable[[Task], Awaitable[None] | None]
"""Called with a task as it was when it reached a state."""


class TaskStanding(NamedTuple):
    """The state of a task without its messages: enough to decide whether a wait is over.

    Attributes:
        is_delayed: Whether the task has a `not_before`, as a pending task that is retried later.
    """

    state: TaskState
    is_delayed: bool


Until: TypeAlias = Callable[[TaskStanding], bool]
"""Returns whether a wait is over."""

_UNKNOWN: Final = -1
"""Version of a task whose callbacks were not called for its latest transition, since the store was unavailable."""

_DELETED: Final = sys.maxsize
"""Version of a task that was deleted."""

_MAX_SMALL = 64
"""Up to this many rows are read in the caller's thread."""

_in_callback: ContextVar[bool] = ContextVar("in_callback", default=False)
"""Whether the current code is a callback. A wait inside a callback must not wait for callbacks: it would be one."""


def has_ended(task: TaskStanding) -> bool:
    """Whether a task has ended."""
    return task.state in TERMINAL_STATES


def has_stopped(task: TaskStanding) -> bool:
    """Whether a task has ended or waits for input."""
    return task.state in STOPPED_STATES


class Subscription:
    """A callback and the states that it is called for.

    Attributes:
        last_seq: Seq of the latest transition that was handled for it.
    """

    def __init__(self, states: Collection[TaskState], callback: Callback) -> None:
        self.states = frozenset(TaskState(state) for state in states)
        self.callback = callback
        self.last_seq = -1


class Watched:
    """A task that this process waits for.

    Attributes:
        version: Of the latest known transition.
        standing: Its state after that transition; None once the task is deleted.
        waiters: Futures that the next transition resolves.
        subscriptions: Its callbacks. One runs at a time; each is called once per transition, in order.
    """

    __slots__ = ("id", "k", "notifying", "standing", "subscriptions", "version", "waiters")

    def __init__(self, row: TaskRow) -> None:
        self.id = UUID(bytes=row.id)
        self.k = row.k
        self.version = row.version
        self.standing: TaskStanding | None = TaskStanding(row.current, row.not_before is not None)
        self.waiters: list[asyncio.Future[None]] = []
        self.subscriptions: tuple[Subscription, ...] = ()
        self.notifying: asyncio.Lock | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no wait and no callback needs it."""
        return not self.waiters and not self.subscriptions

    def wake(self) -> None:
        """Resolve the futures of all waiters."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class TransitionWatch:
    """Watches tasks of a store for one process: one follower of commits, one statement for all watched tasks."""

    def __init__(self, store: RelationalTaskStore) -> None:
        self._store = store
        self._watched: dict[UUID, Watched] = {}
        self._follower: asyncio.Task[None] | None = None
        self._notifying: set[asyncio.Task[None]] = set()
        self._check_requested = asyncio.Event()
        self._newly_watched: list[Watched] = []
        self._may_have_moved = False

    def wait(self, id: UUID, until: Until, timeout: float | None) -> Coroutine[Any, Any, bool]:
        """Wait until `until` is true of a task's state, or for `timeout` seconds.

        Callbacks for that state have returned by then, unless a callback is the caller.

        Returns:
            Whether the task exists.
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
                    await self._notify(watched)
                self._forget(watched)
                return True
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watched.waiters.append(waiter)
            try:
                self._start_following(watched)
                await waiter
            finally:
                watched.waiters.remove(waiter)
                self._forget(watched)
        return False

    async def subscribe(self, id: UUID, states: Collection[TaskState], callback: Callback) -> bool:
        """Call `callback` for some states; for states already reached, before this returns.

        If a callback is the caller, calls for states already reached are made after this returns.

        Returns:
            Whether the task exists.

        Raises:
            BoughError: The transitions cannot be read; the callback will not be called.
        """
        watched = await self._watch(id)
        if watched is None:
            return False
        subscription = Subscription(states, callback)
        watched.subscriptions += (subscription,)
        self._start_following(watched)
        if _in_callback.get():
            self._start_notifying(watched)
            return True
        try:
            await self._notify(watched)
        except BoughError:
            watched.subscriptions = tuple(other for other in watched.subscriptions if other is not subscription)
            self._forget(watched)
            raise
        return True

    def look(self) -> None:
        """Check all watched tasks after a commit."""
        self._may_have_moved = True
        self._check_requested.set()

    async def aclose(self) -> None:
        """Stop watching. The caller cancels the remaining waits."""
        follower, self._follower = self._follower, None
        # Without the current task: a callback may close the broker, and must not cancel and await itself.
        ending = {*self._notifying, *([] if follower is None else [follower])} - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _watch(self, id: UUID) -> Watched | None:
        """Read the row of a task and return its watch entry; None if the task does not exist."""
        row = await self._store.look(lambda tables: find_row(tables, id), small=True)
        if row is None:
            return None
        watched = self._watched.setdefault(id, Watched(row))
        if row.version > watched.version:
            self._record(watched, row.version, TaskStanding(row.current, row.not_before is not None))
        return watched

    def _record(self, watched: Watched, version: int, standing: TaskStanding | None) -> None:
        """Record a transition or the deletion of a task, and wake its waiters."""
        watched.version, watched.standing = version, standing
        if watched.subscriptions:
            self._start_notifying(watched)
        watched.wake()

    def _start_following(self, watched: Watched) -> None:
        """Check a task after every commit, and once now, because it may have changed since its row was read."""
        self._watched.setdefault(watched.id, watched)
        self._newly_watched.append(watched)
        self._check_requested.set()
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow(), name="transitions of tasks")

    def _forget(self, watched: Watched) -> None:
        if watched.is_idle and self._watched.get(watched.id) is watched:
            del self._watched[watched.id]

    async def _follow(self) -> None:
        """Check watched tasks after every commit of any process, until none is watched."""
        while self._watched:  # again: a wait may have started while the listener was being cancelled
            listener = asyncio.create_task(self._listen(), name="commits of tasks")
            await asyncio.sleep(0)  # lets the listener subscribe; else it would miss a commit during the first check
            try:
                while self._watched:
                    self._check_requested.clear()  # before reading: a commit during the read sets it again
                    watching = list(self._watched.values()) if self._may_have_moved else self._newly_watched
                    self._may_have_moved, self._newly_watched = False, []
                    with suppress(BoughError):  # unavailable: the next commit checks again
                        await self._check(watching)
                    await self._check_requested.wait()
            finally:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        log = await self._store.open()
        async for _ in log.commits(appends=False):
            self.look()

    async def _check(self, watching: Sequence[Watched]) -> None:
        """Read the rows of watched tasks, and record their transitions and deletions."""
        ks = json.dumps([watched.k for watched in watching])
        is_small = len(watching) <= _MAX_SMALL
        rows = await self._store.look(lambda tables: tables.run("task.states", ks=ks), small=is_small)
        standings = {
            k: (version, TaskStanding(TaskState.from_number(state), not_before is not None))
            for k, state, version, not_before in rows
        }
        for watched in watching:
            version, standing = standings.get(watched.k, (_DELETED, None))
            if version > watched.version:
                self._record(watched, version, standing)

    def _start_notifying(self, watched: Watched) -> None:
        """Call the callbacks of a task in a separate asyncio task, so that a slow callback delays no other task."""
        task = asyncio.create_task(self._notify_or_retry(watched), name=f"callbacks of task {watched.id}")
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify_or_retry(self, watched: Watched) -> None:
        try:
            await self._notify(watched)
        except BoughError:  # unavailable: with an unknown version the check after the next commit retries
            watched.version = _UNKNOWN

    async def _notify(self, watched: Watched) -> None:
        """Call the callbacks of a task for the transitions that they have not been called for."""
        if not watched.subscriptions:
            return
        watched.notifying = watched.notifying or asyncio.Lock()
        async with watched.notifying:
            reached = await self._store.look(lambda tables: _read_transitions(tables, watched.id))
            for seq, task in reached:
                for subscription in watched.subscriptions:
                    if subscription.last_seq < seq:
                        subscription.last_seq = seq  # before the call: a callback that raises is not called again
                        await self._call(subscription, task)
            if not reached or reached[-1][1].is_terminal:
                watched.subscriptions = ()
        self._forget(watched)

    async def _call(self, subscription: Subscription, task: Task) -> None:
        """Call a callback. An error that it raises is recorded in the task's log, and does not stop the others."""
        if task.state not in subscription.states:
            return
        token = _in_callback.set(True)
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
            _in_callback.reset(token)


def _read_transitions(tables: Tables, id: UUID) -> list[tuple[int, Task]]:
    """Return the task as it was after each of its transitions, with the seq of each."""
    row = find_row(tables, id)
    if row is None:
        return []
    rows = tables.run("task.changes", cid=row.cid, first=row.first)
    changes = [stored for stored in StoredEvent.of_rows(rows) if _is_transition(stored, row)]  # pyright: ignore[reportArgumentType]
    if not changes:
        return []
    message = read_message(tables, row, changes[0])
    reached: list[tuple[int, Task]] = []
    for version, stored in enumerate(changes):
        event = stored.event
        if isinstance(event, TaskChanged):
            past_row = row._replace(state=TaskState(event.state).number, version=version, attempts=event.attempt)
            reached.append((stored.seq, build_task(past_row, changes[0], stored, message)))
    return reached


def _is_transition(stored: StoredEvent, row: TaskRow) -> bool:
    event = stored.event
    return isinstance(event, TaskChanged) and event.task_id == row.task_id
