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

import pytest
import uvicorn
from mcp.server import MCPServer

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("stdio_server.py")


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


async def conversation_of(root: Path, tmp_path: Path, *steps: Any) -> AsyncConversation:
    spec = AgentSpec(model=ScriptedModel(steps), skill_roots=(root,))
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    return await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings)


async def test_a_stdio_server_is_started_by_activation_and_stopped_with_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for servers")
    skill(tmp_path / "skills", "plank-shop", {"shelf": stdio(tmp_path)})
    conversation = await conversation_of(
        tmp_path / "skills",
        tmp_path,
        tool_call("load_skill", skill_name="plank-shop"),
        [tool_call("plank_shop_measure", plank="oak"), tool_call("plank_shop_environment")],
        tool_call("plank_shop_fail"),
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
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    await conversation.send_message("again")
    await conversation.aclose()
    assert not is_alive(pid), "it ends with the conversation"


async def test_a_server_that_cannot_be_started_is_named_and_harms_nobody(tmp_path: Path) -> None:
    servers = {"broken": {"command": "/no/such/program"}, "shelf": stdio(tmp_path)}
    skill(tmp_path / "skills", "plank-shop", servers)
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
    server = MCPServer("shelf")

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
    skill(project / ".agents" / "skills", "plank-shop", {"shelf": stdio(tmp_path)})
    model = ScriptedModel(["I have no such skill"])
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=model, discover_skills=True)
    conversation = await AsyncConversation.create(spec, workspace=project, store="memory:", settings=settings)
    await conversation.send_message("/plank-shop oak")
    await conversation.run()
    assert not (tmp_path / "pid").exists()
    assert not any(tool.startswith("plank_shop") for tool in model.asked[0].tools)
    await conversation.aclose()
