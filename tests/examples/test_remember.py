"""The skill `remember`: its server searches earlier conversations, outside the sandbox if that is permitted."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bough import AgentSpec, Conversation, Settings
from bough.conversation import TurnCall
from bough.skills import TrustStore
from bough.skills.install.review import review_project
from bough.testing import ScriptedModel, tool_call

SKILL = Path(__file__).parents[2] / "examples" / "skills" / "remember"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the skill, whose `python3` has bough."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BOUGH_HOME", raising=False)
    shutil.copytree(SKILL, tmp_path / "project" / "skills" / "remember")
    return tmp_path / "project"


def converse(project: Path, message: str, *steps: Any) -> tuple[TurnCall, ...]:
    """Say something in a new conversation that has the skill, and return its calls."""
    agent = AgentSpec(model=ScriptedModel(steps), skill_roots=(project / "skills",))
    with Conversation(agent, workspace=project, settings=Settings.load(cwd=project), title=message) as conversation:
        conversation.send_message(message)
        conversation.run()
        return conversation.turns()[0].calls


def permit_server(project: Path) -> None:
    skills = {review.key: review.grant(("memory",)) for review in review_project(project / "skills")}
    TrustStore(Settings.load(cwd=project).home).trust(project / "skills", skills=skills)


def recall(*words: str) -> tuple[Any, ...]:
    calls = [tool_call("remember_recall", words=query) for query in words]
    return tool_call("load_skill", skill_name="remember"), calls, "Done."


def test_what_was_said_in_another_conversation_is_recalled(project: Path) -> None:
    permit_server(project)
    converse(project, "My sister Grace moved to Lisbon.", "Noted.")
    _, hits, none, refused = converse(project, "Where does my sister live?", *recall("sister", "brother", "("))
    (hit,) = hits.result  # and not the question, which has the word too
    assert (hit["said"], hit["by"]) == ("My sister Grace moved to Lisbon.", "user")
    assert hit["conversation"].startswith("My sister Grace")
    assert none.result == []
    assert "no word to look for" in str(refused.result)


def test_without_permission_the_server_runs_in_the_sandbox_and_reads_no_store(project: Path) -> None:
    converse(project, "My sister Grace moved to Lisbon.", "Noted.")
    _, call = converse(project, "Where does my sister live?", *recall("sister"))
    assert call.ended == "ToolFailed"
    assert "Lisbon" not in str(call.result)
