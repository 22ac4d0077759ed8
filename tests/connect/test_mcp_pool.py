"""MCP servers of an agent: real ones, on standard streams and over HTTP, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ToolReturnPart

from bough import AsyncConversation, MCPClientConfig
from bough.agents.spec import AgentSpec
from bough.connect.mcp_pool import McpPool
from bough.effects import make_effect_key
from bough.errors import ConnectError, InvalidInput
from bough.events.model import ErrorRaised, ToolFailed, ToolReturned
from bough.settings import Settings
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent / "stdio_server.py"


def stdio(tmp_path: Path, name: str = "run_directory", **fields: Any) -> MCPClientConfig:
    env = {"PID_FILE": str(tmp_path / f"{name}.pid")}
    return MCPClientConfig(name=name, command=sys.executable, args=(str(SERVER),), env=env, **fields)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    opened: list[AsyncConversation] = []

    async def start(servers: list[MCPClientConfig], *steps: Any) -> AsyncConversation:
        spec = AgentSpec(model=ScriptedModel(steps), skills=(), mcp_servers=servers)
        opened.append(await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings))
        await opened[-1].send_message("go")
        return opened[-1]

    yield start
    for conversation in opened:
        await conversation.aclose()


async def events(conversation: AsyncConversation, *kinds: type) -> list[Any]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, kinds)]


async def test_tools_of_a_program_are_prefixed_filtered_and_called(start: Any, tmp_path: Path) -> None:
    os.environ["SECRET_FOR_TEST"] = "x"
    asked: list[Any] = []
    config = stdio(tmp_path, tool_prefix="wood", allowed_tools=("measure", "environment"))
    steps = (
        lambda request: (
            asked.append(request),
            [tool_call("wood_measure", plank="oak"), tool_call("wood_environment")],
        )[1],
        "done",
    )
    conversation = await start([config], *steps)
    assert (await conversation.run()).output == "done"
    assert {"wood_measure", "wood_environment"} <= set(asked[0].tools)
    assert "wood_fail" not in asked[0].tools
    measured, environment = await events(conversation, ToolReturned)
    assert measured.result == "oak is 3 long"
    assert "PATH" in environment.result
    assert "SECRET_FOR_TEST" not in environment.result
    pid = int((tmp_path / "run_directory.pid").read_text())
    await conversation.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_over_http_gets_its_token(start: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(sys.executable, str(SERVER.parent / "http_server.py"), str(port))
    try:
        await listening(port)
        config = MCPClientConfig(name="web", url=f"http://127.0.0.1:{port}/mcp", bearer_token="web-token-1")
        conversation = await start([config], tool_call("authorization"), "done")
        await conversation.run()
        (returned,) = await events(conversation, ToolReturned)
        assert returned.result == "Bearer web-token-1"
        raw = [stored.raw async for stored in conversation.events]
        assert b"web-token-1" not in raw[0]
    finally:
        server.terminate()
        await server.wait()


async def listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0)
        else:
            writer.close()
            return


async def test_a_server_that_cannot_start_is_told_once_and_the_others_work(start: Any, tmp_path: Path) -> None:
    broken = MCPClientConfig(
        name="broken", command=sys.executable, args=("-c", "raise SystemExit(3)"), start_timeout=20
    )
    nobody = MCPClientConfig(name="nobody", url="http://127.0.0.1:9/mcp", start_timeout=5)
    silent = MCPClientConfig(name="silent", command="sleep", args=("60",), start_timeout=0.5)
    steps = (tool_call("measure", plank="oak"), tool_call("measure", plank="ash"), "done")
    conversation = await start([broken, nobody, silent, stdio(tmp_path)], *steps)
    assert (await conversation.run()).output == "done"
    errors = await events(conversation, ErrorRaised)
    assert {error.code for error in errors} == {"connect_error"}
    assert sorted(error.message.split("'")[1] for error in errors) == ["broken", "nobody", "silent"]
    assert len(await events(conversation, ToolReturned)) == 2


async def test_a_server_that_dies_is_started_once_more_and_then_left_out(start: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "run_directory.pid"
    offered: list[tuple[str, ...]] = []

    def kill(request: Any) -> Any:
        offered.append(request.tools)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        return tool_call("measure", plank="oak")

    def look(request: Any) -> Any:
        offered.append(request.tools)
        return "done"

    conversation = await start([stdio(tmp_path)], kill, kill, look)
    assert (await conversation.run()).output == "done"
    failures = await events(conversation, ToolFailed)
    assert len(failures) == 2
    assert ["measure" in tools for tools in offered] == [True, True, False]


async def test_a_death_that_two_calls_see_counts_once(start: Any, tmp_path: Path) -> None:
    def kill(request: Any) -> Any:
        os.kill(int((tmp_path / "run_directory.pid").read_text()), signal.SIGKILL)
        return [tool_call("measure", plank="oak"), tool_call("measure", plank="ash")]

    conversation = await start([stdio(tmp_path)], kill, tool_call("measure", plank="elm"), "done")
    assert (await conversation.run()).output == "done"
    assert len(await events(conversation, ToolFailed)) == 2
    assert "elm is 3 long" in str(conversation.agent.model.asked[2].messages[-1].parts[0].content)


async def test_a_tool_that_fails_is_not_a_server_that_died(start: Any, tmp_path: Path) -> None:
    conversation = await start([stdio(tmp_path)], tool_call("fail"), tool_call("measure", plank="oak"), "done")
    await conversation.run()
    (failed,) = await events(conversation, ToolFailed)
    assert "Error executing tool fail" in failed.error
    assert len(await events(conversation, ToolReturned)) == 1


async def test_one_server_serves_all_who_use_it_and_ends_when_idle(tmp_path: Path) -> None:
    pool = McpPool(idle_seconds=0.0)
    config = stdio(tmp_path, read_timeout=3)
    first, second = await asyncio.gather(pool.use(config), pool.use(config))
    assert first is second
    pid = int((tmp_path / "run_directory.pid").read_text())
    while Path(f"/proc/{pid}").exists():
        await asyncio.sleep(0)
    third = await pool.use(config)
    assert third is not first
    await pool.aclose()
    await pool.aclose()
    with pytest.raises(ConnectError, match="cannot be started"):
        await pool.use(MCPClientConfig(name="none", command="/nowhere/at/all"))


@pytest.mark.parametrize("fields", [{}, {"url": "http://x", "command": "y"}, {"url": "ftp://x"}])
def test_a_server_needs_exactly_one_way(fields: Any) -> None:
    with pytest.raises(InvalidInput):
        MCPClientConfig(name="x", **fields)


async def test_a_long_result_of_a_server_is_shown_in_part_and_read_on(start: Any, tmp_path: Path) -> None:
    shown: list[str] = []

    def read_on(asked: Any) -> Any:
        (part,) = [part for part in asked.messages[-1].parts if isinstance(part, ToolReturnPart)]
        shown.append(part.model_response_str())
        (result,) = re.findall(r'read_result\("([0-9a-f]{32})"', shown[0])
        return tool_call("read_result", result=result, pattern="plank5000") if len(shown) == 1 else "done"

    steps = (tool_call("list_planks", count=10_000), read_on, read_on)
    conversation = await start([stdio(tmp_path, allowed_tools=("list_planks",))], *steps)
    assert (await conversation.run()).output == "done"
    assert len(shown[0]) <= 4 * 8000
    assert "plank5000" not in shown[0]
    assert "plank5000" in shown[1]
    (listed, _) = await events(conversation, ToolReturned)
    assert len(str(listed.result)) >= 100_000, "the log has all of it"


async def test_a_server_gets_the_key_of_each_call(start: Any, tmp_path: Path) -> None:
    conversation = await start([stdio(tmp_path)], [tool_call("show_key"), tool_call("show_key")], "done")
    await conversation.run()
    log = [stored async for stored in conversation.events]
    response = next(stored.seq for stored in log if stored.kind == "ModelResponded")
    results = await events(conversation, ToolReturned)
    assert len({result.result for result in results}) == 2
    for result in results:
        assert result.result == make_effect_key(conversation.id, response, result.tool_call_id)
