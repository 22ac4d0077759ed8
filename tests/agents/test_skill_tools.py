"""The skill tools in a plain PydanticAI agent: no conversation, no log, a real sandbox."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart

from bough.agents.context import ToolContext
from bough.agents.skills.activation import CHANGED, find_always_active
from bough.agents.skills.tools import SKILL_TOOLS, SkillToolset
from bough.errors import InvalidInput
from bough.execution import CodeExecutionInput, CodeExecutionResult, LocalSandboxCodeExecutor
from bough.skills import InputMetadata, KeywordTrigger, Skill, SkillRegistry, TaskTrigger, activate, read_skill
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

ECHO = """\
import json, pathlib, sys
print(json.dumps(sys.argv[1:]))
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/args.json").write_text(json.dumps(sys.argv[1:]))
"""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A folder of skills: one with a script of each fate, one that only a user may call."""
    files = {
        "kit/SKILL.md": "---\nname: kit\ndescription: Repeats its arguments.\n---\nRun scripts/echo.py.\n",
        "kit/scripts/echo.py": ECHO,
        "kit/scripts/warn.sh": "echo done; echo careful >&2\n",
        "kit/scripts/fail.sh": "echo half; exit 3\n",
        "kit/scripts/hang.sh": "while :; do :; done\n",
        "kit/scripts/data.txt": "no script\n",
        "kit/references/format.md": "# Format\nOne word a line.\n",
        "kit/assets/picture.bin": "a\0b",
        "secret/SKILL.md": "---\nname: secret\ndescription: For people.\ndisable-model-invocation: true\n---\nShh.\n",
    }
    for name, text in files.items():
        path = tmp_path / "skills" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "skills"


def registry_of(*roots: Path) -> SkillRegistry:
    registry = SkillRegistry()
    registry.discover(roots)
    return registry


async def answers(toolset: SkillToolset, *calls: Any, deps: Any = None) -> list[Any]:
    """What the toolset answers to the calls, each in a request of its own, in a plain agent."""
    model = ScriptedModel([*calls, "done"])
    result = await Agent(model, toolsets=[toolset]).run("go", deps=deps)
    assert result.output == "done"
    parts = [part for message in result.all_messages() for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart)]


def run(args: Any = None, script: Any = "scripts/echo.py", skill: Any = "kit") -> Any:
    given = {"skill_name": skill, "script_path": script, "args": args}
    return tool_call("run_skill_script", **{name: value for name, value in given.items() if value is not None})


async def test_a_plain_agent_is_told_of_the_skills_and_may_choose_among_their_names(kit: Path) -> None:
    model = ScriptedModel(["hello"])
    toolset = SkillToolset(registry_of(kit))
    await Agent(model, toolsets=[toolset], instructions="Be brief.").run("hi")
    (asked,) = model.asked
    assert asked.instructions == f"Be brief.\n\n{toolset.instructions}"
    assert '<skill name="kit">Repeats its arguments.</skill>' in asked.instructions
    assert "secret" not in asked.instructions, "only a user may call it"
    assert asked.tools == ("list_skills", "load_skill", "load_skill_resource", "run_skill_script")
    schemas = {tool.name: tool.parameters_json_schema for tool in asked.parameters.function_tools}
    assert schemas["load_skill"]["properties"]["skill_name"]["enum"] == ["kit"]
    assert schemas["run_skill_script"]["properties"]["skill_name"]["enum"] == ["kit", "secret"]
    assert schemas["run_skill_script"]["required"] == ["skill_name", "script_path"]


async def test_without_skills_there_is_no_catalogue_and_no_tool() -> None:
    model = ScriptedModel(["hello"])
    await Agent(model, toolsets=[SkillToolset([])], instructions="Be brief.").run("hi")
    assert (model.asked[0].instructions, model.asked[0].tools) == ("Be brief.", ())


