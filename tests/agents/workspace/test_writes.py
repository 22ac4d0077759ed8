"""What the workspace tools report of their writes, so that only changed files are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from bough.agents.context import ToolContext
from bough.agents.delegation_tools import delegation_toolset
from bough.agents.result_tools import result_toolset
from bough.agents.workspace.tools import edit_file, python, run_command, workspace_toolset, write_file
from bough.agents.writes import collect_writes, read_writes
from bough.errors import BoughError
from bough.execution import LocalSandboxCodeExecutor

pytestmark = pytest.mark.anyio


def make_run(**context: Any) -> RunContext[ToolContext]:
    return RunContext(deps=ToolContext(**context), model=TestModel(), usage=RunUsage())


async def test_written_paths_are_reported_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run = make_run(workspace=tmp_path)
    with collect_writes() as writes:
        await write_file(run, "link/a.txt", "one")
        await edit_file(run, "real/a.txt", "one", "two")
        with pytest.raises(BoughError):
            await write_file(run, "../outside", "x")
    assert writes.paths == {"real/a.txt"}
    assert not writes.excludes_changes


@pytest.mark.needs("bubblewrap")
async def test_a_command_reports_whether_it_changed_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    async with LocalSandboxCodeExecutor() as executor:
        run = make_run(workspace=tmp_path, executor=executor)
        for command, expected in (("cat a.txt", True), ("rm a.txt", False), ("mkdir empty", True)):
            with collect_writes() as writes:
                await run_command(run, command)
            assert writes.excludes_changes is expected, command
        with collect_writes() as writes:
            await python(run, "1 + 1")
        assert writes.excludes_changes


def test_each_tool_says_what_it_may_write() -> None:
    writes = {tool.name: read_writes(tool.metadata) for tool in workspace_toolset("run").tools.values()}
    reading = dict.fromkeys(("read_file", "list_files", "search_files"), "none")
    assert writes == reading | {"write_file": "told", "edit_file": "told", "run_command": "any", "python": "any"}
    for toolset in (result_toolset(), delegation_toolset(["helper"])):
        assert {read_writes(tool.metadata) for tool in toolset.tools.values()} == {"none"}
