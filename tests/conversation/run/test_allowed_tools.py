"""A skill's `allowed-tools` holds while its job is done, however it was activated, and ends with the next message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.guard import AlwaysConfirm, Risk, RuleAnalyzer
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


def agent(tmp_path: Path, *steps: Any) -> AgentSpec:
    folder = tmp_path / "skills" / "reader"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("a note")
    (folder / "SKILL.md").write_text(
        "---\nname: reader\ndescription: Reads files.\nallowed-tools: Read\n---\nOnly read.\n"
    )
    return AgentSpec(model=ScriptedModel(steps), skill_roots=(tmp_path / "skills",), workspace_access="write")


WRITE = tool_call("write_file", path="made.txt", content="made")


@pytest.mark.parametrize("by", ["slash", "tool"])
async def test_what_is_not_on_the_list_cannot_be_called(start: Any, tmp_path: Path, by: str) -> None:
    load = [tool_call("load_skill", skill_name="reader")] if by == "tool" else []
    (tmp_path / "there.txt").write_text("there")
    steps = [
        *load,
        WRITE,
        [
            tool_call("read_file", path="there.txt"),
            tool_call("load_skill_resource", skill_name="reader", path="notes.txt"),
        ],
        "done",
        WRITE,
        "written",
    ]
    spec = agent(tmp_path, *steps)
    conversation = await start(spec)
    await conversation.send_message("/reader there.txt" if by == "slash" else "read there.txt")
    assert (await conversation.run()).output == "done"
    assert not (tmp_path / "made.txt").exists()
    rejected = [stored.event async for stored in conversation.events if stored.kind == "ToolRejected"]
    assert [(event.tool, event.by) for event in rejected] == [("write_file", "allow-list")]
    returned = [stored.event.result async for stored in conversation.events if stored.kind == "ToolReturned"]
    assert sorted(returned[-2:]) == ["a note", "there"]
    await conversation.send_message("now write it")
    assert (await conversation.run()).output == "written"
    assert (tmp_path / "made.txt").read_text() == "made", "the next message is another job"


async def test_reading_skills_needs_no_approval_and_running_their_scripts_does(start: Any, tmp_path: Path) -> None:
    reads = [
        tool_call("list_skills"),
        tool_call("load_skill", skill_name="reader"),
        tool_call("load_skill_resource", skill_name="reader", path="notes.txt"),
    ]
    steps = [*reads, tool_call("run_skill_script", skill_name="reader", script_path="scripts/a.py"), "done"]
    conversation = await start(agent(tmp_path, *steps), confirmation_policy=AlwaysConfirm())
    await conversation.send_message("read there.txt")
    await conversation.run()
    assert [call["tool"] for call in conversation.state.waiting.values()] == ["run_skill_script"]


async def test_an_analyzer_may_still_have_the_reading_of_a_skill_confirmed(start: Any, tmp_path: Path) -> None:
    analyzer = RuleAnalyzer({"load_skill": Risk.MEDIUM})
    spec = agent(tmp_path, tool_call("load_skill", skill_name="reader"), "done")
    conversation = await start(spec, confirmation_policy=AlwaysConfirm(), security_analyzer=analyzer)
    await conversation.send_message("read there.txt")
    await conversation.run()
    assert [call["tool"] for call in conversation.state.waiting.values()] == ["load_skill"]


async def test_a_tool_that_is_merely_called_load_skill_is_confirmed(start: Any, tmp_path: Path) -> None:
    def load_skill(skill_name: str) -> str:
        return skill_name

    spec = AgentSpec(model=ScriptedModel([tool_call("load_skill", skill_name="x"), "done"]), tools=[load_skill])
    conversation = await start(spec.model_copy(update={"skills": ()}), confirmation_policy=AlwaysConfirm())
    await conversation.send_message("load it")
    await conversation.run()
    assert [call["tool"] for call in conversation.state.waiting.values()] == ["load_skill"]
