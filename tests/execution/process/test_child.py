"""The end of a process tree is noticed, whoever takes its first process's exit status."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bough.execution.base import ExecutionLimits
from bough.execution.process.child import ChildProcess, Launch, ProcessEnd

pytestmark = pytest.mark.anyio

Watch = Callable[[ChildProcess], Awaitable[Any]]


async def run_child(command: str, watch: Watch, *, timeout_seconds: float = 30) -> ProcessEnd:
    async def collect_output() -> None: ...

    launch = Launch(
        argv=("/bin/sh", "-c", command), configuration={}, stdin=b"", limits=ExecutionLimits(), env={},
        kill_after_seconds=0,
    )  # fmt: skip
    ended, _ = await ChildProcess(launch).run(
        timeout_seconds=timeout_seconds, watch=watch, collect_output=collect_output
    )
    return ended


async def test_a_child_whose_status_another_took_is_over() -> None:
    async def take(child: ChildProcess) -> None:
        os.waitpid(child.pid, 0)  # on the event loop, so that nobody can be earlier

    ended = await asyncio.wait_for(run_child("exit 3", take), 20)
    assert (ended.wait_status, ended.killed_by) == (None, None)


async def test_a_child_that_ends_before_it_is_killed_is_over() -> None:
    """The order that a busy machine brings about: the end, the kill, and only then the loop's look at the end."""

    async def stop_late(child: ChildProcess) -> None:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.stop("cancelled")
        child._kill()

    ended = await asyncio.wait_for(run_child("exit 3", stop_late), 20)
    assert ended.killed_by == "cancelled"
