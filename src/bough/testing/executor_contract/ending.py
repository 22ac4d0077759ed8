"""The executor contract: the end of a run."""

# ruff: noqa: S103, D102, ASYNC230 - tests: their names say what they do
from __future__ import annotations

import asyncio
import os
from pathlib import Path

import anyio
import pytest

from bough.errors import InvalidInput
from bough.execution.base import (
    CodeExecutor,
)
from bough.testing.executor_contract.base import DAEMONS, HOLD_LOCK, Contract, lock_is_free


class EndingContract(Contract):
    """Rules for the end of a run."""

    async def test_timeout_0_ends_at_once(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('never')", timeout_seconds=0)
        assert (result.timed_out, result.killed_by, result.exit_code, result.stdout) == (True, "timeout", None, b"")

    async def test_without_a_timeout_the_default_applies(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "print(1)", timeout_seconds=None)).ok

    @pytest.mark.parametrize("seconds", [-1.0, -0.001, float("nan"), float("inf")])
    async def test_impossible_timeouts_are_refused(self, executor: CodeExecutor, seconds: float) -> None:
        with pytest.raises(InvalidInput):
            await self.run(executor, "print(1)", timeout_seconds=seconds)

    async def test_a_timeout_keeps_the_output(self, executor: CodeExecutor) -> None:
        code = "import sys, time\nprint('first')\nprint('second', file=sys.stderr)\ntime.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.0)
        assert (result.timed_out, result.killed_by, result.exit_code) == (True, "timeout", None)
        assert (result.stdout, result.stderr) == (b"first\n", b"second\n")

    async def test_a_timeout_ends_a_program_that_ignores_signals(self, executor: CodeExecutor, workspace: Path) -> None:
        code = HOLD_LOCK + (
            "import signal, time\n"
            "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\n"
            "print('deaf', flush=True)\n"
            "while True: time.sleep(1000)"
        )
        result = await self.run(executor, code, timeout_seconds=2.0, workspace=str(workspace))
        assert (result.timed_out, result.stdout) == (True, b"deaf\n")
        assert lock_is_free(workspace)

    async def test_daemons_do_not_outlive_their_run(self, executor: CodeExecutor, workspace: Path) -> None:
        result = await self.run(executor, DAEMONS, workspace=str(workspace))
        assert (result.exit_code, result.stdout) == (0, b"daemons are up\n")
        assert lock_is_free(workspace)

    async def test_daemons_do_not_outlive_a_timeout(self, executor: CodeExecutor, workspace: Path) -> None:
        code = DAEMONS + "time.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.5, workspace=str(workspace))
        assert (result.timed_out, result.stdout) == (True, b"daemons are up\n")
        assert lock_is_free(workspace)

    async def test_cancelling_ends_the_whole_tree(self, executor: CodeExecutor, workspace: Path) -> None:
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
        with open(workspace / "up", "r+b", buffering=0) as up:
            running = asyncio.ensure_future(self.run(executor, code, workspace=str(workspace)))
            # Not with a thread, because if the run fails, no one writes, and a reading thread would never end.
            reading = asyncio.ensure_future(anyio.wait_readable(up))
            await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                reading.cancel()
                pytest.fail(f"it ended before it was cancelled: {running.result()}")
        assert not lock_is_free(workspace)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert lock_is_free(workspace)

    async def test_a_cancel_scope_ends_the_whole_tree(self, executor: CodeExecutor, workspace: Path) -> None:
        """A cancel scope cancels in every iteration of the event loop, also during clean-up."""
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
        with open(workspace / "up", "r+b", buffering=0) as up:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: self.run(executor, code, workspace=str(workspace)))
                await anyio.wait_readable(up)  # not with a thread, because the group could not end it if the run fails
                assert not lock_is_free(workspace)
                group.cancel_scope.cancel()
        assert lock_is_free(workspace)