async def test_search_is_offered_only_when_the_catalogue_was_cut(kit: Path) -> None:
    found, listed = await answers(
        SkillToolset(registry_of(kit), catalog_tokens=1),
        tool_call("search_skills", query="repeat the arguments, as people do"),
        tool_call("list_skills"),
    )
    assert [skill["name"] for skill in found] == ["kit"]
    assert listed == {"skills": found, "total": 1, "next_offset": None}
    assert "search_skills" not in SkillToolset(registry_of(kit)).toolset().tools
    assert set(SkillToolset(registry_of(kit), catalog_tokens=1).toolset().tools) == set(SKILL_TOOLS)


@pytest.mark.parametrize(
    ("args", "argv"),
    [
        (["--name", "John Doe", "$(id)"], ["--name", "John Doe", "$(id)"]),
        ({"name": "John Doe", "all": True, "tag": ["a", "b"], "no": False}, None),
        ("--name 'John Doe' --all", ["--name", "John Doe", "--all"]),
        (None, []),
    ],
)
async def test_a_script_gets_its_arguments_in_every_form(kit: Path, args: Any, argv: list[str] | None) -> None:
    toolset = SkillToolset(registry_of(kit), code_executor=LocalSandboxCodeExecutor())
    (result,) = await answers(toolset, run(args))
    wanted = ["--name", "John Doe", "--all", "--tag", "a", "--tag", "b"] if argv is None else argv
    assert (result["status"], json.loads(result["stdout"])) == ("success", wanted)


async def test_files_of_a_script_without_a_workspace_are_kept_for_the_user(kit: Path, tmp_path: Path) -> None:
    executor = LocalSandboxCodeExecutor()
    toolset = SkillToolset(registry_of(kit), code_executor=executor, output_folder=tmp_path / "made")
    first, second = await answers(toolset, run(["one"]), run(["two"]))
    assert first["output_files"] == [{"path": "out/args.json", "size_bytes": len('["one"]')}]
    assert "one" not in str(first["output_files"]), "the model gets paths and sizes, not bytes"
    kept = [Path(result["output_folder"]) for result in (first, second)]
    assert [json.loads((folder / "out/args.json").read_text()) for folder in kept] == [["one"], ["two"]]
    assert {folder.parent for folder in kept} == {tmp_path / "made"}


ONE_RUN = """
import asyncio, sys
from pathlib import Path
from tests.agents.test_skill_tools import LocalSandboxCodeExecutor, SkillToolset, answers, registry_of, run

toolset = SkillToolset(registry_of(Path(sys.argv[1])), code_executor=LocalSandboxCodeExecutor())
(result,) = asyncio.run(answers(toolset, run(["one"])))
print((Path(result["output_folder"]) / "out/args.json").read_text())
"""


def test_a_folder_that_nobody_named_goes_with_the_process(kit: Path, tmp_path: Path) -> None:
    """And what a killed process left goes when the next one makes such a folder."""
    temporary = tmp_path / "tmp"
    dead = temporary / "bough-output-dead"
    (dead / "run-1").mkdir(parents=True)
    gone = "from bough.events.owner import owner; print(owner(), end='')"
    (dead / "owner").write_bytes(subprocess.run([sys.executable, "-c", gone], capture_output=True, check=True).stdout)
    done = subprocess.run(
        [sys.executable, "-c", ONE_RUN, kit],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, '["one"]\n'), done.stderr
    assert list(temporary.glob("bough-output-*")) == []


