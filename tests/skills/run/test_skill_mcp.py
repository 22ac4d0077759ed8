"""The MCP servers of a skill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.skills import Skill, read_skill
from bough.skills.run.mcp import McpServer, list_servers


def test_frontmatter_and_file_together_with_variables_written_out(tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: kit\ndescription: x\nmcp_tools:\n  mcpServers:\n    local:\n      command: python3\n"
        "      args: ['${SKILL_ROOT}/server.py', --port, 8000]\n      env:\n        KEY: ${KEY}\n---\nx\n"
    )
    remote = {"url": "https://${HOST:-example.org}/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}
    servers = {
        "mcpServers": {"remote": remote, "old": {"type": "sse", "url": "http://x/sse"}, "local": {"command": "no"}}
    }
    (folder / ".mcp.json").write_text(json.dumps(servers))

    found = list_servers(read_skill(folder), {"KEY": "${HOST}"})

    assert found == (
        McpServer(name="local", transport="stdio", command="python3", args=(f"{folder}/server.py", "--port", "8000"),
                  env={"KEY": "${HOST}"}, cwd=str(folder)),
        McpServer(name="old", transport="sse", url="http://x/sse"),
        McpServer(name="remote", transport="http", url="https://example.org/mcp",
                  headers={"Authorization": "Bearer ${HOST}"}),
    )  # fmt: skip


def test_servers_without_the_outer_key_and_none_at_all() -> None:
    [server] = list_servers(Skill(name="s", mcp_tools={"a": {"command": "x"}}), {})
    assert (server.name, server.command, server.cwd) == ("a", "x", None)
    assert list_servers(Skill(name="s"), {}) == ()


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ({"a": {"command": "${MISSING}"}}, "MISSING"),
        ({"a": {}}, "neither"),
        ({"a": "x"}, "mapping"),
        ({"a b": {"command": "x"}}, "name"),
        ({"a": {"command": "x", "args": "y"}}, "list"),
        ({"a": {"command": "x", "env": ["y"]}}, "mapping"),
        ({"a": {"url": "file:///etc/passwd"}}, "address"),
        ({"mcpServers": []}, "mapping"),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_reason(servers: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        list_servers(Skill(name="s", mcp_tools=servers), {})


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("---\nname: x\ndescription: x\n---\nx\n")
    for text in ("{", "[" * 100_000):
        (tmp_path / ".mcp.json").write_text(text)
        with pytest.raises(InvalidInput, match="not valid JSON"):
            list_servers(read_skill(tmp_path), {})
