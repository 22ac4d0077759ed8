"""Whatever MCP servers call their tools, a model is offered names that providers take, each once, and can call them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bough import AsyncConversation, MCPClientConfig
from bough.agents.spec import AgentSpec
from bough.events.model import ErrorRaised, ToolReturned
from bough.settings import Settings
from bough.skills import TrustStore
from bough.skills.install.review import review_project
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).with_name("named_server.py")
NAMES = ["plain", "files.read", "files_read", "two words", "le\u0430d", "a\u202eb", "l" * 122, "l" * 300, "\u6728"]


class CallEverything:
    """A model's steps that call each tool of the first request once."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    def __call__(self, request: Any) -> Any:
        self.offered = [name for name in request.tools if name != "read_result"]
        return [tool_call(name) for name in self.offered]


def stdio(name: str, tools: list[str]) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVER), json.dumps(tools), name]}


async def run(tmp_path: Path, *steps: Any, **fields: Any) -> list[Any]:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=ScriptedModel(steps), **fields)
    async with await AsyncConversation.create(
        spec, workspace=tmp_path, store="memory:", settings=settings
    ) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).output == "done"
        return [stored.event async for stored in conversation.events]


async def test_names_of_an_agents_servers_are_those_that_providers_take(tmp_path: Path) -> None:
    calls = CallEverything()
    servers = [MCPClientConfig(name="house", **stdio("house", NAMES))]
    events = await run(tmp_path, calls, "done", skills=(), mcp_servers=servers)
    assert len(set(calls.offered)) == len(NAMES)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in calls.offered)
    assert "plain" in calls.offered, "a name that is right stays as it is"
    results = {event.result for event in events if isinstance(event, ToolReturned)}
    assert results == {f"house ran {place}" for place in range(len(NAMES))}, "each name calls its own tool"
    (fault,) = [event for event in events if isinstance(event, ErrorRaised)]
    assert "house" in fault.message
    assert fault.message.isascii(), "look-alikes are shown as what they are"


async def test_two_servers_may_call_a_tool_by_the_same_name(tmp_path: Path) -> None:
    calls = CallEverything()
    servers = [MCPClientConfig(name=name, **stdio(name, ["search"])) for name in ("mail", "files")]
    events = await run(tmp_path, calls, "done", skills=(), mcp_servers=servers)
    assert calls.offered == ["search", "files_search"]
    assert {event.result for event in events if isinstance(event, ToolReturned)} == {"mail ran 0", "files ran 0"}
    assert any("files_search" in event.message for event in events if isinstance(event, ErrorRaised))


async def test_names_of_skills_servers_are_unique_and_a_cut_is_said(tmp_path: Path) -> None:
    many = [f"tool-{number:03}" for number in range(500)]
    root = tmp_path / "skills"
    folder = root / "plank-shop"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: plank-shop\ndescription: Measures planks.\n---\nMeasure them.\n")
    servers = {"first": stdio("first", ["see.all"]), "second": stdio("second", ["see.all"]), "third": stdio("3", many)}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    grants = {each.key: each.grant(tuple(servers)) for each in review_project(root)}
    TrustStore(tmp_path / "home").trust(root, skills=grants)
    calls = CallEverything()

    def call_both(request: Any) -> Any:
        return [call for call in calls(request) if "see" in str(call)]

    load = tool_call("load_skill", skill_name="plank-shop")
    events = await run(tmp_path, load, call_both, "done", skill_roots=(root,))
    results = [event.result for event in events if isinstance(event, ToolReturned)]
    assert {"first ran 0", "second ran 0"} <= {result for result in results if isinstance(result, str)}
    assert len([name for name in calls.offered if "tool-" in name]) == 128
    assert any("500 tools" in event.message for event in events if isinstance(event, ErrorRaised))