async def test_files_go_to_the_workspace_where_there_is_one(kit: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    deps = ToolContext(workspace=work, executor=LocalSandboxCodeExecutor())
    (result,) = await answers(SkillToolset(registry_of(kit)), run(["x"]), deps=deps)
    assert [file["path"] for file in result["output_files"]] == ["out/args.json"]
    assert "output_folder" not in result
    assert json.loads((work / "out/args.json").read_text()) == ["x"]


async def test_warnings_failures_and_timeouts_are_results(kit: Path) -> None:
    toolset = SkillToolset(registry_of(kit), code_executor=LocalSandboxCodeExecutor(), script_timeout=0.5)
    warned, failed, hung = await answers(
        toolset, run(script="warn.sh"), run(script="scripts/fail.sh"), run(script="hang.sh")
    )
    assert (warned["status"], warned["stdout"], warned["stderr"]) == ("warning", "done\n", "careful\n")
    assert (failed["status"], failed["error_code"], failed["exit_code"]) == ("error", "EXECUTION_ERROR", 3)
    assert failed["stdout"] == "half\n"
    assert (hung["error_code"], hung["timed_out"]) == ("TIMEOUT", True)


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        (tool_call("load_skill"), "MISSING_SKILL_NAME", "skill_name"),
        (tool_call("load_skill", skill_name="  "), "MISSING_SKILL_NAME", "skill_name"),
        (tool_call("load_skill", skill_name=["kit"]), "MISSING_SKILL_NAME", "skill_name"),
        (tool_call("load_skill", skill_name="kti"), "SKILL_NOT_FOUND", "did you mean 'kit'?"),
        (tool_call("load_skill", skill_name="secret"), "SKILL_NOT_FOUND", "only the user"),
        (tool_call("load_skill", skill_name="kit", fast=True), "INVALID_INPUT_ARGS", "'fast'"),
        (tool_call("load_skill_resource", skill_name="kit", path="references/fromat.md"), "RESOURCE_NOT_FOUND", "did"),
        (tool_call("load_skill_resource", skill_name="kit", path="../secret/SKILL.md"), "RESOURCE_NOT_FOUND", "inside"),
        (tool_call("load_skill_resource", skill_name="kit", path="assets/picture.bin"), "RESOURCE_NOT_TEXT", "3 bytes"),
        (run(skill=""), "MISSING_SKILL_NAME", "skill_name"),
        (run(skill="unkown"), "SKILL_NOT_FOUND", "unkown"),
        (run(script=""), "MISSING_SCRIPT_NAME", "no script"),
        (run(script=["scripts/echo.py"]), "MISSING_SCRIPT_NAME", "no script"),
        (run(script="scripts/ehco.py"), "SCRIPT_NOT_FOUND", "did you mean 'scripts/echo.py'?"),
        (run(script="../secret/SKILL.md"), "SCRIPT_NOT_FOUND", "inside"),
        (run(script="data.txt"), "UNSUPPORTED_SCRIPT_TYPE", "data.txt"),
        (run(args="it's"), "INVALID_INPUT_ARGS", "quot"),
        (run(args=7), "INVALID_ARGS_TYPE", "int"),
    ],
)
async def test_every_mistake_has_its_code_and_the_agent_goes_on(kit: Path, call: Any, code: str, said: str) -> None:
    toolset = SkillToolset(registry_of(kit), code_executor=LocalSandboxCodeExecutor())
    (result,) = await answers(toolset, call)
    assert (result["status"], result["error_code"]) == ("error", code)
    assert said in result["error"]
    assert len(result["error"]) <= 200


@dataclass
class Deps:
    """Deps of an agent that knows nothing of bough but has an executor."""

    code_executor: Any = None


class Marked(LocalSandboxCodeExecutor):
    """A sandbox that counts, to see which executor was asked."""

    runs = 0

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        self.runs += 1
        return await super().execute(request)


async def test_the_executor_is_the_toolsets_then_the_agents_and_else_it_is_said(kit: Path) -> None:
    own, agents = Marked(), Marked()
    await answers(SkillToolset(registry_of(kit), code_executor=own), run(), deps=Deps(agents))
    assert (own.runs, agents.runs) == (1, 0)
    await answers(SkillToolset(registry_of(kit)), run(), deps=Deps(agents))
    assert (own.runs, agents.runs) == (1, 1)
    none, unknown = await answers(SkillToolset(registry_of(kit)), run(), run(script="ehco.py"), deps=Deps())
    assert none["error_code"] == "NO_CODE_EXECUTOR"
    assert unknown["error_code"] == "SCRIPT_NOT_FOUND", "what is wrong with the call is said first"


async def test_a_resource_is_read_and_a_skill_lists_it(kit: Path) -> None:
    loaded, text = await answers(
        SkillToolset(registry_of(kit)),
        tool_call("load_skill", skill_name="kit"),
        tool_call("load_skill_resource", skill_name="kit", path="references/format.md"),
    )
    assert "<file>references/format.md</file>" in loaded
    assert text == "# Format\nOne word a line.\n"


