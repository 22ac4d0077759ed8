"""What programs need behind Landlock, where names are shown without mounts of their own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, Mount
from bough.execution.process.cgroup import usable_hierarchy
from bough.execution.process.child import processes_below

pytestmark = [pytest.mark.anyio, pytest.mark.needs("landlock")]


@pytest.mark.needs("node")
async def test_node_runs_code_and_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its settings of TLS at the start, and looks at every folder above a script."""
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "main.js").write_text("console.log('by', require('path').basename(__dirname))")
    monkeypatch.setenv("PATH", str(tmp_path))
    async with LocalSandboxCodeExecutor() as executor:
        code = "console.log(require('crypto').createHash('sha256').digest('hex').length)"
        result = await executor.execute(CodeExecutionInput(code=code, language="node"))
        assert (result.text, result.isolation) == ("64\n", Isolation.LANDLOCK), result.error_text
        mounts = (Mount(source=tmp_path / "skill", target="/data/of/skill"),)
        result = await executor.execute(CodeExecutionInput(script="/data/of/skill/main.js", mounts=mounts))
        assert result.text == "by skill\n", result.error_text


async def test_the_first_run_is_in_its_control_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor still loads when the run is first looked at: what is not there yet cannot be moved."""
    monkeypatch.setenv("PATH", str(tmp_path))
    async with LocalSandboxCodeExecutor() as executor:
        running = asyncio.ensure_future(executor.execute(CodeExecutionInput(code="import time; time.sleep(2)")))
        found = False
        while not running.done() and not found:
            await asyncio.wait([running], timeout=0.02)
            found = any(_is_in_group(pid) for pid in processes_below(os.getpid()))
        running.cancel()
        await asyncio.wait([running])
        assert executor.isolation is Isolation.LANDLOCK
    assert found == (usable_hierarchy() is not None)


def _is_in_group(pid: int) -> bool:
    try:
        return "/bough-run-" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
