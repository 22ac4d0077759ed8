"""What a log only names: found in `config.yaml` by any worker, as objects in the process that started the task."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough import AgentSpec, AsyncConversation, Hook, HookKind, HookSet, OrchestratorAgent, Secrets, Settings
from bough.conversation.rules import Rules
from bough.errors import InvalidInput, PermissionDenied
from bough.events.model import ToolRejected
from bough.tasks import TaskBroker, TaskFilter, TaskState
from bough.tasks.agents import complete_rules, has_recorded_rules
from bough.tasks.notify import has_stopped
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.submission import Submitted
from bough.tasks.submitting import SubmissionRequest
from bough.testing import OpenAIServer, ScriptedModel, tool_call
from bough.testing.openai_server import Answer, ServerCall

pytestmark = pytest.mark.anyio

CODE = """
def measure(plank: str) -> str:
    "Measure a plank."
    return f"{plank} is {len(plank)} long"

def tools():
    return [measure]

def audit(payload):
    return {"decision": "deny", "reason": "not the oak"} if payload["tool_input"].get("plank") == "oak" else None

class Strict:
    def to_json(self):
        return {"kind": "Strict", "level": 3}

    async def analyze(self, call):
        raise ValueError("it lets nothing through")
"""

CONFIG = """
agents:
  joiner: {description: Measures, tools: ["workshop_parts:tools"]}
hooks: ["workshop_parts:audit"]
analyzers: {strict: "workshop_parts:Strict"}
secrets: {PLANK_KEY: {file: plank.key}, OTHER: {env: OTHER_KEY}}
"""


@pytest.fixture
def parts(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the configuration in the home folder, imported."""
    (tmp_path / "workshop_parts.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    settings.home.mkdir(parents=True)
    (settings.home / "config.yaml").write_text(CONFIG)
    (settings.home / "plank.key").write_text("oak-and-ash\n")
    sys.modules.pop("workshop_parts", None)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("workshop_parts")
    sys.modules.pop("workshop_parts", None)


async def test_an_agent_whose_tools_the_configuration_has_runs_in_any_worker(
    tasks: RelationalTaskStore, settings: Settings, parts: Any
) -> None:
    """It is registered where it is submitted, and nowhere else: its tools are those of the file's code."""
    call = Answer(calls=(ServerCall(tool="measure", arguments={"plank": "ash"}),))
    with OpenAIServer([call, "measured"]) as server:
        spec = AgentSpec(name="carpenter", model="openai-chat:test", base_url=server.url, tools=[parts.measure])
        program = TaskBroker(tasks, settings=settings)
        program.register_agents([spec])
        task_id = await program.submit("measure the ash", agent_name="carpenter")
        assert (await program.poll(task_id)).queue == "default"
        await program.aclose()
        async with TaskBroker(tasks, settings=settings) as worker:
            task = await worker.wait(task_id, 60)
        assert (task.state, task.result) == (TaskState.COMPLETED, "measured")
        assert "ash is 3 long" in str(server.received[1].body["messages"])


def _other(plank: str) -> str:
    """Measure a plank otherwise."""
    return plank


async def test_a_tool_that_no_configuration_names_keeps_its_task_private(
    tasks: RelationalTaskStore, settings: Settings, parts: Any
) -> None:
    """It waits for a program that has the agent, and is given to none that has another of that name."""
    spec = AgentSpec(name="carpenter", model="offline", tools=[_other])
    broker = TaskBroker(tasks, settings=settings)
    broker.register_agents([spec])
    task_id = await broker.submit("measure", agent_name="carpenter")
    queue = (await broker.poll(task_id)).queue
    assert queue.startswith("~carpenter.")
    await broker.aclose()
    namesake = TaskBroker(tasks, settings=settings)
    namesake.register_agents([AgentSpec(name="carpenter", model="offline", tools=[parts.measure, parts.audit])])
    async with namesake:
        own = await namesake.wait(await namesake.submit("hello", agent_name="carpenter"), 60)
        assert own.is_terminal
        assert own.queue != queue
        assert (await namesake.poll(task_id)).state is TaskState.PENDING
    again = TaskBroker(tasks, settings=settings)
    again.register_agents([spec])
    async with again:
        assert (await again.wait(task_id, 60)).state is TaskState.COMPLETED


@pytest.mark.parametrize("background", [False, True])
async def test_a_child_is_under_the_hooks_and_has_the_secrets_of_its_parent(
    settings: Settings, tmp_path: Path, background: bool
) -> None:
    """Functions are in no log: here the child has them from its parent, started at once or in the background."""
    asked: list[str] = []

    def refuse(payload: Any) -> Any:
        asked.append(payload["tool_name"])
        return {"decision": "deny", "reason": "no"} if payload["tool_name"] == "_other" else None

    below = AgentSpec(name="below", model=ScriptedModel([tool_call("_other", plank="oak"), "refused"]), tools=[_other])
    calls = [tool_call("submit_task", agent_name="below", prompt="go"), tool_call("wait", timeout=60)]
    steps = [*calls, "done"] if background else [tool_call("delegate", agent_name="below", prompt="go"), "done"]
    top = AgentSpec(name="top", model=ScriptedModel(steps), sub_agents=[below])
    hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, function=refuse),))
    secrets = Secrets({"PLANK_KEY": lambda: "oak-and-ash"})
    async with OrchestratorAgent(
        top, store="memory:", workspace=tmp_path, settings=settings, hooks=hooks, secrets=secrets
    ) as o:
        assert (await o.run("go")).output == "done"
        assert o.broker is not None
        [child] = await o.broker.store.list_by_state(TaskState.COMPLETED)
        assert child.result == "refused"
        assert child.conversation is not None
        log = o.broker.store.log
        events = [each.event async for each in log.read(child.conversation)]
        assert [each.tool for each in events if isinstance(each, ToolRejected)] == ["_other"]
        assert o.broker.worker.parent_rules == {}
    assert asked.count("_other") == 1