async def test_a_task_skill_asks_for_what_is_missing_and_takes_it_as_inputs(tmp_path: Path) -> None:
    folder = tmp_path / "fix"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: fix\ndescription: Fixes.\ntriggers: [fix]\ninputs:\n"
        "  - {name: issue, description: Its number}\n---\nFix issue ${issue}.\n"
    )
    registry = registry_of(tmp_path)
    assert isinstance(registry.metadata("fix").trigger, TaskTrigger)
    asking, given, wrong, bad = await answers(
        SkillToolset(registry),
        tool_call("load_skill", skill_name="fix"),
        tool_call("load_skill", skill_name="fix", inputs={"issue": 42}),
        tool_call("load_skill", skill_name="fix", inputs={"isue": "42"}),
        tool_call("load_skill", skill_name="fix", inputs="42"),
    )
    assert "ask the user" in asking
    assert "- issue: Its number" in asking
    assert "Fix issue 42." in given
    assert "ask the user" not in given
    assert (wrong["error_code"], bad["error_code"]) == ("INVALID_INPUT_ARGS", "INVALID_ARGS_TYPE")
    assert "'issue'" in wrong["error"]


async def test_what_is_always_active_is_told_and_needs_no_tools() -> None:
    model = ScriptedModel(["hello"])
    rules = Skill(name="rules", content="Write British English.")
    await Agent(model, toolsets=[SkillToolset([rules])]).run("hi")
    assert model.asked[0].tools == ()
    assert model.asked[0].instructions == '<skill always="true" name="rules">\nWrite British English.\n</skill>'


def test_always_active_skills_are_bounded_and_one_that_cannot_be_read_harms_no_other(tmp_path: Path) -> None:
    registry = SkillRegistry()
    for name, size in (("a", 10), ("b", 5000), ("c", 10), ("d", 10)):
        registry.add(Skill(name=name, content="x" * size))
    (tmp_path / "b2.md").write_text("Here now.")
    gone = Skill(name="b2", path=tmp_path / "b2.md")
    registry.add(gone)
    (tmp_path / "b2.md").unlink()
    found = find_always_active(registry, max_skills=2, max_bytes=1000)
    assert [each.name for each in found.activations] == ["a", "c"]
    reasons = dict(found.omitted)
    assert set(reasons) == {"b", "b2", "d"}
    assert "exceed 1000 bytes" in reasons["b"].message
    assert "at most 2 skills" in reasons["d"].message


async def test_the_seeds_tool_under_its_other_name_is_a_tool_of_a_plain_agent(kit: Path) -> None:
    from bough.skills.run.tools import get_all_tools

    model = ScriptedModel([tool_call("activate_skill", skill_name="kit"), "done"])
    result = await Agent(model, tools=get_all_tools(registry_of(kit))).run("go")
    parts = [part for message in result.all_messages() for part in message.parts]
    (text,) = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    assert text.startswith('<skill name="kit">')


async def test_a_skill_that_changed_is_told_to_have_changed(kit: Path) -> None:
    registry = registry_of(kit)
    held = registry.get("kit").content_hash
    file = kit / "kit" / "SKILL.md"
    deps = ToolContext(active_skills=lambda: {"kit": held})
    (same,) = await answers(SkillToolset(registry), tool_call("load_skill", skill_name="kit"), deps=deps)
    file.write_text(file.read_text().replace("Run scripts/echo.py.", "Run scripts/warn.sh."))
    (changed,) = await answers(SkillToolset(registry), tool_call("load_skill", skill_name="kit"), deps=deps)
    assert CHANGED not in same
    assert changed.splitlines()[:3] == ['<skill name="kit">', CHANGED, "Run scripts/warn.sh."]


def test_inputs_are_offered_only_where_a_skill_takes_some(kit: Path) -> None:
    plain = SkillToolset(registry_of(kit)).toolset().tools["load_skill"]
    assert list(plain.function_schema.json_schema["properties"]) == ["skill_name"]
    registry = registry_of(kit)
    (kit.parent / "SKILL.md").write_text("---\nname: skills\ndescription: x\n---\nDo ${what}.\n")
    task = Skill(name="do", path=kit.parent / "SKILL.md", description="x", inputs=(InputMetadata("what"),))
    registry.add(task)
    taking = SkillToolset(registry).toolset().tools["load_skill"]
    assert list(taking.function_schema.json_schema["properties"]) == ["skill_name", "inputs"]


