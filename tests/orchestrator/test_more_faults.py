"""More of what another project's orchestrator gets wrong, each by its number: skills, tools, configuration, clocks."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bough import (
    AgentSpec,
    AllowList,
    AlwaysConfirm,
    AsyncConversation,
    Hook,
    HookKind,
    HookSet,
    OrchestratorAgent,
    Settings,
    Skill,
    get_agent,
    run_agent,
)
from bough.events.model import ToolRejected, ToolReturned
from bough.skills import KeywordTrigger
from bough.tasks import TaskBroker, TaskState, TaskStoreMemory
from bough.testing import OpenAIServer, ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


async def test_b21_a_skill_object_is_activated_without_a_folder(settings: Settings, tmp_path: Path) -> None:
    """It is in the catalogue, and its instructions come when it is loaded."""
    skill = Skill(name="knots", description="Ties knots.", content="Over, under, pull.", trigger=KeywordTrigger(()))
    model = ScriptedModel([tool_call("load_skill", skill_name="knots"), "tied"])
    spec = AgentSpec(name="sailor", model=model, skills=[skill])
    async with OrchestratorAgent(spec, store="memory:", workspace=tmp_path, settings=settings) as o:
        assert (await o.run("tie a knot")).output == "tied"
        assert "Ties knots." in o.system_prompt
        assert "Over, under, pull." not in o.system_prompt
    assert "Over, under, pull." in str(model.asked[1].messages)


def _look_now(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


async def _look_later(place: str) -> str:
    """Look at a place."""
    await asyncio.sleep(0)
    return f"nothing at {place}"


def _refuse_the_cellar(payload: Any) -> Any:
    in_cellar = payload["tool_input"].get("place") == "cellar"
    return {"decision": "deny", "reason": "it is dark"} if in_cellar else None


_HOOKS = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, function=_refuse_the_cellar),))


@pytest.mark.parametrize("tool", [_look_now, _look_later])
@pytest.mark.parametrize(
    ("rules", "places"),
    [
        ({}, ["attic", "cellar"]),
        ({"hooks": _HOOKS}, ["attic"]),
        ({"allow_list": AllowList.of("read_file")}, []),
        ({"confirmation_policy": AlwaysConfirm()}, []),
        ({"allow_list": AllowList.of("_look_now", "_look_later"), "hooks": _HOOKS}, ["attic"]),
    ],
)
async def test_b25_rules_hold_for_sync_and_async_tools_alike(
    settings: Settings, tmp_path: Path, tool: Callable[..., Any], rules: Any, places: list[str]
) -> None:
    """What may run runs and returns its value, not a coroutine; what may not is rejected, and the run continues."""
    calls = [tool_call(tool.__name__, place=place) for place in ("attic", "cellar")]
    spec = AgentSpec(model=ScriptedModel([calls, "done"]), tools=[tool], skills=())
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings, **rules)
    async with conversation:
        await conversation.send_message("look")
        result = await conversation.run()
        events = [stored.event async for stored in conversation.events]
    if "confirmation_policy" in rules:
        assert [call.tool for call in result.waiting] == [tool.__name__] * 2
    else:
        assert result.output == "done"
        assert len([each for each in events if isinstance(each, ToolRejected)]) == 2 - len(places)
    returned = [each.result for each in events if isinstance(each, ToolReturned)]
    assert sorted(str(each) for each in returned) == [f"nothing at {place}" for place in places]


async def test_b26_every_parameter_of_get_agent_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is documented and raises; those of PydanticAI's agent are passed on."""
    for name in ("BOUGH_MODEL", "BOUGH_BASE_URL", "BOUGH_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOUGH_HOME", str(tmp_path / "home"))
    requests: list[str] = []

    async def note(request: httpx2.Request) -> None:
        requests.append(request.url.path)

    with OpenAIServer(["by the entry", "by the client"]) as server:
        config = tmp_path / "config.yaml"
        entry = f'{{model: "openai-chat:test", base_url: "{server.url}", api_key: key, settings: {{seed: 7}}}}'
        config.write_text(f"models:\n  small: {entry}\n")
        async with httpx2.AsyncClient(event_hooks={"request": [note]}) as client:
            entry_agent = get_agent(config_name="small", config_path=config, model_settings={"temperature": 0.5})
            with_client = get_agent(config_name="small", config_path=config, http_client=client, name="named")
            said = [(await run_agent(agent, "hello"))[0] for agent in (entry_agent, with_client)]
        assert [run.result.output for run in said if run is not None and run.result] == [
            "by the entry", "by the client",
        ]  # fmt: skip
        body = server.received[0].body
        assert (body["temperature"], body["seed"]) == (0.5, 7)
    assert requests == ["/v1/chat/completions"]
    assert with_client.name == "named"
    plain = get_agent("offline", output_type=str, system_prompt="Be brief.", tools=[_look_now], retries=2)
    assert plain.model is not None
    named = set(inspect.signature(get_agent).parameters)
    assert named == {"model", "config_name", "config_path", "model_settings", "http_client", "kwargs"}


class _StoppedClock(asyncio.SelectorEventLoop):
    """An event loop whose clock never moves: whatever waits for a timer waits for ever."""

    def time(self) -> float:
        """Return the one moment there is."""
        return 1.0


def test_b35_no_timer_stands_between_a_submission_and_its_start(settings: Settings, tmp_path: Path) -> None:
    """A submission, ten children at once and their ends, by wake-ups alone."""

    async def run() -> tuple[TaskState, str]:
        below = AgentSpec(name="below", model=ScriptedModel(["answer"] * 10), skills=())
        calls = [tool_call("delegate", agent_name="below", prompt=f"part {number}") for number in range(10)]
        top = AgentSpec(name="top", model=ScriptedModel([calls, "done"]), skills=(), sub_agents=[below])
        tasks = TaskStoreMemory()
        async with TaskBroker(tasks, settings=settings) as broker:
            broker.register_agents([AgentSpec(name="one", model=ScriptedModel(["one"]), skills=())])
            task = await broker.wait(await broker.submit("go", agent_name="one"))
        await tasks.aclose()
        async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
            return task.state, (await o.run("begin")).output

    with asyncio.Runner(loop_factory=_StoppedClock) as runner:
        assert runner.run(run()) == (TaskState.COMPLETED, "done")


_IMPORT = """
import bough
for name in bough.__all__:
    getattr(bough, name)
from bough.errors import BoughError
for use in (bough.get_agent, lambda: bough.AgentSpec.from_config("any"), bough.Settings.load):
    try:
        use()
    except BoughError as error:
        print(error.code)
"""


@pytest.mark.parametrize(
    ("file", "text", "codes"),
    [
        ("config.yaml", "agents: [\n", ["invalid_input"] * 2),
        ("bough.yaml", "modle: x\n", ["invalid_input"] * 3),
        (".env", '"\0not a line', ["not_found"]),
    ],
)
def test_b38_nothing_ends_the_program_that_imports_it(tmp_path: Path, file: str, text: str, codes: list[str]) -> None:
    """A missing `.env` is nothing, a broken configuration an error that can be caught; importing reads neither."""
    (tmp_path / file).write_text(text)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "BOUGH_STORE": "memory:"}
    done = subprocess.run([sys.executable, "-c", _IMPORT], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == codes
