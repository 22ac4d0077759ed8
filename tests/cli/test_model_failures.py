"""What a person sees of a model's failures, and how a conversation with a wrong address is repaired."""

from __future__ import annotations

import pytest

from bough.agents.spec import AgentSpec
from bough.cli.describe import retry_line, thinking_line, tool_line
from bough.cli.target import describe_new_address, find_new_address
from bough.cli.turns.confirm import parse_decision
from bough.errors import InvalidInput


def test_a_repeat_says_when_which_and_why() -> None:
    event = {"attempt": 1, "attempts": 6, "status": 429, "error": "e", "wait_seconds": 4.0, "model": "a"}
    assert retry_line(event).plain.strip() == "retrying in 4 s (2 of 6): 429 rate limited"
    changed = event | {"next_model": "openai:b"}
    assert retry_line(changed).plain.strip() == "using openai:b instead of a: 429 rate limited"


def test_a_tool_call_is_one_line_with_its_subject_and_size() -> None:
    event = {"kind": "ToolReturned", "tool": "read_file", "result": "x\n" * 120, "duration_seconds": 0.1}
    assert tool_line(event, {"path": "src/app.py"}).plain.strip() == "✓ read_file src/app.py (120 lines)  0.10 s"
    failed = {"kind": "ToolFailed", "tool": "read_file", "error": "no such file"}
    assert tool_line(failed, None).plain.strip() == "✗ read_file  no such file"


def test_thinking_is_folded() -> None:
    event = {"kind": "ModelResponded", "response": {"parts": [{"part_kind": "thinking", "content": "so it is"}]}}
    shown = thinking_line(event)
    assert shown is not None and shown.plain.strip() == "thought  so it is (3 words)"
    assert thinking_line({"kind": "ModelResponded", "response": {"parts": []}}) is None


@pytest.mark.parametrize("answer", ["y", "YES", "n", "no", "n not that one", "a", "always"])
def test_what_decides(answer: str) -> None:
    assert parse_decision(answer) is not None


@pytest.mark.parametrize("answer", ["yy", "u", "no way", "y please", "nope", "use another name"])
def test_a_typo_decides_nothing(answer: str) -> None:
    assert parse_decision(answer) is None


def test_an_address_moves_only_openai_models_and_only_when_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUGH_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    agent = AgentSpec(model="openai:a", base_url="http://old/v1")
    assert find_new_address(agent, None, None) is None
    assert find_new_address(agent, None, "http://old/v1") is None
    assert find_new_address(agent, None, "http://new/v1") == "http://new/v1"
    assert "OPENAI_API_KEY is sent there" in describe_new_address(agent, "http://new/v1")
    monkeypatch.setenv("BOUGH_BASE_URL", "http://env/v1")
    assert find_new_address(agent, None, None) == "http://env/v1"
    assert find_new_address(AgentSpec(model="offline"), None, None) is None
    with pytest.raises(InvalidInput, match="base-url"):
        find_new_address(AgentSpec(model="offline"), None, "http://new/v1")
