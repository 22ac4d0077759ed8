"""Nothing is left on the machine, whatever happened to the process that ran the code."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests.execution.leftovers import (
    below,
    cancel_at_random_moments,
    count_of,
    memory_bytes,
    mounts_of_all,
    run_ids_at_once,
    traces,
)

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor
from bough.execution.base import CodeExecutor
from bough.testing.executor_contract import DAEMONS

PARENT = """
import asyncio, sys
from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor

async def main():
    kind, workspace, code = sys.argv[1:]
    local = LocalSandboxCodeExecutor(stateful=kind == "stateful")
    executor = UnsafeLocalCodeExecutor() if kind == "unsafe" else local
    lives_on = "stays" if kind in ("warm", "stateful") else None
    request = CodeExecutionInput(code=code, workspace=workspace, execution_id=lives_on)
    if kind == "warm":
        assert await executor.warm_up(request)
    await asyncio.gather(
        executor.execute(request),
        executor.execute(CodeExecutionInput(code="import time; time.sleep(1000)")),
    )

asyncio.run(main())
"""


def eventually_locked(path: Path, seconds: float = 20.0) -> None:
    """Take the lock that every process of the run holds: returns as soon as the last of them is gone."""
    with open(path) as lock:
        deadline = time.monotonic() + seconds
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert time.monotonic() < deadline


def of_bubblewrap(*kinds: str) -> list[ParameterSet]:
    """Return parameters whose tests are left out where bubblewrap is not there."""
    return [pytest.param(kind, marks=pytest.mark.needs("bubblewrap")) for kind in kinds]


@pytest.mark.parametrize("kind", [*of_bubblewrap("bubblewrap", "warm", "stateful"), "sandlock", "unsafe"])
def test_kill_9_of_the_parent_in_the_middle_of_a_run(kind: str, tmp_path: Path) -> None:
    workspace, temporary = tmp_path / "workspace", tmp_path / "temporary"
    workspace.mkdir()
    temporary.mkdir()
    temporary.chmod(0o711)
    os.mkfifo(workspace / "up")
    code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
    env = {**os.environ, "TMPDIR": str(temporary), "PATH": str(tmp_path) if kind == "sandlock" else os.environ["PATH"]}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, kind, str(workspace), code], env=env)
    assert (workspace / "up").read_text() == "x"
    assert os.listdir(temporary)
    parent.kill()
    parent.wait()
    eventually_locked(workspace / "lock")
    deadline = time.monotonic() + 20
    while os.listdir(temporary) and time.monotonic() < deadline:
        os.sched_yield()
    assert os.listdir(temporary) == []
    assert {path.lstat().st_uid for path in (workspace, *workspace.rglob("*"))} == {os.geteuid()}
    while str(tmp_path) in mounts_of_all() and time.monotonic() < deadline:
        os.sched_yield()
    assert str(tmp_path) not in mounts_of_all()


def owners_of_shared_memory() -> set[str]:
    """Return the uids that System V segments and semaphores belong to."""
    found: set[str] = set()
    for kind in ("shm", "sem"):
        columns, *rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()]
        found |= {row[columns.index("uid")] for row in rows}
    return found


@pytest.mark.anyio
async def test_runs_behind_landlock_leave_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has some thousand segments; each run as a user of its own would take one for good."""
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor()
    result = await executor.execute(CodeExecutionInput(code="import os; print(os.getuid())"))
    assert result.isolation is Isolation.LANDLOCK
    its_own = {result.stdout.decode().strip()} - {str(os.geteuid())}  # an ordinary user has one for all runs
    assert not its_own & owners_of_shared_memory()
    await executor.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", of_bubblewrap("warm", "stateful"))