def test_two_skills_of_one_name_given_by_hand_are_an_error(tmp_path: Path) -> None:
    first, second = (Skill(name="plan", description=text, content=text) for text in ("one", "two"))
    with pytest.raises(InvalidInput, match="two skills are named 'plan'"):
        SkillToolset([first, second])


@pytest.mark.parametrize("count", [4, 40, 1_000, 10_000])
def test_what_a_model_sees_of_its_skills_stays_in_the_budget(count: int) -> None:
    text = "Handles one matter of many. " + "Use it when that matter is meant. " * 20
    registry = SkillRegistry()
    for i in range(count):
        registry.add(Skill(name=f"matter-{i}", description=text, content="x", trigger=KeywordTrigger(())))
    toolset = SkillToolset(registry)
    tools = toolset.toolset().tools.values()
    schemas = [json.dumps([tool.name, tool.description, tool.function_schema.json_schema]) for tool in tools]
    assert len(toolset.catalog.text.encode()) + sum(map(len, schemas)) <= 4 * 2_000
    assert ("search_skills" in toolset.toolset().tools) == (not toolset.catalog.complete)
    assert toolset.catalog.complete == (count <= 40)
    assert "enum" not in "".join(schemas) or count <= 50


async def test_skills_are_listed_page_by_page_and_found_by_words() -> None:
    registry = SkillRegistry()
    for i in range(120):
        text = f"Handles matter {i}. " + "And so on. " * 90
        registry.add(Skill(name=f"matter-{i:03}", description=text, content="x", trigger=KeywordTrigger(())))
    toolset = SkillToolset(registry)
    seen: list[str] = []
    offset: Any = 0
    while offset is not None:
        page: Any = await toolset.list_skills(None, offset, 50)  # type: ignore[arg-type]
        assert len(json.dumps(page)) <= 16 << 10 and page["total"] == 120
        seen += [each["name"] for each in page["skills"]]
        offset = page["next_offset"]
    assert seen == [f"matter-{i:03}" for i in range(120)]
    found: Any = await toolset.search_skills(None, "matter 77", 3)  # type: ignore[arg-type]
    assert found[0]["name"] == "matter-077" and len(found) == 3
    assert all(len(each["description"]) <= 512 for each in found)


def test_long_instructions_and_files_are_read_in_parts(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    (folder / "references").mkdir(parents=True)
    lines = "".join(f"line {i} of the text\n" for i in range(20_000))
    (folder / "SKILL.md").write_text(f"---\nname: long\ndescription: Long.\n---\n{lines}")
    (folder / "references" / "x.txt").write_text(lines)
    (folder / "references" / "x.bin").write_bytes(b"\0" * 10)
    toolset = SkillToolset([read_skill(folder)])
    shown = activate(read_skill(folder)).rendered
    assert len(shown.encode()) < 70_000
    start = int(re.search(r"start_line=(\d+)\)\]", shown)[1])  # type: ignore[index]
    last = int(re.findall(r"line (\d+) of", shown)[-1])
    rest: Any = toolset._read_resource("long", "SKILL.md", ToolContext(), start)  # pyright: ignore[reportPrivateUsage]
    assert rest.startswith(f"line {last + 1} of the text")
    read: list[str] = []
    at = 1
    while True:
        part: Any = toolset._read_resource("long", "references/x.txt", ToolContext(), at)  # pyright: ignore[reportPrivateUsage]
        assert len(part) <= (256 << 10) + 200
        text, cut, more = part.partition("\n[truncated; continue with ")
        read.append(text + ("\n" if cut and not text.endswith("\n") else ""))
        if not cut:
            break
        at = int(re.search(r"start_line=(\d+)", more)[1])  # type: ignore[index]
    assert "".join(read) == lines
    answer: Any = toolset._read_resource("long", "references/x.bin", ToolContext())  # pyright: ignore[reportPrivateUsage]
    assert answer["error_code"] == "RESOURCE_NOT_TEXT"
