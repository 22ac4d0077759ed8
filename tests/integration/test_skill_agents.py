"""Skills in running conversations: what is always active, what files and words activate, tasks, scripts, servers.

Each with a model that decides (the offline planner) or one behind an OpenAI-format server; a real sandbox always.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bough.agents.skills.activation import CHANGED, MAX_ALWAYS_BYTES
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.log.condenser import KeepFirstCondenser
from bough.events import open_store
from bough.events.model import SkillActivated
from bough.events.store import EventStore
from bough.settings import Settings
from bough.skills import TrustStore
from bough.skills.install.review import review_project
from bough.testing import Answer, OpenAIServer, Received, ScriptedModel, ServerCall, tool_call

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "connect" / "stdio_server.py"
ECHO = """\
import json, pathlib, sys
print(json.dumps(sys.argv[1:]))
pathlib.Path("report.json").write_text(json.dumps(sys.argv[1:]))
"""
Start: TypeAlias = Callable[..., Awaitable[AsyncConversation]]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A skill with a script and a file, and a task skill."""
    write(
        tmp_path / "skills",
        {
            "echo-kit/SKILL.md": "---\nname: echo-kit\ndescription: Repeats parrots.\ntriggers: [parrot]\n---\n"
            "Run scripts/echo.py; references/format.md says what comes out.\n",
            "echo-kit/scripts/echo.py": ECHO,
            "echo-kit/references/format.md": "One JSON list.\n",
            "fix-bug/SKILL.md": "---\nname: fix-bug\ndescription: Mends defects.\ntriggers: [fix the bug]\ninputs:\n"
            "  - {name: issue, description: Number of the issue}\n  - {name: branch, default: main}\n---\n"
            "Mend ${issue} on ${branch}: run scripts/fix.sh.\n",
            "fix-bug/scripts/fix.sh": "echo fixed >fixed.txt\n",
        },
    )
    return tmp_path / "skills"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The workspace: a project of its own."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    return tmp_path / "work"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield opened
    await opened.aclose()


@pytest.fixture
async def start(store: EventStore, work: Path, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[AsyncConversation] = []
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)

    async def start(agent: AgentSpec, **fields: Any) -> AsyncConversation:
        given = {"workspace": work, "store": store, "settings": settings} | fields
        made.append(await AsyncConversation.create(agent, **given))
        return made[-1]

    yield start
    for conversation in made:
        await conversation.aclose()


async def say(conversation: AsyncConversation, text: str) -> str:
    await conversation.send_message(text)
    return (await conversation.run()).output


async def events(conversation: AsyncConversation, kind: str) -> list[Any]:
    return [stored.event async for stored in conversation.events if stored.kind == kind]


async def activations(conversation: AsyncConversation) -> list[tuple[str, str, bool]]:
    """Name, trigger and whether there is a text, of every activation."""
    found: list[SkillActivated] = await events(conversation, "SkillActivated")
    return [(event.name, event.trigger, bool(event.rendered)) for event in found]


def scripted(*steps: Any, **fields: Any) -> AgentSpec:
    return AgentSpec(model=ScriptedModel(steps), **fields)


def asked(conversation: AsyncConversation) -> list[Any]:
    model = conversation.agent.model
    assert isinstance(model, ScriptedModel)
    return model.asked


def prompts(request: Any) -> list[str]:
    parts = [part for message in request.messages for part in message.parts]
    return [part.content for part in parts if part.part_kind == "user-prompt"]


# Done by a model.


async def test_the_offline_model_activates_reads_and_runs(start: Start, kit: Path, work: Path) -> None:
    conversation = await start(AgentSpec(model="offline", skill_roots=(kit,)))
    assert "One JSON list." in await say(conversation, "/echo-kit show me references/format.md")
    output = await say(conversation, "/echo-kit one 'two words'")
    assert '["one", "two words"]' in output
    assert "report.json" in output
    assert json.loads((work / "report.json").read_text()) == ["one", "two words"]
    tools = [event.tool for event in await events(conversation, "ToolCalled")]
    assert tools == ["load_skill_resource", "run_skill_script"], "what /name brought is not loaded again"
    assert await activations(conversation) == [("echo-kit", "slash", True)] * 2


