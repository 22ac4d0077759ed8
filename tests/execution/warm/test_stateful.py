"""What lives on between runs of one `execution_id`, and what does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.errors import SandboxUnavailable
from bough.execution import CodeExecutionInput, CodeExecutionResult, LocalSandboxCodeExecutor, Mount

pytestmark = [pytest.mark.anyio, pytest.mark.needs("bubblewrap")]


@pytest.fixture
async def executor() -> AsyncIterator[LocalSandboxCodeExecutor]:
    executor = LocalSandboxCodeExecutor(stateful=True)
    yield executor
    await executor.aclose()


async def run(
    executor: LocalSandboxCodeExecutor, code: str, execution_id: str = "a", **more: object
) -> CodeExecutionResult:
    return await executor.execute(CodeExecutionInput(code=code, execution_id=execution_id, **more))  # type: ignore[arg-type]


async def test_variables_modules_and_files_stay(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "import json\nx = [1]\ndef double(): x.append(x[-1] * 2)\nopen('f', 'w').write('kept')")
    result = await run(executor, "double(); double(); print(json.dumps(x), open('f').read())")
    assert (result.stdout, result.stderr, result.state_lost) == (b"[1, 2, 4] kept\n", b"", False)
    assert result.output_files == ()


async def test_an_error_and_an_exit_keep_the_state(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "x = 1")
    assert (await run(executor, "x = 2; raise ValueError")).exit_code == 1
    assert (await run(executor, "import sys; sys.exit(4)")).exit_code == 4
    assert (await run(executor, "print(x)")).stdout == b"2\n"


async def test_ids_share_nothing(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "x = 'of a'; open('f', 'w').write('of a'); open('/tmp/f', 'w').write('of a')", "a")
    code = "import os; print('x' in globals(), os.listdir('.'), os.listdir('/tmp'), len(os.listdir('/dev/shm')))"
    assert (await run(executor, code, "b")).stdout == b"False [] ['home'] 0\n"


async def test_a_request_asks_for_the_interpreter_that_stays(tmp_path: Path) -> None:
    executor = LocalSandboxCodeExecutor()
    await run(executor, "x = 1", stateful=True)
    assert (await run(executor, "print('x' in globals())")).stdout == b"False\n"
    result = await run(executor, "print(x)", stateful=True)
    assert (result.stdout, result.state_lost) == (b"1\n", False)
    shown = (Mount(source=str(tmp_path), target="/shown"),)
    for lost in (True, False):
        result = await run(executor, "print('x' in globals())", stateful=True, mounts=shown)
        assert (result.stdout, result.state_lost) == (b"False\n", lost)
    await executor.aclose()


async def test_runs_without_an_id_have_no_state(executor: LocalSandboxCodeExecutor) -> None:
    await executor.execute(CodeExecutionInput(code="x = 1"))
    assert (await executor.execute(CodeExecutionInput(code="print('x' in globals())"))).stdout == b"False\n"


@pytest.mark.parametrize(
    "end", ["while True: pass", "import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
async def test_a_timeout_or_a_crash_loses_the_state_and_says_so(executor: LocalSandboxCodeExecutor, end: str) -> None:
    await run(executor, "x = 1")
    ended = await run(executor, end, timeout_seconds=1.0)
    assert ended.state_lost
    after = await run(executor, "print('x' in globals())")
    assert (after.stdout, after.state_lost) == (b"False\n", True)
    assert not (await run(executor, "y = 1")).state_lost


async def test_a_cancelled_run_loses_the_state(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "x = 1")
    running = asyncio.ensure_future(run(executor, "while True: pass"))
    await asyncio.wait([running], timeout=0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await run(executor, "print('x' in globals())")).state_lost


async def test_reinitialize_starts_afresh(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "x = 1")
    await executor.reinitialize()
    assert (await run(executor, "print('x' in globals())")).stdout == b"False\n"


async def test_other_programs_share_the_files_of_the_interpreter(executor: LocalSandboxCodeExecutor) -> None:
    await run(executor, "open('f', 'w').write('from python')")
    result = await run(executor, "cat f; echo ' and sh' > g; exit 5", language="sh")
    assert (result.stdout, result.exit_code) == (b"from python", 5)
    assert (await run(executor, "print(open('g').read())")).stdout == b" and sh\n\n"


async def test_it_needs_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor(stateful=True)
    with pytest.raises(SandboxUnavailable) as caught:
        await run(executor, "print(1)")
    assert "bwrap is not in PATH" in caught.value.message
    assert caught.value.hint == "apt-get install bubblewrap"


async def test_more_conversations_than_are_kept_all_run_and_are_told_what_they_lost() -> None:
    """Nothing that runs is sent away for another; who lost an idle interpreter is told, once."""
    executor = LocalSandboxCodeExecutor(stateful=True)
    ids = [f"id{n}" for n in range(12)]
    results = await asyncio.gather(*(run(executor, f"x = {id_!r}", id_) for id_ in ids))
    assert [(result.exit_code, result.state_lost) for result in results] == [(0, False)] * 12
    again = [await run(executor, "print('x' in globals())", id_) for id_ in ids]
    assert all(result.state_lost == (result.stdout == b"False\n") for result in again)
    assert any(result.state_lost for result in again)
    await executor.aclose()
