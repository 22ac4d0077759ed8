"""The MCP tools for files at an event, on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.mcp.test_http import call, connect

from bough.settings import Settings
from bough.testing import Answer, ServerCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path, keep_files=True)


def write(content: str, id: str) -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a.txt", "content": content}, id=id),))


@pytest.fixture
def keys(new_key: Any) -> tuple[Any, Any]:
    """A key with every scope, and one without `files`."""
    return new_key(role="admin"), new_key(role="read", scopes=["mcp", "conversations"])


async def test_files_are_listed_compared_restored_and_applied(serving: Any, keys: tuple[Any, Any]) -> None:
    key, reader = keys
    steps = (write("one\n", "a"), "made", write("two\n", "b"), "changed", write("better\n", "c"), "done")
    with serving(*steps, tools="write") as server:
        async with connect(server, key.text) as client:
            started = await call(client, "start_conversation", message="make")
            id, at = started["id"], started["head"]
            await call(client, "send_message", conversation=id, message="change")
            listing = await call(client, "list_files", conversation=id, at=at)
            assert listing["items"] == [{"path": "a.txt", "kind": "file", "size": 4}]
            assert await call(client, "read_file", conversation=id, path="a.txt", at=at) == {"text": "one\n"}
            changes = await call(client, "diff_files", conversation=id, start=at, own=True)
            assert (changes["files"][0]["lines_added"], "+two" in changes["patch"]) == (1, True)
            assert (await call(client, "restore_files", conversation=id, at=at))["files"][0]["change"] == "changed"
            assert await call(client, "read_file", conversation=id, path="a.txt") == {"text": "one\n"}
            await call(client, "restore_files", conversation=id, redo=True)
            fork = await call(
                client, "fork_conversation", conversation=id, at=at, workspace="copy", message="better", run=True
            )
            assert await call(client, "read_file", conversation=fork["id"], path="a.txt", at=at) == {"text": "one\n"}
            applied = await call(client, "apply_files", conversation=id, source=fork["id"], conflicts="force")
            assert [item["path"] for item in applied["files"]] == ["a.txt"]
            assert await call(client, "read_file", conversation=id, path="a.txt") == {"text": "better\n"}
            assert (await client.call_tool("restore_files", {"conversation": id})).is_error
        async with connect(server, reader.text) as client:
            assert (await client.call_tool("list_files", {"conversation": id})).is_error, "it lacks the scope files"
