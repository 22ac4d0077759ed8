"""The files of an ephemeral copy, in which other conversations may work."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


async def test_a_fork_of_an_ephemeral_copy_keeps_its_files(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("kept")
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    model = ScriptedModel([tool_call("read_file", path="notes.txt"), "done"])
    spec = AgentSpec(model=model, workspace_access="read")
    source = await AsyncConversation.create(spec, workspace=workspace, store="memory:", settings=settings)
    async with source:
        copy = await source.fork(workspace="copy", ephemeral=True)
        plain = await copy.fork()
        folder = plain.state.workspace
        assert folder == copy.state.workspace != workspace
        await copy.aclose()
        async with plain:
            await plain.send_message("read the notes")
            assert (await plain.run()).output == "done"
            (result,) = [row.event async for row in plain.events if row.event.kind == "ToolReturned"]
            assert "kept" in str(result)
        assert folder.is_dir()
        async with await source.fork(workspace="copy", ephemeral=True) as unused:
            alone = unused.state.workspace
        assert not alone.exists()
    assert not folder.exists(), "nobody can open a conversation of a temporary store that is closed"
