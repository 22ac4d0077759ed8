"""The code blocks of seed 004, statement by statement, with nothing changed but the imports. The notebooks have more.

Source: seed 004 (its sections on skills, tasks and the orchestrator).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.testing import OpenAIServer, ScriptedModel

pytestmark = pytest.mark.anyio

SKILL = """---
name: code-review
description: Review code for quality, bugs, and security issues.
compatibility: Works with Python, JavaScript, and TypeScript files.
metadata:
  author: example-org
  version: "1.0"
---

# Code Review

## How to use
Analyze the provided code and return structured feedback.
"""

CONFIG = """
models:
  azure_gpt4: {model: offline}
agents:
  coordinator: {description: Coordinates analysis tasks, system_prompt: You coordinate., queue: slow}
mcp_servers:
  data_analysis: {url: "http://127.0.0.1:9/mcp"}
  sql: {url: "http://127.0.0.1:9/sql"}
a2a: {clients: {nl2sql: {url: "http://127.0.0.1:9/nl2sql"}}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the seed's skill, and a home of its own whose `config.yaml` it is."""
    for name in ("BOUGH_MODEL", "BOUGH_BASE_URL", "BOUGH_CONFIG", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    monkeypatch.setenv("BOUGH_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "skills" / "code-review").mkdir(parents=True)
    (tmp_path / "skills" / "code-review" / "SKILL.md").write_text(SKILL)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "coordinator.md").write_text("You coordinate.\n\n{sub_agents_catalog}\n{skills_catalog}\n")
    home.mkdir()
    (home / "config.yaml").write_text(CONFIG)
    return home


async def test_the_block_of_the_registry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discovery, activation, and the tool `activate_skill`."""
    from bough import SkillRegistry, get_agent, run_agent
    from bough.skills import get_all_tools, get_skill_instructions, list_available_skills

    registry = SkillRegistry()
    metadata = registry.discover([Path("skills/")])
    catalog = list_available_skills(registry)

    skill = registry.get("code-review")
    instructions = get_skill_instructions(registry, "code-review")

    tools = get_all_tools(registry)
    with OpenAIServer(["reviewed"]) as server:
        monkeypatch.setenv("BOUGH_MODEL", "openai-chat:test")
        monkeypatch.setenv("BOUGH_BASE_URL", server.url)
        agent = get_agent(tools=tools, system_prompt=f"Available skills:\n{catalog}")
        await run_agent(agent, "review main.py")
        assert server.received[0].body["messages"][0]["content"] == f"Available skills:\n{catalog}"
        assert [each["function"]["name"] for each in server.received[0].body["tools"]] == ["activate_skill"]
    assert catalog == "code-review: Review code for quality, bugs, and security issues."
    assert [(each.name, each.path.name) for each in metadata] == [("code-review", "SKILL.md")]
    assert skill.body == instructions
    assert skill.frontmatter["metadata"] == {"author": "example-org", "version": "1.0"}
    assert list(skill.script_paths) == list(skill.reference_paths) == list(skill.asset_paths) == []
    assert "structured feedback" in tools[0]("code-review")
    assert tools[0]("code-revue").startswith("Error:")


def test_the_block_of_the_task() -> None:
    """A task that nobody has submitted."""
    from bough.tasks import EventType, Task, TaskEvent, TaskState

    task = Task(input="Analyze this dataset")
    assert task.state == TaskState.PENDING
    assert (task.result, task.error, task.events, task.metadata) == (None, None, [], {})
    event = TaskEvent(task_id=task.id, event_type=EventType.LOG, payload={"message": "began"})
    assert (event.event_type, event.payload) == (EventType.LOG, {"message": "began"})


async def test_the_block_of_the_broker(home: Path) -> None:
    """Submission, the ways to watch, cancellation, callbacks."""
    from bough import AgentSpec
    from bough.tasks import TaskBroker, TaskState, TaskStoreMemory

    seen: list[Any] = []
    my_callback = seen.append
    async with TaskBroker(store=TaskStoreMemory()) as broker:
        broker.register_agents({"analyst": AgentSpec(name="analyst", model=ScriptedModel(["up"]), skills=[])})
        task_id = await broker.submit("Analyze revenue trends", agent_name="analyst")

        task = await broker.poll(task_id)
        assert task.metadata["agent_name"] == "analyst"
        task = await broker.wait(task_id)
        assert (task.state, task.result) == (TaskState.COMPLETED, "up")
        kinds = [event.event_type.name async for event in broker.stream(task_id)]

        await broker.cancel(task_id)
        await broker.cancel_all()

        await broker.notify(task_id, {TaskState.COMPLETED}, my_callback)
        await broker.store.aclose()
    assert kinds == ["STATE_CHANGE", "STATE_CHANGE", "LOG", "STATE_CHANGE"]
    assert [task.state for task in seen] == [TaskState.COMPLETED]


def my_tool(text: str) -> str:
    """Count words."""
    return str(len(text.split()))


async def test_the_blocks_of_the_orchestrator(home: Path) -> None:
    """A spec with all six capabilities; two turns, of which the second knows the first."""
    from bough.connect import A2AClientConfig, A2AClientExtended, MCPClientConfig
    from bough.orchestrator import AgentSpec, OrchestratorAgent
    from bough.skills import SkillRegistry

    registry = SkillRegistry()
    registry.discover([Path("skills/")])
    skill = registry.get("code-review")
    mcp_config = MCPClientConfig(name="data_analysis", url="http://127.0.0.1:9/mcp", start_timeout=5)
    a2a_client = A2AClientExtended(A2AClientConfig(url="http://127.0.0.1:9/a2a", name="nl2sql", max_retries=0))
    analyst_spec = AgentSpec(name="analyst", description="Answers questions about tables")
    researcher_spec = AgentSpec(name="researcher", description="Searches the web")

    model = ScriptedModel(["Revenue rose.", "It rose more than in Q3."])
    spec = AgentSpec(
        name="coordinator",
        description="Coordinates analysis tasks",
        system_prompt="You are an analysis coordinator.",
        tools=[my_tool],
        mcp_servers=[mcp_config],
        a2a_clients=[a2a_client],
        skills=[skill],
        sub_agents=[analyst_spec, researcher_spec],
        model=model,
    )

    async with OrchestratorAgent(spec, verbose=True) as orchestrator:
        result = await orchestrator.run("Analyze Q4 revenue data")
        assert result.output == "Revenue rose."

        result = await orchestrator.run("Now compare with Q3")
        assert result.output == "It rose more than in Q3."
        assert len(orchestrator.runs) == 2
        prompt = orchestrator.system_prompt
    for text in ("You are an analysis coordinator.", "- analyst: Answers questions about tables", "code-review"):
        assert text in prompt
    assert {"my_tool", "delegate", "submit_task", "wait", "load_skill"} <= set(model.asked[0].tools)
    assert "Analyze Q4 revenue data" in str(model.asked[1].messages)


def test_the_block_of_the_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is given wins; what is not comes from the file's entry of that name."""
    from bough.orchestrator import AgentSpec

    Path("seed_tools.py").write_text("def look(): 'Look.'\n\ndef get_all_tools(): return [look]\n")
    monkeypatch.syspath_prepend(Path.cwd())

    spec = AgentSpec.from_config(
        "coordinator",
        model_name="azure_gpt4",
        system_prompt_path=Path("prompts/coordinator.md"),
        tool_names=["seed_tools:get_all_tools"],
        mcp_server_names=["data_analysis", "sql"],
        a2a_client_names=["nl2sql"],
        skill_roots=[Path("skills/")],
        skill_names=["code-review"],
    )
    assert (spec.name, spec.description, spec.queue, spec.model) == (
        "coordinator", "Coordinates analysis tasks", "slow", "offline",
    )  # fmt: skip
    assert [server.name for server in spec.mcp_servers] == ["data_analysis", "sql"]
    assert [client.config.name for client in spec.a2a_clients] == ["nl2sql"]
    assert [skill.name for skill in spec.skills or ()] == ["code-review"]
    assert [tool.__name__ for tool in spec.tools] == ["look"]
    assert spec.prompt().startswith("You coordinate.")
