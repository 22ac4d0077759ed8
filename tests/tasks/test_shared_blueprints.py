"""What the tasks of a worker share, and what is let go of when one ends: skills, prompts, servers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough import MCPClientConfig, OrchestratorAgent
from bough.agents.spec import AgentSpec
from bough.connect.mcp_pool import McpPool
from bough.settings import Settings
from bough.skills import TrustStore
from bough.skills.install.review import review_project
from bough.tasks import TaskBroker, TaskState, TaskStoreMemory, Worker
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "connect" / "stdio_server.py"

_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and str(arguments[0]).endswith("SKILL.md"):
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_open)  # cannot be taken back; outside of `_reads` it does nothing


class _Reads:
    """Collects the skill files that are opened within the block, by whatever way."""

    def __enter__(self) -> list[str]:
        global _opened
        _opened = []
        return _opened

    def __exit__(self, *_: object) -> None:
        global _opened
        _opened = None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _write_skill(root: Path, name: str, description: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\nDo it.\n")


def _server(tmp_path: Path) -> MCPClientConfig:
    env = {"PID_FILE": str(tmp_path / "pid")}
    return MCPClientConfig(name="shelf", command=sys.executable, args=(str(SERVER),), env=env)


async def test_a_second_task_of_an_agent_reads_and_renders_nothing(
    tasks: RelationalTaskStore, settings: Settings, tmp_path: Path
) -> None:
    """Catalogue and tools are those of the first one, until a skill changes: then they say what it says."""
    root = tmp_path / "skills"
    for name in ("sweep", "polish"):
        _write_skill(root, name, f"Ways to {name} a floor.")
    model = ScriptedModel(["one", "two", "three"])
    spec = AgentSpec(name="cleaner", model=model, skill_roots=[root])
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([spec])

        async def run() -> None:
            task = await broker.wait(await broker.submit("clean", agent_name="cleaner"), 30)
            assert task.state is TaskState.COMPLETED

        await run()
        with _Reads() as reads:
            await run()
        assert reads == []
        cache = broker.worker.blueprints
        assert len(cache) == 1
        made = [cache.make(spec, workspace=Path(), home=settings.home) for _ in range(2)]
        assert made[0].toolset is made[1].toolset
        assert made[0].servers is not made[1].servers
        _write_skill(root, "sweep", "Ways to sweep a floor with two brooms.")
        await run()
    asked = [str(request.messages) for request in model.asked]
    assert ["two brooms" in each for each in asked] == [False, False, True]
    assert ["polish" in each for each in asked] == [True, True, True]


async def test_no_more_blueprints_are_kept_than_there_is_room_for(settings: Settings, tmp_path: Path) -> None:
    """The least recently used one goes; agents that differ share none."""
    from bough.agents.build import BlueprintCache

    cache = BlueprintCache(McpPool(), size=2)
    specs = [AgentSpec(name=name, system_prompt=f"You are {name}.", skills=()) for name in ("a", "b", "c")]
    first, *_ = [cache.make(spec, workspace=tmp_path, home=settings.home) for spec in specs]
    assert len(cache) == 2
    assert "You are a." in first.instructions
    again = cache.make(specs[0], workspace=tmp_path, home=settings.home)
    assert again.instructions == first.instructions
    assert again.registry is not first.registry


async def test_requests_look_for_skills_once_a_second(settings: Settings, tmp_path: Path) -> None:
    """Within the second no folder is looked at; whoever asks without a bound, or knows of a change, looks."""
    from bough.agents.build import BlueprintCache

    root, now = tmp_path / "skills", [0.0]
    _write_skill(root, "sweep", "Ways to sweep a floor.")
    spec = AgentSpec(name="cleaner", model="offline", skill_roots=[root])
    cache = BlueprintCache(McpPool(), monotonic=lambda: now[0])
    requests = cache.recheck_every(1.0)

    def names(from_cache: BlueprintCache) -> set[str]:
        made = from_cache.make(spec, workspace=tmp_path, home=settings.home)
        return {skill.name for skill in made.registry.list_all()}

    assert names(requests) == {"sweep"}
    _write_skill(root, "polish", "Ways to polish a floor.")
    now[0] = 0.9
    assert names(requests) == {"sweep"}, "as old as it may be"
    now[0] = 1.0
    assert names(requests) == {"sweep", "polish"}
    _write_skill(root, "mop", "Ways to mop a floor.")
    assert names(cache) == {"sweep", "polish", "mop"}, "a run looks for itself"
    assert names(requests) == {"sweep", "polish", "mop"}, "what a run found is known to requests"


async def test_tasks_share_a_server_that_ends_with_their_broker(
    tasks: RelationalTaskStore, settings: Settings, tmp_path: Path
) -> None:
    """It is started once for two tasks; nothing of it is left when the broker is."""
    steps = [step for _ in range(2) for step in (tool_call("measure", plank="oak"), "measured")]
    spec = AgentSpec(name="joiner", model=ScriptedModel(steps), skills=(), mcp_servers=[_server(tmp_path)])
    pids: list[int] = []
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([spec])
        for _ in range(2):
            task = await broker.wait(await broker.submit("measure", agent_name="joiner"), 60)
            assert (task.state, task.result) == (TaskState.COMPLETED, "measured")
            pids.append(int((tmp_path / "pid").read_text()))
    assert pids[0] == pids[1]
    assert not _is_alive(pids[0])


async def test_an_orchestrator_and_its_sub_agents_share_a_server(settings: Settings, tmp_path: Path) -> None:
    """One pool a process: the conversation that delegates uses that of its broker."""
    seen: list[int] = []

    def note(_: Any) -> str:
        seen.append(int((tmp_path / "pid").read_text()))
        return "measured"

    def agent(name: str, *steps: Any, **fields: Any) -> AgentSpec:
        model = ScriptedModel([tool_call("measure", plank="oak"), *steps])
        return AgentSpec(name=name, model=model, skills=(), mcp_servers=[_server(tmp_path)], **fields)

    top = agent("top", tool_call("delegate", agent_name="below", prompt="go"), note, sub_agents=[agent("below", note)])
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as orchestrator:
        assert (await orchestrator.run("measure")).output == "measured"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert not _is_alive(seen[0])


async def test_the_server_of_a_skill_ends_with_the_task_that_activated_it(settings: Settings, tmp_path: Path) -> None:
    """It sees that task's workspace, so no other task may use it; a worker of many tasks must not collect them."""
    root = tmp_path / "skills"
    _write_skill(root, "plank-shop", "Measures planks.")
    server = {"command": sys.executable, "args": [str(SERVER)], "env": {"PID_FILE": str(tmp_path / "pid")}}
    (root / "plank-shop" / ".mcp.json").write_text(json.dumps({"mcpServers": {"shelf": server}}))
    skills = {each.key: each.grant(("shelf",)) for each in review_project(root)}
    TrustStore(settings.home).trust(root, skills=skills)
    steps = [tool_call("load_skill", skill_name="plank-shop"), tool_call("plank_shop_measure", plank="oak"), "measured"]
    spec = AgentSpec(name="joiner", model=ScriptedModel(steps), skill_roots=[root])
    tasks = TaskStoreMemory()
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([spec])
        task = await broker.wait(await broker.submit("measure", agent_name="joiner"), 60)
        assert (task.state, task.result) == (TaskState.COMPLETED, "measured")
        await _over(broker.worker, task.id)
        assert not _is_alive(int((tmp_path / "pid").read_text()))
    await tasks.aclose()


async def _over(worker: Worker, task_id: str) -> None:
    """Return when the worker holds nothing of a task any more; its end is in the log before."""
    active = worker.active.get(task_id)
    if active is not None and active.work is not None:
        await active.work


async def test_a_worker_that_executes_by_hand_leaves_no_server(
    tasks: RelationalTaskStore, settings: Settings, tmp_path: Path, scripted: Callable[..., AgentSpec]
) -> None:
    """The seed's way: a store, an id, and nothing to close."""
    spec = scripted("joiner", tool_call("measure", plank="oak"), "measured", mcp_servers=[_server(tmp_path)])
    broker = TaskBroker(tasks, settings=settings)
    broker.register_agents([spec])
    task_id = await broker.submit("measure", agent_name="joiner")
    await Worker(tasks, agents={"joiner": spec}, settings=settings).execute(task_id)
    assert (await broker.poll(task_id)).state is TaskState.COMPLETED
    assert not _is_alive(int((tmp_path / "pid").read_text()))
    await broker.aclose()
