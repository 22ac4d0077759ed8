"""The process that forks supervisors is an economy: runs are the same with it, without it, and when it dies."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor
from bough.execution.process.child import list_descendants

pytestmark = [pytest.mark.anyio, pytest.mark.needs("landlock")]

APPEND = "import os, time; fd = os.open('ran', os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(fd, b'x')"


@pytest.fixture
async def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalSandboxCodeExecutor]:
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    executor = LocalSandboxCodeExecutor()
    yield executor
    await executor.aclose()


async def start_server(executor: LocalSandboxCodeExecutor) -> int:
    """Start the server and wait until it has loaded; return its pid."""
    await executor.healthy()
    executor.supervisor.start()
    control = executor.supervisor.control
    assert control is not None
    await asyncio.to_thread(select.select, [control], [], [], 30)
    assert executor.supervisor.process is not None
    return executor.supervisor.process.pid


def workspace_of(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir(exist_ok=True)
    return tmp_path / "work"


async def until_forked(server: int) -> None:
    while not await asyncio.to_thread(list_descendants, server):
        await asyncio.sleep(0.01)


async def test_it_is_started_at_the_second_run(executor: LocalSandboxCodeExecutor) -> None:
    for expected in (False, True):
        result = await executor.execute(CodeExecutionInput(code="print(1)"))
        assert (result.isolation, result.stdout) == (Isolation.LANDLOCK, b"1\n")
        assert (executor.supervisor.process is not None) is expected


async def test_a_run_is_forked_and_counted_as_its_own(executor: LocalSandboxCodeExecutor) -> None:
    server = await start_server(executor)
    running = asyncio.create_task(executor.execute(CodeExecutionInput(code="print(input())", stdin=b"in\n")))
    await until_forked(server)
    result = await running
    assert (result.exit_code, result.stdout) == (0, b"in\n")
    assert result.cpu_seconds > 0
    assert list_descendants(server) == []


async def test_a_server_that_was_killed_takes_no_run_along(executor: LocalSandboxCodeExecutor, tmp_path: Path) -> None:
    server = await start_server(executor)
    work = workspace_of(tmp_path)
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')"
    running = asyncio.create_task(executor.execute(CodeExecutionInput(code=wait, workspace=str(work))))
    await until_forked(server)
    os.kill(server, signal.SIGKILL)
    next_one = await executor.execute(CodeExecutionInput(code="print('next')"))
    (work / "go").touch()
    assert ((await running).stdout, next_one.stdout) == (b"done\n", b"next\n")
    assert await start_server(executor) != server


async def test_a_cancelled_run_leaves_nothing_below_it(executor: LocalSandboxCodeExecutor) -> None:
    server = await start_server(executor)
    running = asyncio.create_task(executor.execute(CodeExecutionInput(code="import time; time.sleep(600)")))
    await until_forked(server)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list_descendants(server) == []
    assert (await executor.execute(CodeExecutionInput(code="print(2)"))).stdout == b"2\n"


async def test_a_timeout_ends_a_forked_run(executor: LocalSandboxCodeExecutor) -> None:
    server = await start_server(executor)
    result = await executor.execute(CodeExecutionInput(code="import time; time.sleep(600)", timeout_seconds=0.5))
    assert result.timed_out
    assert list_descendants(server) == []


@pytest.mark.slow
async def test_a_server_that_does_not_answer_starts_no_run_twice(
    executor: LocalSandboxCodeExecutor, tmp_path: Path
) -> None:
    server = await start_server(executor)
    work = workspace_of(tmp_path)
    os.kill(server, signal.SIGSTOP)
    result = await executor.execute(CodeExecutionInput(code=APPEND, workspace=str(work)))
    assert result.exit_code == 0
    assert (work / "ran").read_bytes() == b"x"
    assert executor.supervisor.process is None


async def test_it_ends_with_a_host_that_was_killed(tmp_path: Path) -> None:
    host = """
import asyncio, os, sys, time
from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor

async def main():
    os.environ["PATH"] = "/nonexistent"
    executor = LocalSandboxCodeExecutor()
    for _ in range(2):
        await executor.execute(CodeExecutionInput(code="pass"))
    print(executor.supervisor.process.pid, flush=True)
    time.sleep(600)

asyncio.run(main())
"""
    running = subprocess.Popen([sys.executable, "-c", host], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert running.stdout is not None
    with running.stdout:
        server = os.pidfd_open(int(running.stdout.readline()))
        try:
            running.kill()
            running.wait()
            ended, _, _ = await asyncio.to_thread(select.select, [server], [], [], 30)
            assert ended
        finally:
            os.close(server)
