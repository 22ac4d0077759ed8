"""The executor contract on a container that stays; and what only such a container has: commands, and its own files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.errors import InvalidInput, SandboxUnavailable
from bough.execution import CodeExecutionInput, ExecutionLimits, Mount, TaskContainerExecutor
from bough.testing.docker_engine import IMAGE
from bough.testing.executor_contract import ExecutorContract

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMITS = ExecutionLimits(memory_bytes=250 << 20)
"""Of all processes together; the run of the contract that uses up its memory has 220 MiB."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the container shows."""
    return tmp_path_factory.mktemp("shown")


@pytest.fixture(scope="module")
async def task(container_engine: str, shown: Path, anyio_backend: str) -> AsyncIterator[TaskContainerExecutor]:
    """One container for all tests, as for everything that belongs to a task."""
    executor = TaskContainerExecutor(IMAGE, workspace=shown, docker_host=container_engine, limits=LIMITS)
    yield executor
    await executor.aclose()


@pytest.fixture
def workspace(shown: Path) -> Path:
    """The folder that the container shows, emptied."""
    for left in shown.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    return shown


class TestTaskContainer(ExecutorContract):
    @pytest.fixture
    def executor(self, task: TaskContainerExecutor) -> TaskContainerExecutor:
        return task

    @pytest.fixture
    def workspace(self, shown: Path) -> Path:
        for left in shown.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        return shown


async def test_a_command_keeps_its_files_and_its_servers_until_they_are_ended(
    task: TaskContainerExecutor, workspace: Path
) -> None:
    left = "python3 -c 'import time; time.sleep(1000)' & echo $! > pid"
    assert (await task.run_command(left)).exit_code == 0
    assert (workspace / "pid").exists()
    assert (await task.run_command("cat /proc/$(cat pid)/cmdline >/dev/null")).exit_code == 0, "it runs on"
    await task.end_processes()
    after = await task.run_command("cat /proc/$(cat pid)/cmdline >/dev/null; echo still $(cat pid | grep -c .)")
    assert after.stdout == b"still 1\n", "files stay"
    assert b"No such file" in after.stderr, "processes do not"


async def test_a_command_that_never_ends_is_ended_with_everything_it_started(
    task: TaskContainerExecutor, workspace: Path
) -> None:
    outcome = await task.run_command("echo begun; while :; do :; done & while :; do :; done", timeout_seconds=2)
    assert (outcome.exit_code, outcome.timed_out, outcome.stdout) == (None, True, b"begun\n")
    assert (await task.run_command("exit 124")).exit_code == 124, "an exit code of its own is not a timeout"


async def test_a_cancelled_command_leaves_no_process(task: TaskContainerExecutor, workspace: Path) -> None:
    running = asyncio.ensure_future(task.run_command("echo x > begun; while :; do :; done"))
    while not (workspace / "begun").exists():
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    seen = await task.run_command("for p in /proc/[0-9]*; do cat $p/cmdline; done")
    assert b"begun" not in seen.stdout


async def test_links_and_folders_are_not_read_as_files(task: TaskContainerExecutor, workspace: Path) -> None:
    await task.run_command(
        ["python3", "-c", "import os; os.symlink('/etc/passwd', '/link'); open('/big', 'w').write('x' * 99)"]
    )
    with pytest.raises(InvalidInput, match="not a regular file"):
        await task.read_file("/link", 1000)
    with pytest.raises(InvalidInput, match="not a regular file"):
        await task.read_file("/tmp", 1000)
    with pytest.raises(InvalidInput, match="larger than 98"):
        await task.read_file("/big", 98)
    assert await task.read_file("/big", 99) == b"x" * 99
    assert await task.read_file("/none", 99) is None


async def test_other_workspaces_and_writable_mounts_are_refused(task: TaskContainerExecutor, tmp_path: Path) -> None:
    for request in (
        CodeExecutionInput(code="pass", workspace=str(tmp_path)),
        CodeExecutionInput(code="pass", mounts=(Mount(source=str(tmp_path), target="/data", writable=True),)),
        CodeExecutionInput(code="pass", mounts=(Mount(source=str(tmp_path), target="/work/data"),)),
    ):
        with pytest.raises(InvalidInput):
            await task.execute(request)


async def test_a_project_is_no_workspace_of_a_kept_container(container_engine: str, tmp_path: Path) -> None:
    """Its programs could change the repository's hooks, which git then runs on the host."""
    (tmp_path / "app" / ".git").mkdir(parents=True)
    executor = TaskContainerExecutor(IMAGE, workspace=tmp_path, docker_host=container_engine, limits=LIMITS)
    try:
        with pytest.raises(InvalidInput, match=r"app/\.git"):
            await executor.run_command("true")
        (tmp_path / "app" / ".git").rmdir()
        assert (await executor.run_command(["python3", "-c", "import os; os.mkdir('.git')"])).exit_code == 0
        await executor.reinitialize()
        assert (await executor.run_command("true")).exit_code == 0
        assert (tmp_path / ".git").is_dir(), "a name of the task's own is allowed"
    finally:
        await executor.aclose()


async def test_an_image_that_is_not_there_is_named(container_engine: str) -> None:
    executor = TaskContainerExecutor("bough-absent:1", docker_host=container_engine)
    with pytest.raises(SandboxUnavailable, match="bough-absent:1"):
        await executor.run_command("true")
    await executor.aclose()


async def test_names_count_toward_the_disk(container_engine: str, tmp_path: Path) -> None:
    """A container's own files lie on the host's disk, whose number of files is bounded, too."""
    code = "import os, time\nos.mkdir('/many')\nfor n in range(20_000): open(f'/many/{n}', 'w').close()\ntime.sleep(60)"
    async with TaskContainerExecutor(
        IMAGE, workspace=tmp_path, docker_host=container_engine, disk_bytes=4 << 20, limits=LIMITS
    ) as executor:
        filling = await executor.run_command(["python3", "-c", code], timeout_seconds=60)
        assert (filling.exit_code, filling.is_full, filling.timed_out) == (None, True, False)


@pytest.mark.parametrize("where", ["/filled", "filled"], ids=["of its own", "in the workspace"])
async def test_what_fills_the_disk_is_ended_and_can_be_removed(
    container_engine: str, tmp_path: Path, where: str
) -> None:
    executor = TaskContainerExecutor(
        IMAGE, workspace=tmp_path, docker_host=container_engine, disk_bytes=16 << 20, limits=LIMITS
    )
    fill = f"import time\nwith open({where!r}, 'wb') as f: f.write(b'x' * (32 << 20))\nwhile True: time.sleep(60)"
    try:
        filling = await executor.run_command(["python3", "-c", fill], timeout_seconds=60)
        assert (filling.exit_code, filling.is_full, filling.timed_out) == (None, True, False)
        assert (await executor.run_command(f"> {where}")).exit_code == 0, "what is over the bound may be removed"
        run = await executor.execute(CodeExecutionInput(code=fill.replace("'filled'", "'/filled'"), timeout_seconds=60))
        assert (run.killed_by, run.timed_out) == ("work_bytes", False)
    finally:
        await executor.aclose()
