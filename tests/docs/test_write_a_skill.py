"""The skill of the how-to page is made from the page itself, checked and used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.skills import SkillRegistry, TriggerIndex
from bough.skills.find.check import check

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-skill.md"
FILE = re.compile(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    files = FILE.findall(PAGE.read_text())
    assert [name for name, _ in files] == [
        "long-lines/SKILL.md",
        "long-lines/scripts/find.py",
        "long-lines/references/limits.md",
    ]
    for name, text in files:
        path = tmp_path / "skills" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "skills"


def test_nothing_is_wrong_with_it_and_it_answers_what_the_page_says(skills: Path) -> None:
    (checked,) = check(skills / "long-lines")
    assert (checked.name, checked.diagnostics) == ("long-lines", ())
    strict = {each.code: each.message for each in check(skills / "long-lines", mode="strict")[0].diagnostics}
    assert strict == {"field-unknown": "unknown fields: inputs, triggers"}, "as the page says"
    registry = SkillRegistry()
    registry.discover([skills])
    assert registry.diagnostics == []
    (match,) = TriggerIndex(registry.list_all()).match("check the line length")
    assert (match.skill, match.missing) == ("long-lines", ("file",))


async def test_it_asks_runs_and_shows_its_file(skills: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(f"short\n{'x' * 90}\n{'y' * 120}\n")
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model="offline", skill_roots=(skills,))
    async with await AsyncConversation.create(
        spec, workspace=tmp_path, store="memory:", settings=settings
    ) as conversation:
        answers: list[str] = []
        for text in ("check the line length", "/long-lines notes.txt", "/long-lines show references/limits.md"):
            await conversation.send_message(text)
            answers.append((await conversation.run()).output)
    assert "- file: Text file to look at" in answers[0]
    assert answers[1] == "2 90\n3 120"
    assert "Prose: 80." in answers[2]
