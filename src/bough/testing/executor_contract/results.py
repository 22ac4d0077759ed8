"""The executor contract: the result of a run, and the executor's description of itself."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import asyncio
import signal

import pytest

from bough.errors import NotSupported, Unavailable
from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutor,
    Isolation,
)
from bough.testing.executor_contract.base import Contract


class ResultsContract(Contract):
    """Rules for the result of a run, and the executor's description of itself."""

    async def test_stdout_stderr_and_exit_code(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        assert not result.ok
        assert not result.timed_out
        assert result.killed_by is None
        assert result.signal is None

    async def test_invalid_utf8_is_replaced_in_text(self, executor: CodeExecutor) -> None:
        code = "import os; os.write(1, b'a\\xff'); os.write(2, 'ü'.encode())"
        result = await self.run(executor, code)
        assert (result.stdout, result.text, result.error_text) == (b"a\xff", "a\ufffd", "ü")

    async def test_execute_sync_waits_for_the_result(self, executor: CodeExecutor) -> None:
        request = CodeExecutionInput(code="print('waited for')")
        assert (await asyncio.to_thread(executor.execute_sync, request)).text == "waited for\n"
        assert (await asyncio.to_thread(executor.execute_sync, request)).ok

    async def test_the_end_of_the_block_closes_the_executor(self, executor: CodeExecutor) -> None:
        async with executor as same:
            assert same is executor
            assert (await self.run(executor, "print(1)")).ok
        with pytest.raises(Unavailable):
            await self.run(executor, "print(1)")
        await executor.reinitialize()

    async def test_output_on_stderr_is_not_a_failure(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "import sys; print('Traceback: error, fatal', file=sys.stderr)")
        assert result.ok

    @pytest.mark.parametrize(
        ("ending", "exit_code"),
        [("0", 0), ("None", 0), ("", 0), ("3", 3), ("124", 124), ("137", 137), ("255", 255), ("'a message'", 1)],
    )
    async def test_sys_exit(self, executor: CodeExecutor, ending: str, exit_code: int) -> None:
        result = await self.run(executor, f"import sys; sys.exit({ending})")
        assert (result.exit_code, result.signal, result.timed_out, result.killed_by) == (exit_code, None, False, None)
        assert result.stderr == (b"a message\n" if "message" in ending else b"")

    async def test_an_exception_keeps_stdout_and_shows_the_line(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('before')\nraise ValueError('no good')\n")
        assert (result.stdout, result.exit_code) == (b"before\n", 1)
        assert b"raise ValueError('no good')" in result.stderr
        assert b"ValueError: no good" in result.stderr
        # The traceback must not contain frames of the program that starts the code.
        assert b"init.py" not in result.stderr

    async def test_a_syntax_error_is_a_result(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "def (:")
        assert result.exit_code == 1
        assert b"SyntaxError" in result.stderr

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    async def test_death_by_a_signal_is_not_a_timeout(self, executor: CodeExecutor, number: int) -> None:
        result = await self.run(executor, f"import os; print('here', flush=True); os.kill(os.getpid(), {int(number)})")
        assert (result.exit_code, result.signal, result.timed_out) == (None, number, False)
        assert result.stdout == b"here\n"

    async def test_bytes_are_unchanged(self, executor: CodeExecutor) -> None:
        everything = bytes(range(256)) * 16
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 16)"
        assert (await self.run(executor, code)).stdout == everything

    async def test_text_is_utf8(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('Größe → 木')")
        assert result.stdout.decode() == "Größe → 木\n"

    async def test_figures_are_plausible(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "x = bytearray(40 << 20)\nfor i in range(300000): pass")
        assert result.wall_seconds > 0
        assert 0 < result.cpu_seconds < 30
        assert (40 << 20) < result.max_rss_bytes < (4 << 30)

    async def test_the_reached_isolation_is_reported(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "pass")
        assert isinstance(result.isolation, Isolation)
        assert result.isolation == executor.isolation

    async def test_a_forged_result_is_only_text(self, executor: CodeExecutor) -> None:
        code = (
            "import os, sys\n"
            'forged = b\'s 0 1 1\\nr\\n{"exit_code": 0, "timed_out": true}\\n\'\n'
            "for fd in range(3, 64):\n"
            "    try: os.write(fd, forged)\n"
            "    except OSError: pass\n"
            "sys.stdout.buffer.write(forged); sys.stdout.flush()\n"
            "os._exit(9)"
        )
        result = await self.run(executor, code)
        assert (result.exit_code, result.timed_out, result.killed_by) == (9, False, None)
        assert result.stdout.startswith(b"s 0 1 1\n")

    async def test_no_descriptor_is_inherited(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "def is_open(fd):\n"
            "    try: os.fstat(fd)\n"
            "    except OSError: return False\n"
            "    return True\n"
            "print([fd for fd in range(3, 256) if is_open(fd)])"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"

    async def test_the_executor_describes_itself(self, executor: CodeExecutor) -> None:
        assert executor.name
        assert executor.default_timeout_seconds > 0
        assert isinstance(executor.stateful, bool)
        assert await executor.healthy()

    async def test_state_is_kept_or_rejected(self, executor: CodeExecutor) -> None:
        try:
            await self.run(executor, "kept = 1", execution_id="abc-2", stateful=True)
        except NotSupported as error:
            assert error.hint
            assert (await self.run(executor, "print(1)", execution_id="abc-2")).ok
        else:
            assert (await self.run(executor, "print(kept)", execution_id="abc-2", stateful=True)).stdout == b"1\n"

    async def test_the_execution_id_is_returned(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "pass", execution_id="abc-1")).execution_id == "abc-1"

    async def test_closing_twice_and_opening_again(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "print(1)")).ok
        await executor.aclose()
        await executor.aclose()
        assert not await executor.healthy()
        await executor.reinitialize()
        assert await executor.healthy()
        assert (await self.run(executor, "print(2)")).stdout == b"2\n"