async def test_the_offline_model_asks_for_a_missing_input_by_name_and_runs_when_it_is_there(
    start: Start, kit: Path, work: Path
) -> None:
    conversation = await start(AgentSpec(model="offline", skill_roots=(kit,)))
    output = await say(conversation, "fix the bug, please")
    assert "issue: Number of the issue" in output
    assert "branch" not in output, "what has a default is not asked for"
    assert await events(conversation, "ToolCalled") == []
    assert not (work / "fixed.txt").exists()
    await say(conversation, "/fix-bug issue=42")
    assert (work / "fixed.txt").read_text() == "fixed\n"
    (first, second) = await events(conversation, "SkillActivated")
    assert (first.trigger, first.inputs) == ("task", {})
    assert "Mend ${issue} on main" in first.rendered
    assert second.inputs["issue"] == "42"
    assert "Mend 42 on main" in second.rendered


def called(tool: str, **arguments: Any) -> Answer:
    return Answer(calls=(ServerCall(tool=tool, arguments=arguments),))


def result_of(received: Received) -> Any:
    return json.loads(received.body["messages"][-1]["content"])


async def test_an_answer_with_the_missing_input_goes_on_with_the_task(start: Start, kit: Path, work: Path) -> None:
    conversation = await start(AgentSpec(model="offline", skill_roots=(kit,)))
    await say(conversation, "fix the bug with branch=dev")
    await say(conversation, "hello there")
    assert not (work / "fixed.txt").exists()
    await say(conversation, "issue=42")
    assert (work / "fixed.txt").exists()
    last = (await events(conversation, "SkillActivated"))[-1]
    assert last.inputs == {"branch": "dev", "issue": "42"}
    assert "Mend 42 on dev" in last.rendered
    await say(conversation, "issue=43")
    assert (await events(conversation, "SkillActivated"))[-1] == last, "nothing is asked for any more"


async def test_a_model_behind_a_server_activates_reads_runs_and_gets_a_file_back(
    start: Start, kit: Path, work: Path
) -> None:
    given: list[Any] = [["a b", "--x"], {"name": "a b", "all": True, "_": ["in.txt"]}, "--name 'a b' in.txt"]
    runs = [called("run_skill_script", skill_name="echo-kit", script_path="echo.py", args=args) for args in given]
    steps = [
        called("load_skill", skill_name="echo-kit"),
        called("load_skill_resource", skill_name="echo-kit", path="references/format.md"),
        *runs,
        lambda received: f"It made {result_of(received)['output_files'][0]['path']}.",
    ]
    with OpenAIServer(steps) as server:
        spec = AgentSpec(model="openai:test", base_url=server.url, skill_roots=(kit,))
        conversation = await start(spec)
        assert await say(conversation, "repeat this") == "It made report.json."
    first = server.received[0].body
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in first["tools"]}
    assert schemas["run_skill_script"]["properties"]["skill_name"]["enum"] == ["echo-kit", "fix-bug"]
    assert "<file>scripts/echo.py</file>" in server.received[1].body["messages"][-1]["content"]
    assert server.received[2].body["messages"][-1]["content"] == "One JSON list.\n"
    printed = [json.loads(result_of(received)["stdout"]) for received in server.received[3:6]]
    assert printed == [["a b", "--x"], ["--name", "a b", "--all", "in.txt"], ["--name", "a b", "in.txt"]]
    assert json.loads((work / "report.json").read_text()) == ["--name", "a b", "in.txt"]
    ran = await events(conversation, "ScriptRan")
    assert [event.status for event in ran] == ["success"] * 3
    assert {event.isolation for event in ran} <= {"landlock", "namespaces", "container"}, "never without a sandbox"


async def test_a_model_behind_a_server_is_told_which_input_to_ask_for(start: Start, kit: Path) -> None:
    def ask(received: Received) -> str:
        text = str(received.body["messages"])
        return "Which issue?" if "- issue: Number of the issue" in text else "nothing was asked for"

    def begin(received: Received) -> str:
        return next(line for line in str(received.body["messages"]).split("\\n") if line.startswith("Mend 7"))

    with OpenAIServer([ask, begin]) as server:
        conversation = await start(AgentSpec(model="openai:test", base_url=server.url, skill_roots=(kit,)))
        assert await say(conversation, "Can you fix the bug?") == "Which issue?"
        assert await say(conversation, "/fix-bug issue=7 branch=dev") == "Mend 7 on dev: run scripts/fix.sh."


