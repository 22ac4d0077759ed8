"""What a claim and a transition cost does not grow with what has ended: statements and rows, not times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bough.errors import Conflict
from bough.events.owner import owner
from bough.events.side_tables import Tables
from bough.settings import Settings
from bough.tasks import Task, TaskBroker, TaskState, TaskStoreSqlite
from bough.tasks.stores.claims import claim_next

pytestmark = pytest.mark.anyio

_FINISHED = """
with recursive n (i) as (select 1 union all select i + 1 from n where i < :count)
insert into task (id, cid, format, state, version, attempts, max_attempts, priority, queue, first, last)
select randomblob(16), (select min(cid) from task), 1, 3, 2, 1, 3, 0, 'default', 2, 2 from n
"""


class Counted:
    """Tables that count the statements of a change and the rows that these give."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.statements: list[str] = []
        self.rows = 0

    def run(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named statement and count it."""
        rows = self._tables.run(name, **parameters)
        self.statements.append(name)
        self.rows += len(rows)
        return rows

    def one(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a named statement."""
        rows = self.run(name, **parameters)
        return rows[0] if rows else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


async def measure_claim(store: TaskStoreSqlite, finished: int) -> tuple[list[str], int, list[str]]:
    """Return statements and rows of a claim, and the plan of its look, behind so many finished tasks."""
    await store.create(Task(input="done"))
    first = await store.claim(owner())
    assert first is not None
    await store.release(first, TaskState.COMPLETED)
    await store.change(lambda tables: tables.connection.execute(_FINISHED, {"count": finished}) and None)
    for _ in range(5):
        await store.create(Task(input="next"))

    def claim(tables: Tables) -> tuple[list[str], int]:
        counted = Counted(tables)
        assert claim_next(counted, ("default",), owner(), 15.0) is not None  # pyright: ignore[reportArgumentType]
        return counted.statements, counted.rows

    def explain(tables: Tables) -> list[str]:
        ready = "select k, priority, id from task where queue = 'default' and state = 0 and not_before is null"
        plan = tables.connection.execute(
            f"explain query plan {ready} and format <= 1 order by priority desc, k limit 1"
        )
        return [row[3] for row in plan]

    statements, rows = await store.change(claim)
    return statements, rows, await store.look(explain)


async def test_a_claim_is_the_same_behind_ten_and_100_000_finished_tasks(tmp_path: Path) -> None:
    """B36: the same statements and rows, from the front of an index that holds nothing but what waits."""
    seen: list[Any] = []
    for finished in (10, 100_000):
        store = TaskStoreSqlite(f"sqlite:///{tmp_path / f'{finished}.db'}")
        seen.append(await measure_claim(store, finished))
        await store.aclose()
    few, many = seen
    assert few == many
    assert few[2] == ["SEARCH task USING INDEX task_ready (queue=?)"]


async def test_a_thousand_submissions_with_one_key_are_one_task(tmp_path: Path, settings: Settings) -> None:
    """One id a thousand times, one row, one conversation; another input is a conflict."""
    store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
    broker = TaskBroker(store, settings=settings)
    ids = await asyncio.gather(*(broker.submit("write", idempotency_key="k") for _ in range(1000)))
    assert len(set(ids)) == 1
    assert [task.id for task in (await store.list()).items] == [ids[0]]
    assert len((await store.log.list()).items) == 1
    with pytest.raises(Conflict):
        await broker.submit("other", idempotency_key="k")
    await broker.aclose()
    await store.aclose()


async def test_two_machines_of_one_host_name_take_nothing_over(tmp_path: Path) -> None:
    """A pid of another start of another machine says nothing here, though the host has the same name."""
    store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
    task = await store.create(Task(input="one"))
    form, _, namespace, _, nonce, host = owner().split("/")
    elsewhere = "/".join((form, str(uuid4()), namespace, "999999", nonce, host))
    assert await store.claim(elsewhere) is not None
    assert await store.claim(owner(), id=task.id) is None
    await store.aclose()


@pytest.mark.slow
async def test_a_result_of_100_megabytes_is_cut_and_its_size_told(tmp_path: Path) -> None:
    """Head and tail stay; the row's event is small."""
    store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
    task = await store.create(Task(input="one"))
    await store.update_state(task.id, TaskState.COMPLETED, result="a" + "x" * (100 << 20) + "z")
    found = await store.get(task.id)
    assert found is not None
    assert found.result is not None
    assert len(found.result.encode()) <= 1 << 20
    assert (found.result[0], found.result[-1]) == ("a", "z")
    assert found.events[-1].payload["result_bytes"] == (100 << 20) + 2
    await store.aclose()
