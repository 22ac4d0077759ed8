"""`/undo`, `/redo` and `/diff` of the chat, with the files that a turn changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.cli.commands.chat.commands import ChatCommands, CommandResult
from bough.cli.commands.chat.session import ChatSession
from bough.cli.rule_options import NO_RULES
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[ChatSession]:
    """A session whose last turn changed `a.txt` and added `b.txt`."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    steps = [tool_call("write_file", path=name, content=f"new {name}\n") for name in ("a.txt", "b.txt")]
    model = ScriptedModel(["hello", *steps, "done"])
    spec: AgentSpec[str] = AgentSpec(name="writer", model=model, workspace_access="write", skills=())
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=folder, keep_files=True)
    conversation: Any = await AsyncConversation.create(spec, workspace=folder, settings=settings)
    for text in ("hi", "change the files"):
        await conversation.send_message(text)
        await conversation.run()
    new_session = ChatSession(conversation, settings, NO_RULES)
    yield new_session
    await new_session.aclose()


async def type_command(session: ChatSession, text: str) -> tuple[list[str], CommandResult]:
    commands = ChatCommands(session)
    command = commands.find(text)
    assert command is not None
    result = await commands.run(text, command)
    return [getattr(block, "plain", "") for block in result.blocks], result


async def test_undo_asks_which_and_puts_files_back_without_those_of_others(session: ChatSession) -> None:
    source, folder = session.conversation, session.conversation.workspace
    shown, _ = await type_command(session, "/diff")
    assert shown[:2] == ["  ~ a.txt  +1 -1", "  + b.txt  +1"]
    assert "-one" in shown
    asked, result = await type_command(session, "/undo")
    assert (asked[0], result.draft, session.conversation) == ("the last turn changed these files:", "", source)
    assert "/undo files" in asked[-1]

    (folder / "b.txt").write_text("mine\n")
    shown, result = await type_command(session, "/undo both")
    assert "  left: b.txt" in shown
    assert (result.draft, session.conversation is source) == ("change the files", False)
    assert [(folder / name).read_text() for name in ("a.txt", "b.txt")] == ["one\n", "mine\n"]
    await type_command(session, "/redo")
    assert (folder / "a.txt").read_text() == "new a.txt\n"
    with pytest.raises(InvalidInput):
        await type_command(session, "/redo")


async def test_files_or_the_chat_alone_are_taken_back(session: ChatSession) -> None:
    source, folder = session.conversation, session.conversation.workspace
    _, result = await type_command(session, "/undo files")
    assert (session.conversation, result.draft) == (source, "")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt"]
    assert (await type_command(session, "/diff"))[0] == ["no file differs"]
    shown, result = await type_command(session, "/undo")
    assert (result.draft, session.conversation.state.turns) == ("change the files", 1)
    assert "files stay as they are" in shown[-1]
    with pytest.raises(InvalidInput):
        await type_command(session, "/undo nothing")