async def test_an_mcp_tool_of_a_skill_answers_a_model_behind_a_server(start: Start, tmp_path: Path) -> None:
    servers = {
        "run_directory": {"command": sys.executable, "args": [str(SERVER)], "env": {"PID_FILE": str(tmp_path / "pid")}}
    }
    write(
        tmp_path / "skills" / "plank-shop",
        {
            "SKILL.md": "---\nname: plank-shop\ndescription: Measures planks.\n---\nMeasure them.\n",
            ".mcp.json": json.dumps({"mcpServers": servers}),
        },
    )
    skills = {each.key: each.grant(("run_directory",)) for each in review_project(tmp_path / "skills")}
    TrustStore(tmp_path / "home").trust(tmp_path / "skills", skills=skills)  # it may run outside of the sandbox
    steps = [
        called("load_skill", skill_name="plank-shop"),
        called("plank_shop_measure", plank="oak"),
        lambda received: f"Measured: {received.body['messages'][-1]['content']}",
    ]
    with OpenAIServer(steps) as server:
        spec = AgentSpec(model="openai:test", base_url=server.url, skill_roots=(tmp_path / "skills",))
        conversation = await start(spec)
        assert await say(conversation, "How long is the oak plank?") == "Measured: oak is 3 long"
    offered = [{tool["function"]["name"] for tool in received.body["tools"]} for received in server.received]
    assert ["plank_shop_measure" in names for names in offered] == [False, True, True]


async def test_a_skill_cannot_use_a_tool_that_its_list_leaves_out(start: Start, tmp_path: Path, work: Path) -> None:
    text = "---\nname: reader\ndescription: Reads.\ntriggers: [look at]\nallowed-tools: Read\n---\nOnly read.\n"
    write(tmp_path / "skills", {"reader/SKILL.md": text})
    steps = [called("write_file", path="made.txt", content="x"), "I may not."] * 2
    with OpenAIServer(steps) as server:
        spec = AgentSpec(
            model="openai:test", base_url=server.url, skill_roots=(tmp_path / "skills",), workspace_access="write"
        )
        conversation = await start(spec)
        await say(conversation, "look at it and write made.txt")
        await say(conversation, "look at it again and write made.txt")
    rejected = await events(conversation, "ToolRejected")
    assert [(event.tool, event.by) for event in rejected] == [("write_file", "allow-list")] * 2
    assert not (work / "made.txt").exists()
    assert await activations(conversation) == [("reader", "keyword", True), ("reader", "keyword", False)]


# Always active.


async def test_rules_of_the_project_are_told_at_every_step_and_stay_the_same(start: Start, work: Path) -> None:
    write(
        work,
        {
            "AGENTS.md": "Use tabs.\n",
            "CLAUDE.md": "Be brief.\n",
            ".cursor/rules/style.mdc": "---\nalwaysApply: true\n---\nNo emoji.\n",
            ".cursor/rules/asked.mdc": "---\ndescription: About tests.\n---\nTest first.\n",
        },
    )
    conversation = await start(scripted("one", "two", discover_skills=True))
    await say(conversation, "begin")
    (work / "CLAUDE.md").unlink()
    await say(conversation, "continue")
    first, second = asked(conversation)
    for text in ("Use tabs.", "Be brief.", "No emoji."):
        assert first.instructions.count(text) == 1
    assert "Test first." not in first.instructions
    assert '<skill name=".cursor/rules/asked.mdc">About tests.</skill>' in first.instructions
    assert second.instructions == first.instructions, "byte for byte, whatever happens on disk"
    always = [name for name, trigger, has_text in await activations(conversation) if trigger == "always"]
    assert sorted(always) == [".cursor/rules/style.mdc", "AGENTS.md", "CLAUDE.md"]


async def test_rules_alone_bring_no_skill_tools(start: Start, work: Path) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n"})
    conversation = await start(scripted("one", discover_skills=True))
    await say(conversation, "begin")
    assert asked(conversation)[0].tools == ()
    assert "<available_skills>" not in asked(conversation)[0].instructions


async def test_the_offline_model_takes_rules_for_no_request(start: Start, kit: Path, work: Path) -> None:
    write(work, {"AGENTS.md": "Run scripts/deploy.sh before everything.\n"})
    conversation = await start(AgentSpec(model="offline", discover_skills=True, skill_roots=(kit,)))
    assert "Nothing fits" in await say(conversation, "What is the weather like?")
    write(work, {"AGENTS.md": "Never run scripts/deploy.sh.\n"})
    assert "Nothing fits" in await say(conversation, "What is the weather like now?")
    assert await events(conversation, "ToolCalled") == []


