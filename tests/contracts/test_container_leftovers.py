"""A container does not outlive the process that asked for it."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bough.testing.docker_engine import IMAGE

PARENT = """
import asyncio, sys
from bough.execution import CodeExecutionInput, ContainerCodeExecutor

async def main():
    image, host, workspace = sys.argv[1:]
    code = "import fcntl, time; lock = open('lock', 'w'); fcntl.flock(lock, 2); "
    code += "open('up', 'w').write('x'); time.sleep(1000)"
    executor = ContainerCodeExecutor(image, docker_host=host)
    await executor.execute(CodeExecutionInput(code=code, workspace=workspace, timeout_seconds=1000))

asyncio.run(main())
"""


@pytest.mark.slow
def test_kill_9_of_the_parent_ends_the_container(container_engine: str, tmp_path: Path) -> None:
    import docker

    workspace, temporary = tmp_path / "workspace", tmp_path / "temporary"
    workspace.mkdir()
    temporary.mkdir()
    for folder in (tmp_path, temporary):
        folder.chmod(0o711)
    os.mkfifo(workspace / "up")
    command = [sys.executable, "-c", PARENT, IMAGE, container_engine, str(workspace)]
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
