"""Every task store against a dictionary: what both say of every task is the same, crashes included."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from bough.errors import Conflict, InvalidTransition, NotFound
from bough.events.owner import owner
from bough.events.side_tables import Tables
from bough.tasks import Claim, Task, TaskState, TaskStoreJson, TaskStorePostgres, TaskStoreSqlite
from bough.tasks.state import TRANSITIONS
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing.postgres import make_database

QUEUES = ("a", "b")


class Crash(Exception):
    """The process dies here."""


class Known:
    """What the model knows of a task."""

    def __init__(self, priority: int, queue: str, age: int) -> None:
        self.state = TaskState.PENDING
        self.version = 0
        self.attempts = 0
        self.priority = priority
        self.queue = queue
        self.age = age
        self.result: str | None = None
        self.changes = ["pending"]
        self.claim: Claim | None = None

    def move(self, state: TaskState, result: str | None = None) -> None:
        """Make a transition."""
        self.state, self.result = state, result
        self.version += 1
        self.changes.append(state.value)


class TaskStoreMachine(RuleBasedStateMachine):
    """Random calls on a store and on the model; after each, every task is compared."""

    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.known: dict[str, Known] = {}
        self.born = 0
        self.store = self.make(Path(self.folder.name))

    def make(self, folder: Path) -> RelationalTaskStore:
        """Return the store, on what an earlier one left."""
        return TaskStoreSqlite(f"sqlite:///{folder / 'log.db'}")

    def run(self, call: Any) -> Any:
        """Return what a call of the store returns."""
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.loop.close()
        self.folder.cleanup()

    @rule(target=tasks, priority=st.integers(-1, 1), queue=st.sampled_from(QUEUES))
    def create(self, priority: int, queue: str) -> str:
        task = self.run(self.store.create(Task(input="x", priority=priority, queue=queue)))
        self.born += 1
        self.known[task.id] = Known(priority, queue, self.born)
        return task.id

    @rule(queues=st.sets(st.sampled_from(QUEUES), min_size=1))
    def claim(self, queues: set[str]) -> None:
        """The best by priority, then age."""
        claim = self.run(self.store.claim(owner(), sorted(queues)))
        waiting = [(-each.priority, each.age, id) for id, each in self.known.items()
                   if each.state is TaskState.PENDING and each.queue in queues]  # fmt: skip
        assert (None if claim is None else claim.task.id) == (min(waiting)[2] if waiting else None)
        if claim is not None:
            self._claimed(claim)

    @rule(id=tasks)
    def claim_by_id(self, id: str) -> None:
        claim = self.run(self.store.claim(owner(), id=id))
        known = self.known.get(id)
        assert (claim is not None) == (known is not None and known.state is TaskState.PENDING)
        if claim is not None:
            self._claimed(claim)

    def _claimed(self, claim: Claim) -> None:
        known = self.known[claim.task.id]
        known.move(TaskState.RUNNING)
        known.attempts += 1
        known.claim = claim

    @rule(id=tasks)
    def lapse(self, id: str) -> None:
        """The owner has not renewed: another takes over, and the first one can write nothing any more."""
        known = self.known.get(id)
        if known is None or known.claim is None:
            return
        self.run(self.store.heartbeat(known.claim, 0))
        taken = self.run(self.store.claim(owner(), id=id))
        if known.attempts + 1 > 3:
            assert taken is None
            known.attempts += 1
            known.claim = None
            known.move(TaskState.FAILED)
            return
        with pytest.raises(Conflict):
            self.run(self.store.release(known.claim, TaskState.COMPLETED))
        known.attempts += 1
        known.claim = taken

    @rule(id=tasks, state=st.sampled_from(TaskState))
    def release(self, id: str, state: TaskState) -> None:
        known = self.known.get(id)
        if known is None or known.claim is None:
            return
        claim = known.claim
        if state not in TRANSITIONS[TaskState.RUNNING]:
            with pytest.raises(InvalidTransition):
                self.run(self.store.release(claim, state))
            return
        self.run(self.store.release(claim, state, result="r"))
        known.claim = None
        known.move(state, "r")
        if state is TaskState.PENDING:
            known.attempts -= 1

    @rule(id=tasks, state=st.sampled_from([each for each in TaskState if each is not TaskState.RUNNING]))
    def update(self, id: str, state: TaskState) -> None:
        """A program moves it, whoever holds its claim."""
        known = self.known.get(id)
        if known is None:
            assert self.run(self.store.update_state(id, state)) is None
        elif state not in TRANSITIONS[known.state]:
            with pytest.raises(InvalidTransition):
                self.run(self.store.update_state(id, state))
        elif known.claim is None:
            self.run(self.store.update_state(id, state, result="u", version=known.version))
            known.move(state, "u")

    @rule(id=tasks, whole=st.booleans())
    def delete(self, id: str, whole: bool) -> None:
        """The task when it has ended, or its conversation whatever it is."""
        known = self.known.get(id)
        if known is None:
            with pytest.raises(NotFound):
                self.run(self.store.delete(id))
        elif whole and known.claim is None:
            self.run(self.store.log.delete(UUID(id), "erase"))
            del self.known[id]
        elif TRANSITIONS[known.state]:
            with pytest.raises(Conflict):
                self.run(self.store.delete(id))
        else:
            self.run(self.store.delete(id))
            del self.known[id]

    @rule(id=tasks, state=st.sampled_from(TaskState))
    def crash_before_the_commit(self, id: str, state: TaskState) -> None:
        """Everything is written, and then the process dies: nothing of it is there."""
        from bough.tasks.stores.rows import find_row, move

        known = self.known.get(id)
        if known is None or known.claim is not None or state not in TRANSITIONS[known.state]:
            return

        def fail(tables: Tables) -> None:
            row = find_row(tables, UUID(id))
            assert row is not None
            move(tables, row, state)
            raise Crash

        with pytest.raises(Crash):
            self.run(self.store.change(fail))
        self.crash()

    @rule()
    def crash(self) -> None:
        """Close and open again: claims are as they were, by their leases."""
        self.run(self.store.aclose())
        self.store = self.make(Path(self.folder.name))
        self.run(self.store.open())

    @invariant()
    def both_agree(self) -> None:
        for id, known in self.known.items():
            task = self.run(self.store.get(id))
            assert task is not None
            assert (task.state, task.version, task.attempts) == (known.state, known.version, known.attempts)
            assert task.result == known.result
            assert [event.payload["state"] for event in task.events] == known.changes
        for state in TaskState:
            listed = [task.id for task in self.run(self.store.list_by_state(state))]
            assert listed == [id for id, each in self.known.items() if each.state is state]


class JsonMachine(TaskStoreMachine):
    """`TaskStoreJson`."""

    def make(self, folder: Path) -> RelationalTaskStore:
        return TaskStoreJson(folder / "tasks")


_BOUNDED = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}

TestSqlite = TaskStoreMachine.TestCase
TestSqlite.settings = settings(max_examples=12, stateful_step_count=20, **_BOUNDED)
TestJson = JsonMachine.TestCase
TestJson.settings = settings(max_examples=3, stateful_step_count=20, **_BOUNDED)


@pytest.mark.slow
@pytest.mark.needs("postgres")
def test_postgres(postgres: str) -> None:
    """`TaskStorePostgres`: a database for each run of the machine."""
    from hypothesis.stateful import run_state_machine_as_test

    class PostgresMachine(TaskStoreMachine):
        def make(self, folder: Path) -> RelationalTaskStore:
            self.url = getattr(self, "url", "") or make_database(postgres)
            return TaskStorePostgres(self.url)

    run_state_machine_as_test(PostgresMachine, settings=settings(max_examples=5, stateful_step_count=20, **_BOUNDED))
