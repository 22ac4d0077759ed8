"""`TaskStoreJson`: copies for people, which nothing reads."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput
from bough.settings import Settings
from bough.tasks import Task, TaskBroker, TaskState, TaskStoreJson

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "tasks"


@pytest.fixture
async def tasks(folder: Path) -> AsyncGenerator[TaskStoreJson]:
    """A store of JSON files."""
    store = TaskStoreJson(folder)
    yield store
    await store.aclose()


def read(folder: Path, task_id: str) -> dict[str, Any]:
    """Return the copy of a task."""
    return json.loads((folder / f"{task_id}.json").read_text("utf-8"))


async def test_each_commit_writes_the_copies_of_what_it_changed(tasks: TaskStoreJson, folder: Path) -> None:
    """The file is there when the call returns; another task's is not written again; a deleted task has none."""
    one, two = await tasks.create(Task(input="één")), await tasks.create(Task(input="two"))
    before = (folder / f"{two.id}.json").stat().st_mtime_ns
    await tasks.update_state(one.id, TaskState.RUNNING)
    assert (read(folder, one.id)["state"], read(folder, one.id)["input"]) == ("running", "één")
    assert (folder / f"{two.id}.json").stat().st_mtime_ns == before
    await tasks.update_state(one.id, TaskState.COMPLETED, result="done")
    assert Task.model_validate(read(folder, one.id)).result == "done"
    await tasks.delete(one.id)
    assert sorted(path.name for path in folder.glob("*.json")) == [f"{two.id}.json"]


async def test_the_end_of_a_run_is_copied(
    tasks: TaskStoreJson, folder: Path, settings: Settings, scripted: Callable[..., AgentSpec]
) -> None:
    """It is written by the run's own last commit; the copy is there when the store is closed."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task = await broker.wait(await broker.submit("write", agent_name="writer"))
        assert task.state is TaskState.COMPLETED
    await tasks.aclose()
    assert (read(folder, task.id)["state"], read(folder, task.id)["result"]) == ("completed", "a poem")


async def test_b09_torn_and_foreign_files_harm_nothing(
    tasks: TaskStoreJson, folder: Path, settings: Settings, scripted: Callable[..., AgentSpec]
) -> None:
    """They are never read: every task runs, and the next commit writes that task's copy anew, whole."""
    idle = TaskBroker(tasks, settings=settings)
    torn, other = [await idle.submit(text, agent_name="writer") for text in ("torn", "other")]
    (folder / f"{torn}.json").write_text('{"id": "')
    for name, text in (("foreign.json", "[1, 2"), (f"{Task(input='x').id}.json", "{}"), ("x.json", "\0")):
        (folder / name).write_text(text)
    await tasks.aclose()
    again = TaskStoreJson(folder)
    async with TaskBroker(again, settings=settings) as broker:
        broker.register_agents([scripted("writer", "one", "two")])
        for task_id in (torn, other):
            assert (await broker.wait(task_id)).state is TaskState.COMPLETED
    await again.aclose()
    assert read(folder, torn)["state"] == "completed"
    assert (folder / "foreign.json").read_text() == "[1, 2"


async def test_b31_no_id_leaves_the_folder(tasks: TaskStoreJson, folder: Path) -> None:
    """Nothing is read outside, nothing written."""
    (folder.parent / "outside.json").write_text(Task(input="secret").model_dump_json())
    for id in ("../outside", "..%2foutside", str(folder.parent / "outside")):
        assert await tasks.get(id) is None
        with pytest.raises(InvalidInput):
            await tasks.create(Task(id=id, input="x"))
    assert [path.name for path in folder.parent.glob("*.json")] == ["outside.json"]


async def test_a_copy_that_cannot_be_written_is_told(
    tasks: TaskStoreJson, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The task is as it is; the warning names it; the next transition writes the copy."""
    task = await tasks.create(Task(input="one"))
    copy = folder / f"{task.id}.json"
    copy.unlink()
    copy.mkdir()
    with caplog.at_level(logging.WARNING, "bough.task"):
        await tasks.update_state(task.id, TaskState.RUNNING)
    assert task.id in caplog.text
    copy.rmdir()
    await tasks.update_state(task.id, TaskState.COMPLETED)
    assert read(folder, task.id)["state"] == "completed"
