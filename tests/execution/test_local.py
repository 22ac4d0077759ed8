"""Which sandbox is chosen, what is said when there is none, and what a warm sandbox shares between its runs."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bough.errors import SandboxUnavailable
from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor
from bough.execution.request import make_plan
from bough.execution.sandbox.bubblewrap import BubblewrapRung
from bough.execution.sandbox.rung import find_own_interpreter

pytestmark = pytest.mark.anyio


@pytest.mark.needs("bubblewrap")
async def test_the_strongest_rung_is_chosen() -> None:
    executor = LocalSandboxCodeExecutor()
    assert (await executor.execute(CodeExecutionInput(code="pass"))).isolation == Isolation.NAMESPACES
    assert [report.works for report in await executor.probe()] == [True, True]
    await executor.aclose()


async def test_path_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor()
    assert (await executor.execute(CodeExecutionInput(code="pass"))).isolation == Isolation.LANDLOCK
    report = (await executor.probe())[0]
    assert (report.works, report.install) == (False, "apt-get install bubblewrap")
    await executor.aclose()


async def test_it_never_falls_below_what_is_demanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    with pytest.raises(SandboxUnavailable) as caught:
        await executor.execute(CodeExecutionInput(code="open('/tmp/ran', 'w')"))
    assert caught.value.hint == "apt-get install bubblewrap"
    assert not await executor.healthy()


async def test_a_bwrap_that_does_not_work_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no namespaces for you' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    with pytest.raises(SandboxUnavailable) as caught:
        await executor.execute(CodeExecutionInput(code="pass"))
    assert "no namespaces for you" in caught.value.message


@pytest.mark.needs("bubblewrap")
async def test_an_interpreter_under_a_home_folder_is_shown() -> None:
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    executor._rungs = (BubblewrapRung(interpreters=(find_own_interpreter(),)),)
    result = await executor.execute(CodeExecutionInput(code="import sys, ssl; print(sys.version_info[:2])"))
    assert result.stdout.decode().strip() == str(sys.version_info[:2])
    await executor.aclose()


@pytest.mark.needs("bubblewrap")
async def test_a_warm_sandbox_hands_nothing_on() -> None:
    executor = LocalSandboxCodeExecutor()
    first = CodeExecutionInput(
        code="import os\nfor p in ('f', '/tmp/f', '/dev/shm/f'): open(p, 'w')\nos.environ['X'] = '1'\nimport json",
        execution_id="a",
    )
    assert await executor.warm_up(first)
    assert (await executor.execute(first)).ok
    code = (
        "import os, sys\n"
        "print(os.getppid(), os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'), 'X' in os.environ,\n"
        "      'json' in sys.modules, sum(map(str.isdigit, os.listdir('/proc'))), os.listdir('/run/bough/runs'))"
    )
    result = await executor.execute(CodeExecutionInput(code=code, execution_id="a"))
    assert result.stdout == b"1 [] ['home'] [] False False 2 []\n"
    await executor.aclose()


@pytest.mark.needs("bubblewrap")
async def test_a_repeat_is_warm_without_being_asked_for() -> None:
    executor = LocalSandboxCodeExecutor()
    request = CodeExecutionInput(code="import os; print(os.getpid())", execution_id="a")
    for expected in (False, True):
        await executor.execute(request)
        warm = executor._warm
        assert warm is not None
        await warm.settle()
        assert warm.has(make_plan(request, default_timeout_seconds=1)) is expected  # one run alone is not a reason
    first = int((await executor.execute(request)).stdout)
    assert int((await executor.execute(request)).stdout) > first
    await executor.aclose()


async def test_unsafe_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    executor = UnsafeLocalCodeExecutor()
    for _ in range(2):
        assert (await executor.execute(CodeExecutionInput(code="pass"))).isolation == Isolation.NONE
    assert len([record for record in caplog.records if "all rights" in record.message]) == 1
    await executor.aclose()


@pytest.mark.needs("bubblewrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
async def test_as_root_a_workspace_is_used_as_its_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    code = "import os; print(os.getuid()); open('f', 'w')"
    result = await executor.execute(CodeExecutionInput(code=code, workspace=str(tmp_path)))
    assert result.stdout == b"12345\n"
    assert (tmp_path / "f").stat().st_uid == 12345
    await executor.aclose()


async def test_without_a_rung_that_keeps_an_interpreter_a_stateful_executor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor(stateful=True)
    with pytest.raises(SandboxUnavailable, match="no sandbox on this machine has persistent interpreters") as error:
        await executor.execute(CodeExecutionInput(code="1", execution_id="x"))
    assert "bubblewrap" in error.value.hint
    await executor.aclose()


@pytest.mark.needs("bubblewrap")
async def test_starts_are_counted() -> None:
    """A conversation pays for one zygote after its second script, and for one interpreter, however many runs follow."""
    async with LocalSandboxCodeExecutor() as executor:
        request = CodeExecutionInput(code="print(1)", execution_id="a")
        for _ in range(6):
            assert (await executor.execute(request)).ok
            assert executor._warm is not None
            await executor._warm.settle()
        assert executor.counts == {"cold": 2, "zygotes": 1, "warm": 4}
        for _ in range(3):
            assert (await executor.execute(CodeExecutionInput(code="1", execution_id="a", stateful=True))).ok
        assert executor.counts == {"cold": 2, "zygotes": 1, "warm": 4, "sessions": 1, "stateful": 3}
