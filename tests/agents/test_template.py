"""Catalogues in prompts: in their place, or behind; every other brace is text."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.agents.build import SUB_AGENTS_HEADING, Blueprint, open_registry, render_prompt, render_sub_agents
from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput

ANALYST = AgentSpec(name="analyst", description="Answers\n questions {skills_catalog} about tables")
LINE = "- analyst: Answers questions {skills_catalog} about tables"


def test_braces_are_text_with_and_without_catalogues() -> None:
    prompt = 'Answer as {"a": 1}, {0}, {name}, {{x}}, {'
    assert render_prompt(prompt, sub_agents="", skills="") == prompt
    assert render_prompt(prompt, sub_agents="- a: b", skills="").startswith(prompt)


def test_a_catalogue_stands_in_its_place_or_behind_under_its_heading() -> None:
    assert render_prompt("A {sub_agents_catalog} Z", sub_agents=LINE, skills="S") == f"A {LINE} Z\n\nS"
    assert render_prompt("A", sub_agents=LINE, skills="") == f"A\n\n{SUB_AGENTS_HEADING}\n{LINE}"
    assert render_prompt("A {skills_catalog}{sub_agents_catalog}", sub_agents="", skills="") == "A "


def test_long_descriptions_are_cut_to_a_line() -> None:
    (line,) = render_sub_agents([("a", "x " * 5000)]).splitlines()
    assert len(line) == len("- a: ") + 1024


def test_an_agents_instructions_hold_each_catalogue_once(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "count"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: count\ndescription: Count words.\n---\nCount.\n", "utf-8")
    for prompt in ("Work.", "{sub_agents_catalog}\nWork.\n{skills_catalog}"):
        spec = AgentSpec(system_prompt=prompt, sub_agents=[ANALYST], skill_roots=[tmp_path / "skills"])
        text = Blueprint.of(spec, open_registry(spec, workspace=tmp_path, home=tmp_path)).instructions
        assert text.count(LINE) == 1
        assert text.count("Count words.") == 1
        assert text.count("load_skill with its name") == 1


def test_a_tree_of_agents_is_checked_when_it_is_made() -> None:
    with pytest.raises(InvalidInput, match="two sub-agents of 'default' are called 'analyst'"):
        AgentSpec(sub_agents=[ANALYST, ANALYST])
    inner = AgentSpec(name="a", sub_agents=[AgentSpec(name="b")])
    with pytest.raises(InvalidInput, match="is its own sub-agent: b > a > b") as raised:
        AgentSpec(name="b", sub_agents=[inner])
    assert raised.value.details == {"path": ["b", "a", "b"]}
