"""Nothing is left on the machine, whatever happened to the process that ran the code."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from bough.errors import Conflict
from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor
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


def mounts_of_all() -> str:
    """Return the mounts that any process sees, those of other namespaces included; not of those that end meanwhile."""
    found: dict[str, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[os.readlink(folder / "ns" / "mnt")] = (folder / "mountinfo").read_text()
    return "\n".join(found.values())


def traces(token_folder: Path) -> set[str]:
    """Return what is in the temporary folder, and the control groups that carry its names."""
    names = set(os.listdir(token_folder))
    for folder, groups, _ in os.walk("/sys/fs/cgroup"):
        names |= {os.path.join(folder, group) for group in groups if group.rpartition("-")[0] in names}
    return names


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


def below(pid: int) -> set[int]:
    """Return the processes that descend from `pid`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, todo = set[int](), [pid]
    while todo:
        more = children.get(todo.pop(), [])
        found.update(more)
        todo += more
    return found


def memory_bytes() -> int:
    """Return what this process holds in memory alone."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


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


RUNS = int(os.environ.get("BOUGH_RUNS", "1000"))
"""How many runs in a row; BOUGH_RUNS=10000 takes ten times as long, minutes where each starts a sandbox."""


@pytest.mark.slow
@pytest.mark.timeout(280 * max(1, RUNS // 1000))
@pytest.mark.anyio
@pytest.mark.parametrize("kind", [*of_bubblewrap("cold", "warm", "stateful"), "sandlock"])
async def test_many_runs_in_a_row_leave_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run leaves must not grow with their number: processes, descriptors, memory, folders, control groups."""
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if kind == "sandlock":
        monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor(stateful=kind == "stateful")
    request = CodeExecutionInput(code="print(1)", execution_id="stays" if kind in ("warm", "stateful") else None)
    if kind == "warm":
        assert await executor.warm_up(request)
    for _ in range(50):
        assert (await executor.execute(request)).ok
    assert executor.isolation is (Isolation.LANDLOCK if kind == "sandlock" else Isolation.NAMESPACES)
    fds, processes = len(os.listdir("/proc/self/fd")), len(below(os.getpid()))
    folders, memory = traces(tmp_path), memory_bytes()
    for _ in range(RUNS if kind != "sandlock" else RUNS // 10):  # one takes a quarter of a second
        assert (await executor.execute(request)).stdout == b"1\n"
    assert len(os.listdir("/proc/self/fd")) == fds
    assert len(below(os.getpid())) == processes
    assert traces(tmp_path) == folders
    assert memory_bytes() - memory < 8 << 20  # 8 KiB a run would be a leak
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


CANCELS = 100


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.anyio
@pytest.mark.parametrize("kind", [*of_bubblewrap("cold", "warm", "stateful"), "sandlock"])
async def test_runs_that_are_cancelled_at_random_moments_leave_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the workspace is made, the sandbox starts, the program runs, the files are collected."""
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if kind == "sandlock":
        monkeypatch.setenv("PATH", str(tmp_path))
    before = below(os.getpid())  # servers of other tests, for example
    executor = LocalSandboxCodeExecutor(stateful=kind == "stateful")
    assert (await executor.execute(CodeExecutionInput(code="pass"))).ok
    fds = len(os.listdir("/proc/self/fd"))
    moments = random.Random(kind)

    async def cancel_one(number: int) -> bool:
        lives_on = f"id{number % 4}" if kind in ("warm", "stateful") else None
        request = CodeExecutionInput(code="import time; time.sleep(0.01)", execution_id=lives_on)
        running = asyncio.ensure_future(executor.execute(request))
        await asyncio.wait([running], timeout=moments.random() * 0.2)  # a random moment, nothing is waited for
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled()

    was_cancelled: list[bool] = []
    for begin in range(0, CANCELS, 4):
        was_cancelled += await asyncio.gather(*(cancel_one(number) for number in range(begin, begin + 4)))
    assert any(was_cancelled)
    await executor.aclose()
    assert os.listdir(tmp_path) == []
    assert below(os.getpid()) <= before
    assert str(tmp_path) not in mounts_of_all()
    assert len(os.listdir("/proc/self/fd")) <= fds


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.needs("bubblewrap")
async def test_50_conversations_at_once_all_run_or_are_told_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = below(os.getpid())
    executor = LocalSandboxCodeExecutor(stateful=True)
    requests = [CodeExecutionInput(code=f"x = {n}; print(x)", execution_id=f"id{n}") for n in range(50)]
    found = await asyncio.gather(*(executor.execute(request) for request in requests), return_exceptions=True)
    for number, each in enumerate(found):
        if isinstance(each, BaseException):
            assert isinstance(each, Conflict), each
        else:
            assert (each.stdout, each.state_lost) == (b"%d\n" % number, False)
    assert any(not isinstance(each, BaseException) for each in found)
    await executor.aclose()
    assert os.listdir(tmp_path) == []
    assert below(os.getpid()) <= before