async def test_a_rule_that_changes_is_sent_again_and_says_so_and_a_fork_at_an_old_point_sees_the_old_one(
    start: Start, work: Path
) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n"})
    conversation = await start(scripted("one", "two", "three", "fork", discover_skills=True))
    await say(conversation, "begin")
    before = conversation.state.head
    write(work, {"AGENTS.md": "Use spaces.\n"})
    await say(conversation, "continue")
    await say(conversation, "and on")
    second, third = asked(conversation)[1:]
    update = f'<skill always="true" name="AGENTS.md">\n{CHANGED}\nUse spaces.\n</skill>'
    assert prompts(second) == ["begin", "continue", update]
    assert prompts(third) == ["begin", "continue", update, "and on"], "told once"
    write(work, {"AGENTS.md": "Use tabs.\n"})
    fork = await conversation.fork(at=before)
    await say(fork, "elsewhere")
    last = asked(conversation)[-1]
    assert "Use tabs." in last.instructions
    assert prompts(last) == ["begin", "elsewhere"]
    await fork.aclose()


async def test_a_fork_of_the_first_event_alone_is_told_once(start: Start, work: Path) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n"})
    conversation = await start(scripted("one", "two", discover_skills=True))
    fork = await conversation.fork(at=1)
    await say(fork, "begin")
    await say(fork, "continue")
    assert prompts(asked(fork)[1]) == ["begin", "continue"]
    assert asked(fork)[1].instructions.count("Use tabs.") == 1
    assert await activations(fork) == [("AGENTS.md", "always", False)]
    await fork.aclose()


async def test_a_rule_that_comes_later_is_told_too(start: Start, work: Path, store: EventStore) -> None:
    conversation = await start(scripted("one", "two", discover_skills=True))
    await say(conversation, "begin")
    write(work, {"AGENTS.md": "Use tabs.\n"})
    again = await AsyncConversation.open(
        conversation.id, store=store, agent=conversation.agent, settings=conversation.settings
    )
    await say(again, "continue")
    assert prompts(asked(again)[-1])[-1] == '<skill always="true" name="AGENTS.md">\nUse tabs.\n</skill>'
    await again.aclose()


async def test_rules_are_not_condensed_away(start: Start, work: Path) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n"})
    steps = [f"answer {n}" for n in range(12)]
    condenser = KeepFirstCondenser(max_events=6, keep_first=0)
    conversation = await start(scripted(*steps, discover_skills=True), condenser=condenser)
    for n in range(12):
        await say(conversation, f"message {n}")
    assert await events(conversation, "Condensed")
    last = asked(conversation)[-1]
    assert "message 0" not in prompts(last)
    assert last.instructions.count("Use tabs.") == 1


async def test_rules_over_the_bound_are_left_out_and_that_is_told(start: Start, work: Path) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n", "CLAUDE.md": "x" * MAX_ALWAYS_BYTES})
    conversation = await start(scripted("one", "two", discover_skills=True))
    await say(conversation, "begin")
    await say(conversation, "continue")
    (skipped,) = await events(conversation, "SkillSkipped")
    assert (skipped.name, skipped.code) == ("CLAUDE.md", "limit_exceeded")
    assert "bytes" in skipped.message
    assert skipped.hint
    assert await events(conversation, "ErrorRaised") == []
    assert "Use tabs." in asked(conversation)[0].instructions


async def test_another_agent_brings_its_own_rules_into_a_fork(start: Start, work: Path) -> None:
    write(work, {"AGENTS.md": "Use tabs.\n"})
    conversation = await start(scripted("one", skills=()))
    await say(conversation, "begin")
    other = scripted("two", discover_skills=True)
    fork = await conversation.fork(agent=other)
    await say(fork, "continue")
    assert "Use tabs." in asked(fork)[0].instructions
    assert prompts(asked(fork)[0]) == ["begin", "continue"]
    assert ("AGENTS.md", "always", False) in await activations(fork)
    await fork.aclose()


# Activated by words.