class _BrokerOfQuickWorkers(TaskBroker):
    """A child in the background has ended before whoever submitted it hears that it was written."""

    async def submit_child(self, request: SubmissionRequest, *, claim: bool) -> Submitted:
        submitted = await super().submit_child(request, claim=claim)
        await self.wait_until(submitted.row.task_id, has_stopped)
        return submitted


async def test_a_child_that_runs_as_soon_as_it_is_written_has_the_hooks_and_secrets_of_its_parent(
    tasks: RelationalTaskStore, settings: Settings, tmp_path: Path
) -> None:
    """A worker may claim the row before the parent goes on, so the rules are registered before the row is written."""
    asked: list[str] = []

    def refuse(payload: Any) -> Any:
        asked.append(payload["tool_name"])
        return {"decision": "deny", "reason": "no oak-and-ash"} if payload["tool_name"] == "_other" else None

    below = AgentSpec(name="below", model=ScriptedModel([tool_call("_other", plank="oak"), "refused"]), tools=[_other])
    steps = [tool_call("submit_task", agent_name="below", prompt="go"), tool_call("wait"), "done"]
    top = AgentSpec(name="top", model=ScriptedModel(steps), sub_agents=[below])
    hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, function=refuse),))
    secrets = Secrets({"PLANK_KEY": lambda: "oak-and-ash"})
    async with _BrokerOfQuickWorkers(tasks, settings=settings) as broker:
        broker.register_agents([top])
        async with await AsyncConversation.create(
            top, store=tasks.log, workspace=tmp_path, settings=settings, broker=broker.delegation,
            hooks=hooks, secrets=secrets,
        ) as parent:  # fmt: skip
            await parent.send_message("go")
            assert (await parent.run()).output == "done"
        [child] = (await tasks.list(TaskFilter(parent=parent.id))).items
        assert (child.state, child.result, child.error) == (TaskState.COMPLETED, "refused", None)
        [rejected] = [stored.event async for stored in tasks.log.read(UUID(child.id)) if stored.kind == "ToolRejected"]
        assert isinstance(rejected, ToolRejected)
        assert "oak-and-ash" not in rejected.model_dump_json(), "the parent's secrets are masked in its log"
        assert broker.worker.parent_rules == {}
    assert asked.count("_other") == 1


async def test_hooks_an_analyzer_and_secrets_come_by_name(settings: Settings, parts: Any) -> None:
    """What a log says of them is enough; a conversation of a tenant gets none of the operator's secrets."""
    hook = Hook(kind=HookKind.PRE_TOOL_USE, function=parts.audit, matcher="measure", timeout_seconds=5)
    secrets = Secrets({"PLANK_KEY": lambda: "another value"})
    rules = Rules(hooks=HookSet((hook,)), analyzer=parts.Strict(), secrets=secrets)
    recorded = rules.to_json()
    found = await complete_rules(Rules(), recorded, settings, is_own=True)
    assert found.hooks.to_json() == recorded["hooks"]
    assert found.hooks.hooks[0].function is parts.audit
    assert found.analyzer is not None
    assert found.analyzer.to_json() == recorded["analyzer"]
    assert found.secrets.value("PLANK_KEY") == "oak-and-ash"
    resumed = Rules.from_json(recorded, found)
    assert resumed.secrets.names == ("PLANK_KEY",)
    assert (await complete_rules(Rules(), recorded, settings, is_own=False)).secrets.names == ()
    assert await has_recorded_rules(rules, settings)
    assert not await has_recorded_rules(Rules(secrets=Secrets({"NOBODYS": lambda: "x"})), settings)

    def elsewhere(payload: Any) -> None: ...

    unknown = Rules(hooks=HookSet((Hook(kind=HookKind.PRE_TOOL_USE, function=elsewhere),)))
    assert not await has_recorded_rules(unknown, settings)
    with pytest.raises(InvalidInput, match="started with hooks"):
        Rules.from_json(unknown.to_json(), await complete_rules(Rules(), unknown.to_json(), settings, is_own=True))


async def test_code_of_a_project_that_nobody_trusted_is_not_imported(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a task asks for a hook, and the folder's own file would name it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text('hooks: ["workshop_trap:audit"]\n')
    (tmp_path / "workshop_trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    recorded = {"hooks": [{"kind": "PreToolUse", "matcher": "*", "timeout": 60.0, "function": "audit"}]}
    with pytest.raises(PermissionDenied, match="workshop_trap"):
        await complete_rules(Rules(), recorded, settings, is_own=True)
