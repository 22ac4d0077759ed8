"""Nothing is left on the machine, whatever happened to the process that ran the code."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor
from bough.testing.executor_contract import DAEMONS

PARENT = """
import asyncio, sys
from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor

async def main():
    kind, workspace, code = sys.argv[1:]
    executor = UnsafeLocalCodeExecutor() if kind == "unsafe" else LocalSandboxCodeExecutor()
    await asyncio.gather(
        executor.execute(CodeExecutionInput(code=code, workspace=workspace)),
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


def traces(token_folder: Path) -> set[str]:
    """Return what is in the temporary folder, and the control groups that carry its names."""
    names = set(os.listdir(token_folder))
    for folder, groups, _ in os.walk("/sys/fs/cgroup"):
        names |= {os.path.join(folder, group) for group in groups if group.split("-")[:2] == ["bough", "run"]}
    return names


@pytest.mark.parametrize("kind", ["bubblewrap", "sandlock", "unsafe"])
def test_kill_9_of_the_parent_in_the_middle_of_a_run(kind: str, tmp_path: Path) -> None:
    workspace, temporary = tmp_path / "workspace", tmp_path / "temporary"
    workspace.mkdir()
    temporary.mkdir()
    temporary.chmod(0o711)
    os.mkfifo(workspace / "up")
    code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
    env = {**os.environ, "TMPDIR": str(temporary), "PATH": str(tmp_path) if kind == "sandlock" else os.environ["PATH"]}
    mounts = len(Path("/proc/self/mounts").read_text().splitlines())
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
    assert len(Path("/proc/self/mounts").read_text().splitlines()) == mounts


@pytest.mark.slow
@pytest.mark.anyio
async def test_many_runs_in_a_row_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    for _ in range(3):
        await executor.execute(CodeExecutionInput(code="print(1)"))
    fds, folders = set(os.listdir("/proc/self/fd")), traces(tmp_path)
    for _ in range(100):
        assert (await executor.execute(CodeExecutionInput(code="print(1)"))).ok
    assert set(os.listdir("/proc/self/fd")) == fds
    assert traces(tmp_path) == folders
    await executor.aclose()
    assert os.listdir(tmp_path) == []
