"""Waiting for transitions, and telling callbacks of them: on commits, never on a timer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, TypeAlias
from uuid import UUID

from bough.errors import BoughError
from bough.events.beside import Tables
from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.tasks.model import EventType, Task, TaskEvent
from bough.tasks.state import TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import TaskRow, build_task, find_row, read_message

Callback: TypeAlias = Callable[[Task], Awaitable[None] | None]
"""Told of a task as it was when it reached a state."""


class Watched:
    """A task that somebody here waits for.

    Attributes:
        version: The transitions that are known; -1 for none.
        moved: Set at each transition; the waiter clears it.
    """

    def __init__(self, row: TaskRow) -> None:
        self.id = UUID(bytes=row.id)
        self.k = row.k
        self.version = row.version
        self.waiters: set[asyncio.Future[None]] = set()
        self.callbacks = CallbackQueue()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it any more."""
        return not self.waiters and not self.callbacks.subscriptions

    def wake(self) -> None:
        """Let everyone who waits look."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class CallbackQueue:
    """Callbacks of one task: one runs at a time, each state once, in the order in which it was reached."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.lock = asyncio.Lock()


class Subscription:
    """A callback and the states that it is told of.

    Attributes:
        told: Seq of the latest transition that it was told of, or that it did not ask for.
    """

    def __init__(self, states: Collection[TaskState], callback: Callback) -> None:
        self.states = frozenset(TaskState(state) for state in states)
        self.callback = callback
        self.told = -1


class TransitionWatch:
    """Watches tasks of a store for a process: one follower of commits, one statement for all that are waited for."""

    def __init__(self, store: RelationalTaskStore) -> None:
        self._store = store
        self._watched: dict[UUID, Watched] = {}
        self._follower: asyncio.Task[None] | None = None
        self._looks = asyncio.Event()

    async def wait(self, id: UUID, until: Callable[[Task], bool], timeout: float | None) -> Task | None:
        """Return the task once `until` holds of it, or as it stands after `timeout` seconds; None for no such task.

        Callbacks for the state that it is in have returned by then.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(id, until)
        except TimeoutError:
            return await self._store.get(str(id))

    async def _wait(self, id: UUID, until: Callable[[Task], bool]) -> Task | None:
        while True:
            watched = await self._watch(id)
            if watched is None:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watched.waiters.add(waiter)
            try:
                task = await self._store.get(str(id))
                if task is None:
                    return None
                if until(task):
                    await self._tell(watched)
                    return task
                await waiter
            finally:
                watched.waiters.discard(waiter)
                self._forget(watched)

    async def subscribe(self, id: UUID, states: Collection[TaskState], callback: Callback) -> bool:
        """Have a callback told of states; those that were reached already are told before this returns.

        Returns:
            Whether there is such a task.
        """
        watched = await self._watch(id)
        if watched is None:
            return False
        watched.callbacks.subscriptions.append(Subscription(states, callback))
        await self._tell(watched)
        return True

    def look(self) -> None:
        """Look at what is waited for now: something was written here."""
        self._looks.set()

    async def aclose(self) -> None:
        """Stop watching. Whoever still waits continues to look when it is woken otherwise, or is cancelled."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def _watch(self, id: UUID) -> Watched | None:
        watched = self._watched.get(id)
        if watched is None:
            row = await self._store.look(lambda tables: find_row(tables, id))
            if row is None:
                return None
            watched = self._watched.setdefault(id, Watched(row))
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow(), name="transitions of tasks")
        return watched

    def _forget(self, watched: Watched) -> None:
        if watched.is_idle:
            self._watched.pop(watched.id, None)

    async def _follow(self) -> None:
        """Look after every commit of any process, until nobody waits any more."""
        while self._watched:  # again: somebody may have begun to wait while the listener was being ended
            listener = asyncio.create_task(self._listen(), name="commits of tasks")
            try:
                while self._watched:
                    self._looks.clear()
                    with suppress(BoughError):  # the store may be back at the next commit
                        await self._look_once()
                    await self._looks.wait()
            finally:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        log = await self._store.open()
        async for _ in log.commits():
            self._looks.set()

    async def _look_once(self) -> None:
        ks = json.dumps([watched.k for watched in self._watched.values()])
        rows = await self._store.look(lambda tables: tables.run("task.states", ks=ks))
        versions = {k: version for k, _, version in rows}
        for watched in list(self._watched.values()):
            version = versions.get(watched.k)
            if version == watched.version:
                continue
            watched.version = -2 if version is None else version
            await self._tell(watched)
            watched.wake()

    async def _tell(self, watched: Watched) -> None:
        """Tell the callbacks of a task what they were not told yet."""
        if not watched.callbacks.subscriptions:
            return
        async with watched.callbacks.lock:
            reached = await self._store.look(lambda tables: _read_transitions(tables, watched.id))
            for seq, task in reached:
                for subscription in list(watched.callbacks.subscriptions):
                    if subscription.told < seq:
                        subscription.told = seq
                        await self._call(subscription, task)
            if not reached or reached[-1][1].is_terminal:
                watched.callbacks.subscriptions.clear()

    async def _call(self, subscription: Subscription, task: Task) -> None:
        """Call a callback; what it raises is noted with the task, and the others are called all the same."""
        if task.state not in subscription.states:
            return
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