async def test_a_keyword_brings_a_text_once_and_again_when_it_has_changed(start: Start, kit: Path) -> None:
    conversation = await start(scripted("1", "2", "3", skill_roots=(kit,)))
    await say(conversation, "a parrot")
    await say(conversation, "the PARROT again")
    file = kit / "echo-kit" / "SKILL.md"
    file.write_text(file.read_text().replace("Run scripts/echo.py;", "Never run it;"))
    await say(conversation, "one more parrot")
    texts = await events(conversation, "SkillActivated")
    assert [event.trigger for event in texts] == ["keyword", "keyword"]
    assert texts[0].content_hash != texts[1].content_hash
    assert texts[1].rendered.splitlines()[1] == CHANGED
    assert "Never run it;" in prompts(asked(conversation)[2])[-1]


async def test_what_one_message_activates_is_bounded_and_the_rest_is_told(start: Start, tmp_path: Path) -> None:
    for n in range(8):
        text = f"---\nname: skill-{n}\ndescription: x\ntriggers: [everything]\n---\nText {n}.\n"
        write(tmp_path / "skills", {f"skill-{n}/SKILL.md": text})
    conversation = await start(scripted("1", "2", skill_roots=(tmp_path / "skills",)))
    await say(conversation, "everything")
    assert len(await activations(conversation)) == 5
    assert [skipped.name for skipped in await events(conversation, "SkillSkipped")] == ["skill-5", "skill-6", "skill-7"]
    await say(conversation, "everything")
    assert len(await activations(conversation)) == 8, "what already exists takes no room"


# Activated by files.


async def test_a_touched_file_activates_rules_for_it_once(start: Start, kit: Path, work: Path) -> None:
    write(
        work,
        {
            "api/AGENTS.md": "Handlers are async.\n",
            "api/app.py": "x = 1\n",
            "docs/guide.md": "# Guide\n",
            ".cursor/rules/docs.mdc": "---\nglobs: docs/**/*.md\n---\nWrite short sentences.\n",
        },
    )
    read = [tool_call("read_file", path="api/app.py"), tool_call("read_file", path="./api/app.py")]
    missing = tool_call("read_file", path="docs/none.md")
    script = tool_call("run_skill_script", skill_name="echo-kit", script_path="echo.py", args=["--in=docs/guide.md"])
    steps = (read, missing, script, "done")
    conversation = await start(scripted(*steps, discover_skills=True, skill_roots=(kit,), workspace_access="read"))
    await say(conversation, "look around")
    begin, after_read, after_missing, after_script = asked(conversation)
    assert "Handlers are async." not in begin.instructions + str(prompts(begin))
    assert prompts(after_read)[1:] == ['<skill name="api/AGENTS.md">\nHandlers are async.\n</skill>']
    assert prompts(after_missing) == prompts(after_read), "a file that is not there is not touched"
    assert "Write short sentences." in prompts(after_script)[-1]
    found = [event for event in await events(conversation, "SkillActivated") if event.trigger == "path"]
    assert [(event.name, event.keyword) for event in found] == [
        ("api/AGENTS.md", "api/app.py"),
        (".cursor/rules/docs.mdc", "docs/guide.md"),
    ]


async def test_a_written_file_activates_too_and_a_changed_rule_is_told(start: Start, work: Path) -> None:
    write(work, {"api/AGENTS.md": "Handlers are async.\n"})

    def change(_: Any) -> Any:
        write(work, {"api/AGENTS.md": "Handlers are sync.\n"})
        return tool_call("read_file", path="api/new.py")

    steps = (tool_call("write_file", path="api/new.py", content="x"), change, "done")
    conversation = await start(scripted(*steps, discover_skills=True, workspace_access="write"))
    await say(conversation, "write it")
    texts = prompts(asked(conversation)[-1])[1:]
    assert texts[0] == '<skill name="api/AGENTS.md">\nHandlers are async.\n</skill>'
    assert texts[1] == f'<skill name="api/AGENTS.md">\n{CHANGED}\nHandlers are sync.\n</skill>'


async def test_in_a_folder_of_a_project_rules_hold_for_the_projects_paths(start: Start, work: Path) -> None:
    write(work, {"api/v1/AGENTS.md": "Frozen.\n", "api/v1/app.py": "x\n"})
    steps = (tool_call("read_file", path="v1/app.py"), "done")
    spec = scripted(*steps, discover_skills=True, workspace_access="read")
    conversation = await start(spec, workspace=work / "api")
    await say(conversation, "look")
    assert "Frozen." in prompts(asked(conversation)[-1])[-1]
