"""`/mcp` as its clients use it: the client of the `mcp` package over HTTP, behind the server's keys and limits."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from tests.server.processes import POLL_SECONDS
from tests.server.test_search import write_projects

from bough.settings import Settings
from bough.testing import Answer, ServerCall
from bough.testing.openai_server import Failure, Hang, Received, Reply

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connect(server: Any, key: str | None = None, **client: Any) -> AsyncGenerator[Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), **client) as connected,
    ):
        yield connected


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def read(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return getattr(content, "text", "")


async def test_conversations_are_started_run_forked_decided_and_delegated(serving: Any) -> None:
    write = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "new.txt", "content": "x"}, id="c1"),))
    with serving("one", "two", "other", write, "written", "done", tools="write") as server:
        async with connect(server) as client:
            started = await call(client, "start_conversation", message="first", title="A title", tags={"a": "b"})
            assert (started["status"], started["answer"]) == ("finished", "one")
            id = started["id"]
            assert (await call(client, "send_message", conversation=id, message="again"))["answer"] == "two"
            fork = await call(
                client, "fork_conversation", conversation=id, at=started["head"], message="else", run=True
            )
            assert (fork["at"], fork["answer"]) == (started["head"], "other")
            compared = await call(client, "compare_conversations", a=id, b=fork["id"])
            assert compared["common"] == started["head"]
            page = await call(client, "list_conversations", text="A title", limit=1)
            assert len(page["items"]) == 1
            with server.client() as rest:
                rest.post(f"/api/conversations/{id}/confirmation_policy", json={"policy": {"kind": "AlwaysConfirm"}})
            waiting = await call(client, "send_message", conversation=id, message="write it")
            assert waiting["status"] == "waiting_for_confirmation"
            done = await call(client, "decide", conversation=id, call=waiting["waiting"][0]["call"], decision="approve")
            assert (done["status"], done["answer"]) == ("finished", "written")
            (delegate,) = [tool for tool in (await client.list_tools()).tools if tool.name == "delegate"]
            assert delegate.input_schema["properties"]["agent"]["enum"] == ["default"]
            task = await call(client, "delegate", agent="default", prompt="do it")
            assert (task["state"], task["result"]) == ("completed", "done")
            assert await call(client, "get_task", task=task["task"]) == task
            assert (await call(client, "cancel_task", task=task["task"]))["state"] == "completed", "it had ended"


async def test_a_conversation_spends_a_budget_of_the_tenant(serving: Any) -> None:
    with serving("one") as server, server.client() as rest:
        rest.post("/api/budgets", json={"id": "june", "requests": 1})
        async with connect(server) as client:
            assert (await call(client, "start_conversation", message="go", budget="june"))["answer"] == "one"
            paused = await call(client, "start_conversation", message="go", budget="june")
            assert paused["status"] == "paused"
            rest.post("/api/budgets", json={"id": "july", "requests": 1})
            fork = await call(client, "fork_conversation", conversation=paused["id"], budget="july")
            assert "july" in str(rest.get("/api/budgets/july").json()["id"])
            turns = (await call(client, "list_turns", conversation=fork["id"]))["items"]
            assert [(turn["message"]["content"][0]["text"], turn["reason"]) for turn in turns] == [
                ("go", "budget.june.requests")
            ]
            for wrong in ("none", "other/june"):
                assert (await client.call_tool("start_conversation", {"message": "go", "budget": wrong})).is_error
            assert (await client.call_tool("list_turns", {"conversation": fork["id"], "first": 0})).is_error
        assert len(rest.get("/api/conversations/search").json()["items"]) == 3


async def test_resources_are_read_and_followed(serving: Any) -> None:
    with serving("the answer", "more") as server:
        async with connect(server) as client:
            id = (await call(client, "start_conversation", message="the question"))["id"]
            uri = f"bough://conversations/{id}"
            offered = {str(resource.uri) for resource in (await client.list_resources()).resources}
            assert {uri, "bough://agents/default"} <= offered
            transcript = await read(client, uri)
            assert "the question" in transcript
            assert "the answer" in transcript
            events = [json.loads(line) for line in (await read(client, f"{uri}/events")).splitlines()]
            assert [event["seq"] for event in events] == list(range(len(events)))
            with pytest.raises(MCPError, match="not_found"):
                await client.read_resource(f"bough://conversations/{uuid4()}")
            async with client.listen(resource_subscriptions=[uri]) as updates:
                await call(client, "send_message", conversation=id, message="x")
                with anyio.fail_after(60):
                    assert getattr(await anext(aiter(updates)), "uri", None) == uri


async def test_progress_is_reported_and_a_cancelled_run_can_be_resumed(serving: Any) -> None:
    reached, heard = threading.Event(), anyio.Event()
    told: list[tuple[float, str | None]] = []

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        if len(told) == 2:
            heard.set()

    listing = Answer(calls=(ServerCall(tool="list_files", arguments={}),))
    with serving(listing, hang, "resumed", tools="read") as server:
        async with connect(server) as client:
            async with anyio.create_task_group() as group:
                start = partial(client.call_tool, "start_conversation", {"message": "go"}, progress_callback=hear)
                group.start_soon(start)
                await anyio.to_thread.run_sync(reached.wait, 60)
                await heard.wait()
                group.cancel_scope.cancel()
            assert told[:2] == [(1, "the model answered"), (2, "list_files")]
            (record,) = (await call(client, "list_conversations"))["items"]
            while record["status"] == "running":  # the server learns of it in its own time
                await anyio.sleep(POLL_SECONDS)
                (record,) = (await call(client, "list_conversations"))["items"]
            assert record["status"] == "paused"
            assert (await call(client, "run_conversation", conversation=record["id"]))["answer"] == "resumed"


async def test_a_failed_run_is_an_error_with_a_reason_and_can_be_continued(serving: Any) -> None:
    failure = Failure(status=400, message="no such model", headers={"x-should-retry": "false"})
    with serving(failure, "after all") as server:
        async with connect(server) as client:
            failed = await client.call_tool("start_conversation", {"message": "go"})
            assert failed.is_error
            assert failed.structured_content is not None
            error = failed.structured_content["error"]
            assert error["code"]
            assert "no such model" in error["reason"]
            id = failed.structured_content["id"]
            assert (await call(client, "send_message", conversation=id, message="again"))["answer"] == "after all"


async def test_keys_scopes_and_tenants_hold(serving: Any, new_key: Any) -> None:
    wanted: list[dict[str, Any]] = [
        {"tenant": "red", "role": "admin"},
        {"tenant": "blue", "role": "admin"},
        {"tenant": "red", "role": "write", "scopes": ["conversations"]},
    ]
    red, blue, narrow = [await anyio.to_thread.run_sync(partial(new_key, **options)) for options in wanted]
    with serving("one") as server:
        async with connect(server, red.text) as client:
            id = (await call(client, "start_conversation", message="first"))["id"]
            task = (await call(client, "delegate", agent="default", prompt="x", wait=False))["task"]
        async with connect(server, blue.text) as client:
            assert (await call(client, "list_conversations"))["items"] == []
            for tool, arguments in (
                ("send_message", {"conversation": id, "message": "x"}),
                ("fork_conversation", {"conversation": id}),
                ("compare_conversations", {"a": id, "b": id}),
                ("decide", {"conversation": id, "call": "c", "decision": "approve"}),
                ("get_task", {"task": task}),
                ("cancel_task", {"task": task}),
            ):
                result = await client.call_tool(tool, arguments)
                assert getattr(result.content[0], "text", "").startswith("not_found"), (tool, result.content)
            with pytest.raises(MCPError, match="not_found"):
                await client.read_resource(f"bough://conversations/{id}")
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for key, status in ((None, 401), ("wrong", 401), (narrow.text, 403)):
            with server.client(key) as http:
                answer = http.post("/mcp", json=body, headers={"Accept": "application/json, text/event-stream"})
                assert answer.status_code == status
                assert answer.headers["content-type"] == "application/problem+json"
        with server.client(red.text) as http:
            headers = {"Accept": "application/json, text/event-stream", "Origin": "https://evil.example"}
            assert http.post("/mcp", json=body, headers=headers).status_code == 403


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_session_of_an_older_protocol_belongs_to_the_key_that_opened_it(serving: Any, new_key: Any) -> None:
    one, other = [await anyio.to_thread.run_sync(partial(new_key, role="admin", name=name)) for name in ("a", "b")]
    initialize = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream"}
    with serving() as server, server.client(one.text) as http, server.client(other.text) as stranger:
        opened = http.post("/mcp", json=initialize, headers=accept)
        assert opened.status_code == 200
        session = accept | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert stranger.post("/mcp", json=listing, headers=session).status_code == 404
        http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        assert "start_conversation" in http.post("/mcp", json=listing, headers=session).text
        async with connect(server, one.text, mode="legacy") as client:
            assert len((await client.list_tools()).tools) == 16


async def test_a_narrow_key_sees_no_conversations_and_wrong_arguments_are_refused(serving: Any, new_key: Any) -> None:
    key = await anyio.to_thread.run_sync(partial(new_key, role="write"))
    narrow = await anyio.to_thread.run_sync(partial(new_key, role="write", scopes=["mcp"]))
    with serving("one", message_bytes=2000) as server:
        async with connect(server, key.text) as client:
            id = (await call(client, "start_conversation", message="the question"))["id"]
            for tool, wrong in (
                ("start_conversation", {"title": ""}),
                ("start_conversation", {"tags": {"a": "x" * 1000}}),
                ("start_conversation", {"message": " "}),
                ("start_conversation", {"message": "x" * 3000}),
                ("send_message", {"conversation": id, "message": "x" * 3000}),
                ("fork_conversation", {"conversation": id, "title": "x" * 300}),
                ("fork_conversation", {"conversation": id, "model": ""}),
                ("fork_conversation", {"conversation": id, "reason": "x" * 3000}),
                ("delegate", {"agent": "default", "prompt": "x" * 3000}),
            ):
                refused = await client.call_tool(tool, wrong)
                assert refused.is_error
                assert getattr(refused.content[0], "text", "").startswith(("invalid_input: ", "too_large: ")), wrong
            assert len((await call(client, "list_conversations"))["items"]) == 1, "what is refused leaves nothing"
            for uri in ("bough://[x", f"bough://conversations/{id}?nonsense=1"):
                with pytest.raises(MCPError, match="invalid_input"):
                    await client.read_resource(uri)
        async with connect(server, narrow.text) as client:
            for tool, arguments in (("list_conversations", {}), ("compare_conversations", {"a": id, "b": id})):
                refused = await client.call_tool(tool, arguments)
                assert getattr(refused.content[0], "text", "").startswith("permission_denied: ")
            for uri in (f"bough://conversations/{id}", f"bough://conversations/{id}/events", "bough://agents/default"):
                with pytest.raises(MCPError, match="permission_denied"):
                    await client.read_resource(uri)
            assert (await client.list_resources()).resources == []


async def test_a_project_narrows_the_list(serving: Any, new_key: Any, settings: Settings) -> None:
    await write_projects(settings)
    key = await anyio.to_thread.run_sync(partial(new_key, tenant="red"))
    with serving() as server:
        async with connect(server, key.text) as client:
            page = await call(client, "list_conversations", project="office")
            assert {item["title"] for item in page["items"]} == {"office", "fork office"}
