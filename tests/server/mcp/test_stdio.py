"""`bough mcp` as its clients use it: the client of the `mcp` package over the streams of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from tests.server.processes import POLL_SECONDS

from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Failure, Hang, Received, Reply, ServerCall, Step

pytestmark = pytest.mark.anyio
_SKILL = "---\nname: greet\ndescription: Greets people by name when asked to.\n---\nSay hello.\n"


@asynccontextmanager
async def connect(
    folder: Path, home: Path, steps: Iterable[Step], *options: str, **client: Any
) -> AsyncGenerator[Client]:
    """A client whose server runs in `folder`, with a model that answers with `steps`."""
    with OpenAIServer(steps) as model:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "bough.cli.main", "mcp", "-m", "openai:test", "--base-url", model.url, *options],
            env={
                "BOUGH_HOME": str(home),
                "HOME": str(home),
                "OPENAI_API_KEY": "none",
                "PYTHONPATH": ":".join(sys.path),
            },
            cwd=folder,
        )
        async with Client(stdio_client(server), **client) as connected:
            yield connected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    skill = tmp_path / "work" / ".agents" / "skills" / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(_SKILL)
    return tmp_path / "work"


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def _text(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return getattr(content, "text", "")


async def test_a_conversation_is_started_forked_and_compared(folder: Path, bough_home: Path) -> None:
    async with connect(folder, bough_home, ["one", "two", "other"]) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        reading = {name for name, hint in hints.items() if hint is not None and hint.read_only_hint}
        assert reading == {
            "list_conversations", "compare_conversations", "list_turns", "get_task",
            "list_files", "read_file", "diff_files",
        }  # fmt: skip
        started = await _call(client, "start_conversation", message="first", title="A title")
        assert (started["status"], started["answer"]) == ("finished", "one")
        id = started["id"]
        assert (await _call(client, "send_message", conversation=id, message="again"))["answer"] == "two"
        fork = await _call(
            client, "fork_conversation", conversation=id, at=started["head"], message="else", run=True, title="Fork"
        )
        assert (fork["at"], fork["answer"]) == (started["head"], "other")
        compared = await _call(client, "compare_conversations", a=id, b=fork["id"])
        assert compared["common"] == started["head"]
        assert compared["a"]["own"] > 0
        listed = await _call(client, "list_conversations", limit=1)
        assert [item["id"] for item in listed["items"]] == [fork["id"]]
        rest = await _call(client, "list_conversations", limit=1, cursor=listed["next"])
        assert [item["title"] for item in rest["items"]] == ["A title"]
        turns = await _call(client, "list_turns", conversation=id, limit=1)
        assert [turn["output"] for turn in turns["items"]] == ["one"]
        assert turns["items"][0]["message"]["content"][0]["text"] == "first"
        following = await _call(client, "list_turns", conversation=id, first=turns["next"])
        assert [turn["output"] for turn in following["items"]] == ["two"]
        assert await _call(client, "list_turns", conversation=id, first=9) == {"items": [], "next": None}


async def test_transcripts_events_skills_and_agents_are_resources(folder: Path, bough_home: Path) -> None:
    async with connect(folder, bough_home, ["the answer"]) as client:
        id = (await _call(client, "start_conversation", message="the question"))["id"]
        offered = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {f"bough://conversations/{id}", "bough://skills/greet", "bough://agents/default"} <= offered
        assert len((await client.list_resource_templates()).resource_templates) == 4
        transcript = await _text(client, f"bough://conversations/{id}")
        assert "the question" in transcript
        assert "the answer" in transcript
        events = [
            json.loads(line) for line in (await _text(client, f"bough://conversations/{id}/events?from=1")).splitlines()
        ]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert "Say hello." in await _text(client, "bough://skills/greet")
        assert json.loads(await _text(client, "bough://agents/default"))["name"] == "default"
        with pytest.raises(MCPError, match="not_found"):
            await client.read_resource(f"bough://conversations/{uuid4()}")


async def test_a_call_that_waits_is_decided(folder: Path, bough_home: Path) -> None:
    write = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "new.txt", "content": "x"}),))
    async with connect(folder, bough_home, [write, "written"], "--policy", "ask") as client:
        waiting = await _call(client, "start_conversation", message="write it")
        assert waiting["status"] == "waiting_for_confirmation"
        (call,) = waiting["waiting"]
        assert (call["tool"], call["arguments"]["path"]) == ("write_file", "new.txt")
        assert not (folder / "new.txt").exists()
        done = await _call(client, "decide", conversation=waiting["id"], call=call["call"], decision="approve")
        assert (done["status"], done["answer"]) == ("finished", "written")
        assert (folder / "new.txt").read_text() == "x"


async def test_a_conversation_spends_the_budgets_of_the_option_and_of_the_call(folder: Path, bough_home: Path) -> None:
    async with connect(folder, bough_home, ["one"], "--budget", "all=requests:1") as client:
        assert (await _call(client, "start_conversation", message="go"))["answer"] == "one"
        assert (await _call(client, "start_conversation", message="go", budget="all"))["status"] == "paused"
        assert (await client.call_tool("start_conversation", {"message": "go", "budget": "none"})).is_error


async def test_errors_are_results_with_their_code(folder: Path, bough_home: Path) -> None:
    async with connect(folder, bough_home, []) as client:
        for tool, arguments, code in (
            ("send_message", {"conversation": str(uuid4()), "message": "x"}, "not_found: "),
            ("send_message", {"conversation": "-", "message": "x"}, "invalid_input: conversation"),
            ("start_conversation", {"agent": "../agent.yaml"}, "not_found: no agent"),
            ("start_conversation", {"nonsense": 1}, "invalid_input: nonsense"),
            ("nonsense", {}, "invalid_input: there is no tool"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert getattr(result.content[0], "text", "").startswith(code), result.content


async def test_progress_is_reported_and_a_cancelled_run_can_be_resumed(folder: Path, bough_home: Path) -> None:
    reached, heard = threading.Event(), anyio.Event()

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    listing = Answer(calls=(ServerCall(tool="list_files", arguments={}),))
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        if len(told) == 2:
            heard.set()

    async with connect(folder, bough_home, [listing, hang, "resumed"]) as client:
        async with anyio.create_task_group() as group:
            start = partial(client.call_tool, "start_conversation", {"message": "go"}, progress_callback=hear)
            group.start_soon(start)
            await anyio.to_thread.run_sync(reached.wait, 60)
            await heard.wait()  # progress comes beside the run, and may be later than its next request
            group.cancel_scope.cancel()
        assert told[:2] == [(1, "the model answered"), (2, "list_files")]
        (record,) = (await _call(client, "list_conversations"))["items"]
        while record["status"] == "running":  # the server learns of it in its own time; the test's time-out bounds this
            await anyio.sleep(POLL_SECONDS)
            (record,) = (await _call(client, "list_conversations"))["items"]
        assert record["status"] == "paused"
        assert (await _call(client, "run_conversation", conversation=record["id"]))["answer"] == "resumed"


async def test_a_failed_run_is_an_error_with_a_reason_and_can_be_continued(folder: Path, bough_home: Path) -> None:
    failure = Failure(status=400, message="no such model", headers={"x-should-retry": "false"})
    async with connect(folder, bough_home, [failure, "after all"]) as client:
        failed = await client.call_tool("start_conversation", {"message": "go"})
        assert failed.is_error
        assert failed.structured_content is not None
        error = failed.structured_content["error"]
        assert error["code"]
        assert "no such model" in error["reason"]
        id = failed.structured_content["id"]
        assert (await _call(client, "send_message", conversation=id, message="again"))["answer"] == "after all"


async def test_a_listener_is_told_that_a_conversation_grew(folder: Path, bough_home: Path) -> None:
    async with connect(folder, bough_home, ["one"]) as client:
        id = (await _call(client, "start_conversation"))["id"]
        uri = f"bough://conversations/{id}"
        async with client.listen(resource_subscriptions=[uri]) as updates:
            await _call(client, "send_message", conversation=id, message="x")
            with anyio.fail_after(60):
                assert getattr(await anext(aiter(updates)), "uri", None) == uri


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_subscriber_of_an_older_protocol_is_told_too(folder: Path, bough_home: Path) -> None:
    updated = anyio.Event()

    async def hear(message: Any) -> None:
        if type(message).__name__ == "ResourceUpdatedNotification":
            updated.set()

    async with connect(folder, bough_home, ["one"], mode="legacy", message_handler=hear) as client:
        id = (await _call(client, "start_conversation"))["id"]
        await client.subscribe_resource(f"bough://conversations/{id}")  # pyright: ignore[reportDeprecated]
        await _call(client, "send_message", conversation=id, message="x")
        with anyio.fail_after(60):
            await updated.wait()


async def test_the_conversations_of_a_server_are_offered_by_it(serving: Any, new_key: Any, bough_home: Path) -> None:
    key = await anyio.to_thread.run_sync(partial(new_key, "desk", role="write"))
    with serving("from the server", "a fork's") as server:
        command = [sys.executable, "-m", "bough.cli.main", "mcp", "--server", server.url]
        env = {"BOUGH_HOME": str(bough_home), "BOUGH_API_KEY": key.text, "PYTHONPATH": ":".join(sys.path)}
        parameters = StdioServerParameters(command=command[0], args=command[1:], env=env)
        async with Client(stdio_client(parameters)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert "fork_conversation" in tools
            made = await _call(client, "start_conversation", message="a question")
            assert (made["status"], made["answer"]) == ("finished", "from the server")
            fork = await _call(client, "fork_conversation", conversation=made["id"], message="more", run=True)
            assert fork["answer"] == "a fork's"
            assert "a question" in await _text(client, f"bough://conversations/{made['id']}")
        with server.client(key.text) as owner:
            assert owner.get("/api/conversations/count").json() == 2
        wrong: dict[str, Any] = {
            "env": env | {"BOUGH_API_KEY": key.text + "x"},
            "stdin": subprocess.DEVNULL,
            "check": False,
        }
        refused = await anyio.run_process(command, **wrong)
        assert refused.returncode != 0
        assert b"refuses the key" in refused.stderr
