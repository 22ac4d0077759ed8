"""The allow-list: entries of skills and agents, and what two lists allow together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import AllowList, ToolRequest, allow_list_from_json

CALLS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("Read", "read_file", {"path": "/anything"}, True),
    ("Read", "write_file", {"path": "a"}, False),
    ("read_file", "read_file", {"path": "a"}, True),
    ("*", "anything", {}, True),
    ("mcp_*", "mcp_search", {"q": "x"}, True),
    ("Bash", "run_command", {"command": "rm -rf /"}, True),
    ("Bash(*)", "run_command", {"command": "rm -rf /"}, True),
    ("Bash(git:*)", "run_command", {"command": "git status"}, True),
    ("Bash(git:*)", "run_command", {"command": "git"}, True),
    ("Bash(git:*)", "run_command", {"command": ["git", "status"]}, True),
    ("Bash(git:*)", "run_command", {"command": "gitevil"}, False),
    ("Bash(git:*)", "run_command", {"command": "git status; rm x"}, False),
    ("Bash(git:*)", "run_command", {"command": "git log $(rm x)"}, False),
    ("Bash(git:*)", "run_command", {"command": "git log | sh"}, False),
    ("Bash(git:*)", "run_command", {"command": "git log > x"}, False),
    ("Bash(git:*)", "run_command", {"command": "GIT_SSH_COMMAND=x git fetch"}, False),
    ("Bash(git:*)", "run_command", {"command": "git() { rm x; }; git"}, False),
    ("Bash(git:*)", "run_command", {"command": "$X git"}, False),
    ("Bash(git:*)", "run_command", {"command": "git 'unterminated"}, False),
    ("Bash(git:*)", "run_command", {"command": ""}, False),
    ("Bash(git:*)", "run_command", {}, False),
    ("Bash(git:*)", "run_command", {"command": "git status", "cmd": "rm x"}, False),
    ("Bash(git:*) Bash(ls:*)", "run_command", {"command": "git status && ls -la"}, True),
    ("Write(out/*)", "write_file", {"path": "out/a.txt"}, True),
    ("Write(out/*)", "write_file", {"path": "./out/a.txt"}, True),
    ("Write(out/*)", "write_file", {"path": "out/../secret"}, False),
    ("Write(out/*)", "write_file", {"path": "/etc/out/x"}, False),
    ("Write(out/*)", "write_file", {"path": "out/a", "target": "/etc/x"}, False),
    ("", "read_file", {"path": "a"}, False),
]


@pytest.mark.parametrize(
    ("entries", "tool", "arguments", "expected"), CALLS, ids=[f"{c[0]}: {c[1]} {c[2]}" for c in CALLS]
)
def test_what_an_entry_permits(
    entries: str, tool: str, arguments: dict[str, Any], expected: bool, request_of: Callable[..., ToolRequest]
) -> None:
    assert AllowList.of(entries).permits(request_of(tool, **arguments)) is expected


def test_no_list_permits_everything_and_two_lists_what_both_do(request_of: Callable[..., ToolRequest]) -> None:
    read, write = request_of("read_file", path="a"), request_of("write_file", path="a")
    assert AllowList().permits(read)
    both = AllowList.of("Read Write").narrow(AllowList.of("Read"))
    assert both.permits(read)
    assert not both.permits(write)
    assert not both.narrow(AllowList.of("Write")).permits(read)
    assert AllowList().narrow(both) == both


def test_lists_come_back_from_their_json() -> None:
    allowed = AllowList.of("Bash(git:*)", "Read").narrow(AllowList.of("Read"))
    assert allow_list_from_json(allowed.to_json()) == allowed
    assert allow_list_from_json(None) == AllowList()
    for wrong in ("Read", ["Read"], [["Read", 3]], {}, 3):
        with pytest.raises(InvalidInput):
            allow_list_from_json(wrong)
