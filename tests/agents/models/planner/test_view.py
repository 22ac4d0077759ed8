"""Reading a request: the catalogue in the forms it comes in, the user's words, this turn's calls."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from bough.agents.models.planner.rank import RankedSkill
from bough.agents.models.planner.view import Used, read_catalog, read_turn
from bough.skills import SkillRegistry
from bough.skills.find.catalog import render_catalog
from bough.skills.match.activation import activate


def said(*texts: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text) for text in texts])


def called(tool: str, result: Any, **args: Any) -> list[ModelMessage]:
    call = ToolCallPart(tool, args)
    return [ModelResponse([call]), ModelRequest([ToolReturnPart(tool, result, call.tool_call_id)])]


@pytest.mark.parametrize(
    "text",
    [
        "before <available_skills><skill><name>a</name><description>does &lt;b&gt; &amp; c</description></skill>"
        "</available_skills> after",
        '<available_skills>\n<skill name="a">does &lt;b&gt; &amp; c</skill>\n</available_skills>',
        '<available_skills><group><skill name="a" description="does &lt;b> &amp; c"/></group></available_skills>',
        '<available_skills><skill name="old"/></available_skills> <available_skills note="1"><skill name="a">'
        "does &lt;b&gt;\n &amp; c</skill></available_skills>",
    ],
)
def test_the_catalogue_is_read_in_every_form_the_last_one_counts(text: str) -> None:
    assert read_catalog(text) == (RankedSkill(name="a", text="does <b> & c"),)


@pytest.mark.parametrize(
    "text", ["", "no skills", "<available_skills/>", "<available_skills><skill></available_skills>"]
)
def test_no_catalogue_and_a_broken_one_are_empty(text: str) -> None:
    assert read_catalog(text) == ()


def test_a_catalogue_cannot_declare_entities() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "boom">]><available_skills><skill name="a">&a;</skill></available_skills>'
    assert read_catalog(bomb) == ()


def test_the_catalogue_that_skills_render_is_read_back(tmp_path: Any) -> None:
    folder = tmp_path / "csv-profile"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: csv-profile\ndescription: Rows & <columns>\n---\nRun it.\n")
    registry = SkillRegistry()
    registry.discover([tmp_path])
    rendered = render_catalog(registry.list_all(), budget_tokens=1000).text
    assert read_catalog(rendered) == (RankedSkill(name="csv-profile", text="Rows & <columns>"),)


def test_an_activated_skill_is_told_from_the_users_words(tmp_path: Any) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: demo\ndescription: A demo\n---\nSay </skill> never.\n")
    registry = SkillRegistry()
    registry.discover([tmp_path])
    turn = read_turn([said("/demo x", activate(registry.get("demo")).rendered)], ModelRequestParameters())
    assert turn.message == "/demo x"
    assert [active.name for active in turn.active] == ["demo"]


def test_only_calls_since_the_last_words_belong_to_the_turn() -> None:
    messages: list[ModelMessage] = [
        said("count a.md"),
        *called("run_skill_script", {"status": "success"}, skill_name="word-count", script_path="scripts/count.py"),
        ModelResponse([TextPart("3 words")]),
        said("profile b.csv"),
        *called("load_skill", '{"json": "text"}', skill_name="csv-profile"),
    ]
    turn = read_turn(messages, ModelRequestParameters())
    assert turn.message == "profile b.csv"
    assert [(done.tool, done.result, done.outcome) for done in turn.done] == [
        ("load_skill", {"json": "text"}, "success")
    ]
    assert turn.used == Used(skill="word-count", script="scripts/count.py")


def test_words_that_come_with_a_result_start_a_new_turn() -> None:
    call = ToolCallPart("load_skill", {"skill_name": "a"})
    steered = ModelRequest([ToolReturnPart("load_skill", "text", call.tool_call_id), UserPromptPart("stop, do b")])
    turn = read_turn([said("do a"), ModelResponse([call]), steered], ModelRequestParameters())
    assert (turn.message, turn.done) == ("stop, do b", ())


def test_a_skill_that_arrives_mid_turn_does_not_start_a_new_one() -> None:
    messages = [said("do a"), *called("load_skill", "text", skill_name="a"), said('<skill name="b">x</skill>')]
    turn = read_turn(messages, ModelRequestParameters())
    assert turn.message == "do a"
    assert [done.tool for done in turn.done] == ["load_skill"]
    assert turn.active == (), "the plan was made without it, and stays"


def test_names_that_the_catalogue_leaves_out_come_from_the_tools_schema() -> None:
    schema = {"type": "object", "properties": {"skill_name": {"type": "string", "enum": ["a", "b"]}}}
    tool = ToolDefinition(name="load_skill", parameters_json_schema=schema)
    turn = read_turn([said("x")], ModelRequestParameters(function_tools=[tool]))
    assert turn.names == {"a", "b"}
    assert turn.tools == {"load_skill"}
