"""What `allowed-tools` lets through."""

from __future__ import annotations

import pytest

from bough.skills.read.allowed_tools import allows, parse_allowed_tools


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("Bash(git:*) Bash(jq:*) Read", ("Bash(git:*)", "Bash(jq:*)", "Read")),
        ("Read, Write,Edit", ("Read", "Write", "Edit")),
        (["Bash(git commit:*)", "Read"], ("Bash(git commit:*)", "Read")),
        ("Bash(npm run test:*) Read", ("Bash(npm run test:*)", "Read")),
        ("", ()),
        ([], ()),
        ("null", ()),
        ("Read Read", ("Read",)),
        ("mcp__server__tool", ("mcp__server__tool",)),
    ],
)
def test_entries(value: object, entries: tuple[str, ...]) -> None:
    assert parse_allowed_tools(value) == entries


@pytest.mark.parametrize(
    ("allowed", "tool", "argument", "answer"),
    [
        (None, "Anything", "", True),
        ((), "Read", "", False),
        (("Read",), "Read", "/any", True),
        (("Read",), "Write", "", False),
        (("Read",), "read", "", False),
        (("mcp__kit__*",), "mcp__kit__add", "", True),
        (("mcp__kit__*",), "mcp__other__add", "", False),
        (("Bash(*)",), "Bash", "anything; at all", True),
        (("Bash(git:*)",), "Bash", "git", True),
        (("Bash(git:*)",), "Bash", "git status -s", True),
        (("Bash(git:*)",), "Bash", "gitx", False),
        (("Bash(git:*)",), "Bash", "git status; rm -rf x", False),
        (("Bash(git:*)",), "Bash", "git log && curl x", False),
        (("Bash(git:*)",), "Bash", "git log | sh", False),
        (("Bash(git:*)",), "Bash", "git log $(id)", False),
        (("Bash(git:*)",), "Bash", "git log `id`", False),
        (("Bash(git:*)",), "Bash", "git log > /etc/x", False),
        (("Bash(git:*)",), "Bash", "git log\nrm x", False),
        (("Bash(git:*)",), "Bash", "", False),
        (("Read(src/*)",), "Read", "src/a.py", True),
        (("Read(src/*)",), "Read", "src/../etc/passwd", False),
        (("Read(src/*)",), "Read", "etc/passwd", False),
    ],
)
def test_what_is_allowed(allowed: tuple[str, ...] | None, tool: str, argument: str, answer: bool) -> None:
    assert allows(allowed, tool, argument) is answer
