"""Files of skills and rules that go, change or break while a conversation is open, and before it is opened again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bough import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

_SKILL = "---\nname: greet\ndescription: Greets.\ntriggers: [salute]\n---\nSay hello.\n"
_PATH = "---\nname: pages\ndescription: Pages.\nglobs: ['*.html']\n---\nUse tables.\n"
_FILES = {"keyword": ".agents/skills/greet/SKILL.md", "path": ".agents/skills/pages.md", "rules": "AGENTS.md"}


def _add_code(file: Path) -> None:
    file.write_text(file.read_text() + "More.\n")
    (file.parent / "scripts").mkdir()
    (file.parent / "scripts/run.py").write_text("print()\n")


def _make_unreadable(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)  # in a circle: root cannot read it either


def _replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


_CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved": lambda file: os.rename(file, file.with_name("elsewhere.txt")),
    "edited": _add_code,
    "unreadable": _make_unreadable,
    "broken": lambda file: file.write_bytes(b"\x7fELF" + bytes(4096)),
    "emptied": lambda file: file.write_bytes(b""),
    "a folder": _replace_by_folder,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a keyword skill, a path skill and rules."""
    texts = {"keyword": _SKILL, "path": _PATH, "rules": "Be brief.\n"}
    for kind, name in _FILES.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[kind])
    (tmp_path / "project/.git").mkdir()
    (tmp_path / "project/index.html").write_text("<p>")
    return tmp_path / "project"


@pytest.mark.parametrize("change", list(_CHANGES))
@pytest.mark.parametrize("kind", list(_FILES))
async def test_messages_are_sent_after_the_file_of_an_active_skill_changed(
    project: Path, tmp_path: Path, kind: str, change: str
) -> None:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    read = tool_call("read_file", path="index.html")
    agent = AgentSpec(
        model=ScriptedModel([read, "one", read, "two", read, "three"]), discover_skills=True, workspace_access="read"
    )
    store = f"sqlite:///{tmp_path}/bough.db"
    conversation = await AsyncConversation.create(agent, workspace=project, store=store, settings=settings)
    async with conversation:
        await conversation.send_message("salute them")
        await conversation.run()
        activated = {row.event.name async for row in conversation.events if row.event.kind == "SkillActivated"}
        assert activated == {"greet", "pages", "AGENTS.md"}
        _CHANGES[change](project / _FILES[kind])
        await conversation.send_message("salute them again")
        assert (await conversation.run()).output == "two"
        skipped = [row.event.name async for row in conversation.events if row.event.kind == "SkillSkipped"]
        assert skipped == (["greet"] if kind == "keyword" else [])
    reopened = await AsyncConversation.open(conversation.id, agent=agent, store=store, settings=settings)
    async with reopened:
        await reopened.send_message("salute them once more")
        assert (await reopened.run()).output == "three"


async def test_a_skill_whose_file_is_gone_is_reported_as_gone(project: Path, tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    agent = AgentSpec(model=ScriptedModel(["one", "two"]), discover_skills=True)
    conversation = await AsyncConversation.create(agent, workspace=project, store="memory:", settings=settings)
    async with conversation:
        await conversation.send_message("salute them")
        await conversation.run()
        (project / _FILES["keyword"]).unlink()
        await conversation.send_message("salute them")
        (skipped,) = [row.event async for row in conversation.events if row.event.kind == "SkillSkipped"]
        assert "greet" in skipped.message and "No such file" in skipped.message
        assert "trusted" not in skipped.message
