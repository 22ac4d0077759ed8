"""The executor contract: large output, large memory, and concurrent runs."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import asyncio
import resource

from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutor,
    ExecutionLimits,
    File,
)
from bough.testing.executor_contract.base import Contract


class VolumeContract(Contract):
    """Rules for large output, large memory, and concurrent runs."""

    async def test_exceeded_memory_is_reported(self, executor: CodeExecutor) -> None:
        """No process exceeds the limit, but their sum does; the largest one, the program, is killed."""
        code = (
            "import os, time\n"
            "reading, writing = os.pipe()\n"
            "for _ in range(2):\n"
            "    if os.fork() == 0:\n"
            "        less = b'x' * (60 << 20)\n"
            "        os.write(writing, b'x')\n"
            "        time.sleep(1000)\n"
            "    os.read(reading, 1)\n"
            "time.sleep(0.3)\n"
            "more = b'x' * (160 << 20)\n"
            "time.sleep(1000)"
        )
        result = await self.run(executor, code, limits=ExecutionLimits(memory_bytes=220 << 20))
        assert (result.signal, result.exit_code, result.timed_out) == (9, None, False), result.stderr
        assert result.killed_by == ("memory" if self.tells_of_memory else None)

    async def test_100_mb_of_output_keep_head_and_tail(self, executor: CodeExecutor) -> None:
        code = (
            "import sys\n"
            "sys.stdout.write('HEAD')\n"
            "for _ in range(100): sys.stdout.write('x' * 1_000_000)\n"
            "sys.stdout.write('TAIL')"
        )
        initial_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await self.run(executor, code)
        growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - initial_kib
        assert result.stdout_bytes == 100_000_008
        assert result.stdout_truncated
        assert not result.stderr_truncated
        assert result.stdout.startswith(b"HEAD")
        assert result.stdout.endswith(b"TAIL")
        assert len(result.stdout) <= ExecutionLimits().stdout_bytes + 100
        assert growth_kib < 20 << 10

    async def test_endless_output_ends_at_the_timeout(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "while True: print('y' * 4000)", timeout_seconds=2.0)
        assert result.timed_out
        assert result.stdout_truncated
        assert len(result.stdout) <= ExecutionLimits().stdout_bytes + 100

    async def test_output_up_to_the_bound_is_complete(self, executor: CodeExecutor) -> None:
        limits = ExecutionLimits(stdout_bytes=1000)
        result = await self.run(executor, "print('z' * 999)", limits=limits)
        assert (result.stdout, result.stdout_truncated) == (b"z" * 999 + b"\n", False)

    async def test_20_at_once_do_not_mix(self, executor: CodeExecutor) -> None:
        code = "import sys, os; n = open('mine').read(); open('out', 'w').write(n * 2); print(n, os.listdir('.'))"

        def request(n: int) -> CodeExecutionInput:
            return CodeExecutionInput(code=code, input_files=(File(path="mine", content=str(n).encode()),))

        results = await asyncio.gather(*(executor.execute(request(n)) for n in range(20)))
        for n, result in enumerate(results):
            assert result.stdout.split(b" ")[0] == str(n).encode()
            assert {file.path: file.content for file in result.output_files} == {"out": str(n).encode() * 2}

    async def test_the_event_loop_is_never_blocked_for_long(self, executor: CodeExecutor) -> None:
        await self.run(executor, "pass")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        await self.run(executor, "import time; time.sleep(0.3)")
        ticking.cancel()
        assert ticks > 20
