"""MCP servers of skills: really started, their tools called by the model, and gone afterwards."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvicorn
from mcp.server import MCPServer
from pydantic_ai import BinaryContent

from bough.agents.spec import AgentSpec
from bough.connect.skill_mcp import shorten_result
from bough.conversation import AsyncConversation
from bough.errors import PermissionDenied
from bough.settings import Settings
from bough.skills import TrustStore
from bough.skills.install.review import review_project
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("stdio_server.py")
PLAIN_SERVER = Path(__file__).with_name("plain_server.py")


def skill(root: Path, name: str, servers: dict[str, Any]) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Measures planks.\n---\nMeasure them.\n")
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def stdio(tmp_path: Path) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": [str(SERVER)],
        "env": {"PID_FILE": str(tmp_path / "pid"), "SHELF": "${SKILL_ROOT}"},
    }


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def let_run_on_host(tmp_path: Path, root: Path, *names: str) -> None:
    """A person agrees that these servers of the skills in `root` run outside of the sandbox."""
    skills = {each.key: each.grant(names) for each in review_project(root)}
    TrustStore(tmp_path / "home").trust(root, skills=skills)


async def conversation_of(root: Path, tmp_path: Path, *steps: Any) -> AsyncConversation:
    spec = AgentSpec(model=ScriptedModel(steps), skill_roots=(root,))
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    return await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings)


async def test_a_stdio_server_is_started_by_activation_and_stopped_with_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for servers")
    skill(tmp_path / "skills", "plank-shop", {"run_directory": stdio(tmp_path)})
    let_run_on_host(tmp_path, tmp_path / "skills", "run_directory")
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-shop"),
        [tool_call("plank_shop_measure", plank="oak"), tool_call("plank_shop_environment")],
        tool_call("plank_shop_fail"),
        tool_call("plank_shop_show_key"),
        "measured",
    )
    await conversation.send_message("measure the oak plank")
    assert not (tmp_path / "pid").exists(), "nothing is started before the skill is active"
    assert (await conversation.run()).output == "measured"
    asked = conversation.agent.model.asked
    assert "plank_shop_measure" not in asked[0].tools
    assert "plank_shop_measure" in asked[1].tools
    results = [part.content for part in asked[2].messages[-1].parts]
    assert results[0] == "oak is 3 long"
    assert "OPENAI_API_KEY" not in str(results[1])
    assert "SHELF" in str(results[1])
    assert asked[3].messages[-1].parts[0].outcome == "failed"
    assert UUID(asked[4].messages[-1].parts[0].content), "the key of the call"
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    await conversation.send_message("again")
    await conversation.aclose()
    assert not is_alive(pid), "it ends with the conversation"


async def test_a_server_that_cannot_be_started_is_named_and_harms_nobody(tmp_path: Path) -> None:
    servers = {"broken": {"command": "/no/such/program"}, "run_directory": stdio(tmp_path)}
    skill(tmp_path / "skills", "plank-shop", servers)
    let_run_on_host(tmp_path, tmp_path / "skills", "run_directory")
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-shop"),
        tool_call("plank_shop_measure", plank="ash"),
        "measured",
    )
    await conversation.send_message("measure")
    assert (await conversation.run()).output == "measured"
    errors = [stored.event.message async for stored in conversation.events if stored.kind == "ErrorRaised"]
    assert len(errors) == 1
    assert "'broken'" in errors[0]
    await conversation.aclose()


@pytest.fixture
def http_server() -> Iterator[str]:
    server = MCPServer("run_directory")

    @server.tool()
    def weigh(plank: str) -> str:
        """Weigh a plank."""
        return f"{plank} weighs {len(plank)} kg"

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", ws="none")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}/mcp"
        running.should_exit = True
        thread.join(10)


async def test_a_streamable_http_server_answers(tmp_path: Path, http_server: str) -> None:
    skill(tmp_path / "skills", "plank-scale", {"scale": {"type": "http", "url": http_server}})
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-scale"),
        tool_call("plank_scale_weigh", plank="beech"),
        "weighed",
    )
    await conversation.send_message("weigh")
    assert (await conversation.run()).output == "weighed"
    assert conversation.agent.model.asked[2].messages[-1].parts[0].content == "beech weighs 5 kg"
    await conversation.aclose()


async def test_servers_of_an_untrusted_project_are_not_started(tmp_path: Path) -> None:
    project = tmp_path / "project"
    skill(project / ".agents" / "skills", "plank-shop", {"run_directory": stdio(tmp_path)})
    model = ScriptedModel(["I have no such skill"])
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=model, discover_skills=True)
    conversation = await AsyncConversation.create(spec, workspace=project, store="memory:", settings=settings)
    with pytest.raises(PermissionDenied, match="not trusted"):
        await conversation.send_message("/plank-shop oak")
    await conversation.send_message("use the plank-shop")
    await conversation.run()
    assert not (tmp_path / "pid").exists()
    assert not any(tool.startswith("plank_shop") for tool in model.asked[0].tools)
    await conversation.aclose()


def sandboxed(root: Path, name: str = "plank-shop") -> None:
    """A skill that brings its server along."""
    skill(root, name, {"plain": {"command": "python3", "args": ["${SKILL_ROOT}/server.py"], "env": {"GIVEN": "1"}}})
    (root / name / "server.py").write_text(PLAIN_SERVER.read_text())


@pytest.mark.needs("bubblewrap")
async def test_a_server_runs_behind_the_wall_and_sees_its_skill_and_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    sandboxed(tmp_path / "skills")
    (tmp_path / "skills" / "plank-shop" / "__pycache__").mkdir()
    spec = AgentSpec(
        model=ScriptedModel(
            [
                tool_call("load_skill", skill_name="plank-shop"),
                [tool_call("plank_shop_look"), tool_call("plank_shop_write"), tool_call("plank_shop_long")],
                "done",
            ]
        ),
        skill_roots=(tmp_path / "skills",),
    )
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    conversation = await AsyncConversation.create(spec, workspace=tmp_path / "work", store="memory:", settings=settings)
    await conversation.send_message("measure")
    assert (await conversation.run()).output == "done"
    asked = conversation.agent.model.asked
    look, write, long = (part.content for part in asked[2].messages[-1].parts)
    seen = look if isinstance(look, dict) else json.loads(look)
    assert (seen["/skill/SKILL.md"], seen["/work"], seen["/etc/shadow"], seen["/root"]) == (True, True, False, False)
    assert seen["cwd"] == "/skill" and seen["uid"] != 0 and "GIVEN" in seen["env"]
    assert (tmp_path / "work" / "made.txt").read_text() == "made"
    assert write == "written"
    assert len(str(long)) < 300_000
    await conversation.aclose()


@pytest.mark.needs("bubblewrap")
async def test_a_dead_server_is_started_once_more_and_then_left_out(tmp_path: Path) -> None:
    sandboxed(tmp_path / "skills")
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-shop"),
        tool_call("plank_shop_die"),
        tool_call("plank_shop_look"),
        tool_call("plank_shop_die"),
        "done",
    )
    await conversation.send_message("measure")
    assert (await conversation.run()).output == "done"
    asked = conversation.agent.model.asked
    assert asked[2].messages[-1].parts[0].outcome == "failed"
    assert "ended during the call" in str(asked[2].messages[-1].parts[0].content)
    assert "SKILL.md" in str(asked[3].messages[-1].parts[0].content)
    assert not any(tool.startswith("plank_shop") for tool in asked[4].tools)
    errors = [stored.event.message async for stored in conversation.events if stored.kind == "ErrorRaised"]
    assert len(errors) == 1 and "ended again" in errors[0]
    await conversation.aclose()


@pytest.mark.needs("bubblewrap")
async def test_a_death_that_two_calls_see_counts_once(tmp_path: Path) -> None:
    sandboxed(tmp_path / "skills")
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-shop"),
        [tool_call("plank_shop_die"), tool_call("plank_shop_die")],
        tool_call("plank_shop_look"),
        "done",
    )
    await conversation.send_message("measure")
    assert (await conversation.run()).output == "done"
    asked = conversation.agent.model.asked
    assert [part.outcome for part in asked[2].messages[-1].parts] == ["failed", "failed"]
    assert "SKILL.md" in str(asked[3].messages[-1].parts[0].content)
    assert [stored.event async for stored in conversation.events if stored.kind == "ErrorRaised"] == []
    await conversation.aclose()


def test_results_are_bounded() -> None:
    assert shorten_result("short") == "short"
    assert "bytes left out" in shorten_result("x" * (1 << 20))
    assert len(shorten_result(["x" * 200_000] * 3)) < 300_000
    assert len(shorten_result({"a": "x" * 400_000})) < 300_000
    assert "left out" in shorten_result(BinaryContent(b"x" * (5 << 20), media_type="image/png"))
    small = BinaryContent(b"x", media_type="image/png")
    assert shorten_result([small, "a"]) == [small, "a"]
