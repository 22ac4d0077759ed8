"""What programs need behind Landlock, where names are shown without mounts of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, Mount

pytestmark = [pytest.mark.anyio, pytest.mark.needs("landlock"), pytest.mark.needs("node")]


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
