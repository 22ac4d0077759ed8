"""A container does not outlive the process that asked for it, nor the run that it was made for."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.execution.leftovers import (
    below,
    cancel_at_random_moments,
    count_of,
    memory_bytes,
    mounts_of_all,
    run_ids_at_once,
    traces,
)

from bough.execution import CodeExecutionInput, ContainerCodeExecutor
from bough.testing.docker_engine import IMAGE

CONNECTIONS = 25
"""How many connections to the engine its client keeps."""

PARENT = """
import asyncio, sys
from pathlib import Path
from bough.execution import CodeExecutionInput, ContainerCodeExecutor, TaskContainerExecutor

async def main():
    kind, image, host, workspace = sys.argv[1:]
    code = "import fcntl, time; lock = open('lock', 'w'); fcntl.flock(lock, 2); "
    code += "open('up', 'w').write('x'); time.sleep(1000)"
    if kind == "task":
        executor = TaskContainerExecutor(image, docker_host=host, workspace=Path(workspace))
    else:
        executor = ContainerCodeExecutor(image, docker_host=host)
    await executor.execute(CodeExecutionInput(code=code, workspace=workspace, timeout_seconds=1000))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "task"])
def test_kill_9_of_the_parent_ends_the_container(kind: str, container_engine: str, tmp_path: Path) -> None:
    import docker

    workspace, temporary = tmp_path / "workspace", tmp_path / "temporary"
    workspace.mkdir()
    temporary.mkdir()
    for folder in (tmp_path, temporary):
        folder.chmod(0o711)
    os.mkfifo(workspace / "up")
    command = [sys.executable, "-c", PARENT, kind, IMAGE, container_engine, str(workspace)]
    parent = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)})
    with open(workspace / "up", "r+b", buffering=0) as up:
        ready, _, _ = select.select([up], [], [], 30)
        assert ready, "it did not come up"
    parent.kill()
    parent.wait()
    with open(workspace / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # returns when the program is gone; the test's own timeout bounds it
    client = docker.DockerClient(container_engine)
    deadline = time.monotonic() + 20
    while (left := client.containers.list(all=True, ignore_removed=True)) and time.monotonic() < deadline:
        os.sched_yield()
    assert left == []
    while os.listdir(temporary) and time.monotonic() < deadline:
        os.sched_yield()
    assert os.listdir(temporary) == []
    client.close()


_Found: TypeAlias = tuple[list[Any], list[Any], int]


@pytest.fixture
async def executor(
    container_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ContainerCodeExecutor]:
    """An executor that keeps its files in a folder of the test; nothing of its runs is there at the end."""
    import docker

    client = docker.DockerClient(container_engine)
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    executor = ContainerCodeExecutor(IMAGE, docker_host=container_engine)
    assert (await executor.execute(CodeExecutionInput(code="pass"))).ok
    before = _wait_until(client, lambda now: now[0] == [])
    yield executor
    assert _wait_until(client, lambda now: now == before) == before
    await executor.aclose()
    assert os.listdir(tmp_path) == []
    assert str(tmp_path) not in mounts_of_all()
    client.close()


def _look(client: Any) -> _Found:
    """Return the containers and volumes of an engine, and how many processes there are, its own included."""
    containers = client.containers.list(all=True, ignore_removed=True)
    return containers, client.volumes.list(), len(below(os.getpid()))


def _wait_until(client: Any, is_so: Callable[[_Found], bool]) -> _Found:
    """Return what is there once the engine has cleaned up so far, or after 20 s."""
    deadline = time.monotonic() + 20
    while not is_so(now := _look(client)) and time.monotonic() < deadline:
        os.sched_yield()
    return now


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.timeout(120 + 4 * count_of("BOUGH_RUNS", 10))
async def test_many_runs_in_a_row_leave_nothing(executor: ContainerCodeExecutor, tmp_path: Path) -> None:
    fds, memory, folders = len(os.listdir("/proc/self/fd")), memory_bytes(), traces(tmp_path)
    for _ in range(count_of("BOUGH_RUNS", 10)):
        assert (await executor.execute(CodeExecutionInput(code="print(1)"))).stdout == b"1\n"
    assert len(os.listdir("/proc/self/fd")) <= fds + CONNECTIONS
    assert traces(tmp_path) == folders
    assert memory_bytes() - memory < 8 << 20


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.timeout(120 + count_of("BOUGH_CANCELS", 8))
async def test_runs_that_are_cancelled_at_random_moments_leave_nothing(executor: ContainerCodeExecutor) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    was_cancelled = await cancel_at_random_moments(
        executor, count_of("BOUGH_CANCELS", 8), lives_on=False, seed="container", within_seconds=0.6
    )
    assert any(was_cancelled)
    assert len(os.listdir("/proc/self/fd")) <= fds + CONNECTIONS


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.timeout(120 + count_of("BOUGH_IDS", 6))
async def test_many_ids_at_once_all_run_and_leave_nothing(executor: ContainerCodeExecutor) -> None:
    count = count_of("BOUGH_IDS", 6)
    assert await run_ids_at_once(executor, count) == count