async def test_long_runs_share_the_control_group_of_their_sandbox(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is looked after once it has lasted a while; what it finds then must not be made again for each."""
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES, stateful=kind == "stateful")
    request = CodeExecutionInput(code="import time; time.sleep(0.3)", execution_id="stays")
    if kind == "warm":
        assert await executor.warm_up(request)
    assert (await executor.execute(request)).ok
    after_one = traces(tmp_path)
    for _ in range(2):
        assert (await executor.execute(request)).ok
    assert traces(tmp_path) == after_one
    await executor.aclose()


EVERY_KIND = [*of_bubblewrap("cold", "warm", "stateful"), "sandlock", "unsafe"]
USUAL_RUNS = {"sandlock": 100, "unsafe": 100}
"""How many runs in a row where it is not 300: one without a waiting interpreter takes a tenth of a second or two."""


def executor_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CodeExecutor:
    """Return an executor that keeps its files in `folder`."""
    folder.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    if kind == "unsafe":
        return UnsafeLocalCodeExecutor()
    if kind == "sandlock":
        monkeypatch.setenv("PATH", str(folder))
        return LocalSandboxCodeExecutor()
    return LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES, stateful=kind == "stateful")


@pytest.mark.slow
@pytest.mark.timeout(280 * max(1, count_of("BOUGH_RUNS", 0) // 300))
@pytest.mark.anyio
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_many_runs_in_a_row_leave_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run leaves must not grow with their number: processes, descriptors, memory, folders, control groups."""
    executor = executor_of(kind, tmp_path, monkeypatch)
    request = CodeExecutionInput(code="print(1)", execution_id="stays" if kind in ("warm", "stateful") else None)
    if isinstance(executor, LocalSandboxCodeExecutor) and kind == "warm":
        assert await executor.warm_up(request)
    for _ in range(50):
        assert (await executor.execute(request)).ok
    isolation = {"sandlock": Isolation.LANDLOCK, "unsafe": Isolation.NONE}
    assert executor.isolation is isolation.get(kind, Isolation.NAMESPACES)
    gc.collect()  # what earlier tests left is closed now, and not between the two counts
    fds, processes = len(os.listdir("/proc/self/fd")), len(below(os.getpid()))
    folders, memory = traces(tmp_path), memory_bytes()
    runs = count_of("BOUGH_RUNS", USUAL_RUNS.get(kind, 300))
    for _ in range(runs):
        assert (await executor.execute(request)).stdout == b"1\n"
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert len(below(os.getpid())) == processes
    assert traces(tmp_path) == folders
    assert memory_bytes() - memory < max(1 << 20, runs * 8 << 10)  # 8 KiB a run would be a leak
    await executor.aclose()
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("kind", of_bubblewrap("cold", "warm"))
async def test_50_runs_at_once_all_end_well(kind: str) -> None:
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    ids = [f"id{n % 8}" if kind == "warm" else None for n in range(50)]
    requests = [CodeExecutionInput(code=f"print({n})", execution_id=each) for n, each in enumerate(ids)]
    for _ in range(2):
        results = await asyncio.gather(*(executor.execute(request) for request in requests))
        assert [(result.stdout, result.exit_code) for result in results] == [(b"%d\n" % n, 0) for n in range(50)]
    await executor.aclose()


@pytest.mark.slow
@pytest.mark.timeout(120 * max(1, count_of("BOUGH_CANCELS", 100) // 100))
@pytest.mark.anyio
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_runs_that_are_cancelled_at_random_moments_leave_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the workspace is made, the sandbox starts, the program runs, the files are collected."""
    before = below(os.getpid())  # servers of other tests, for example
    executor = executor_of(kind, tmp_path, monkeypatch)
    assert (await executor.execute(CodeExecutionInput(code="pass"))).ok
    fds = len(os.listdir("/proc/self/fd"))
    count = count_of("BOUGH_CANCELS", 100)
    was_cancelled = await cancel_at_random_moments(executor, count, lives_on=kind in ("warm", "stateful"), seed=kind)
    assert any(was_cancelled)
    await executor.aclose()
    assert os.listdir(tmp_path) == []
    assert below(os.getpid()) <= before
    assert str(tmp_path) not in mounts_of_all()
    assert len(os.listdir("/proc/self/fd")) <= fds


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("kind", [*of_bubblewrap("warm", "stateful"), "sandlock", "unsafe"])
async def test_50_ids_at_once_all_run_or_are_told_to_wait_and_leave_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = below(os.getpid())
    executor = executor_of(kind, tmp_path, monkeypatch)
    count = count_of("BOUGH_IDS", 10 if kind == "sandlock" else 50)
    ran = await run_ids_at_once(executor, count)
    assert ran == count or (kind == "stateful" and ran > 0)
    await executor.aclose()
    assert os.listdir(tmp_path) == []
    assert below(os.getpid()) <= before
    assert str(tmp_path) not in mounts_of_all()
