"""Fixtures of the executor contract, and a check that processes have ended."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutor,
)

HOLD_LOCK = """
import fcntl
lock = open("lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
"""
"""Source that takes a lock. It is held as long as a process that inherited it is alive."""

DAEMONS = (
    HOLD_LOCK
    + """
import os, signal, sys, time
ready_read, ready_write = os.pipe()
for kind in ("plain", "setsid", "double"):
    if os.fork() == 0:
        if kind != "plain":
            os.setsid()
        if kind == "double" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(ready_write, b"x")
        os.close(0); os.close(1); os.close(2)
        while True:
            time.sleep(1000)
ready = b""
while len(ready) < 3:
    ready += os.read(ready_read, 3)
print("daemons are up", flush=True)
lock.close()
"""
)
"""Source that starts three daemons that are difficult to end."""


def lock_is_free(folder: Path) -> bool:
    """Return whether no process holds the lock that `HOLD_LOCK` took in `folder`."""
    with open(folder / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.anyio
class Contract:
    """The fixtures that every part of the contract uses."""

    tells_of_memory: ClassVar[bool] = True

    @pytest.fixture
    def executor(self) -> CodeExecutor:
        """The executor under test; subclasses override it."""
        raise NotImplementedError("a subclass gives the fixture 'executor'")

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        """A folder of the caller that is used as `/work` instead of a new temporary folder."""
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder

    @staticmethod
    async def run(executor: CodeExecutor, code: str, **request: Any) -> CodeExecutionResult:
        """Run Python source text."""
        return await executor.execute(CodeExecutionInput(code=code, **request))
