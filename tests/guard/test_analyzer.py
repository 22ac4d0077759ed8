"""The rule analyzer on whole tool calls: tools, paths, commands, secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import Assessment, Risk, RuleAnalyzer, ToolRequest, analyzer_from_json

pytestmark = pytest.mark.anyio

Make = Callable[..., ToolRequest]

CALLS: list[tuple[Risk, str, dict[str, Any]]] = [
    (Risk.LOW, "list_skills", {}),
    (Risk.LOW, "load_skill", {"skill_name": "x"}),
    (Risk.LOW, "load_skill_resource", {"skill_name": "x", "path": "references/a.md"}),
    (Risk.LOW, "search_skills", {"query": "csv"}),
    (Risk.LOW, "read_file", {"path": "a.txt"}),
    (Risk.LOW, "Read", {"file_path": "src/main.py"}),
    (Risk.LOW, "search_files", {"pattern": "/etc/passwd", "path": "src"}),
    (Risk.LOW, "run_command", {"command": "ls -la"}),
    (Risk.LOW, "run_command", {"command": ["grep", "-rn", "a; rm -rf /", "src"]}),
    (Risk.MEDIUM, "run_skill_script", {"skill_name": "x", "script": "a.py", "args": ["--all"]}),
    (Risk.MEDIUM, "read_file", {"path": "/etc/hostname"}),
    (Risk.MEDIUM, "read_file", {"path": "../outside.txt"}),
    (Risk.MEDIUM, "read_file", {"path": "door"}),
    (Risk.MEDIUM, "list_files", {"directory": "~"}),
    (Risk.MEDIUM, "write_file", {"path": "new.txt", "content": "x"}),
    (Risk.MEDIUM, "edit_file", {"path": "a.txt", "old": "a", "new": "b"}),
    (Risk.MEDIUM, "web_fetch", {"url": "https://example.org"}),
    (Risk.HIGH, "write_file", {"path": "../outside.txt", "content": "x"}),
    (Risk.HIGH, "write_file", {"path": "door", "content": "x"}),
    (Risk.HIGH, "write_file", {"path": "src/../.git/hooks/pre-commit", "content": "x"}),
    (Risk.HIGH, "write_file", {"path": ".claude/settings.json", "content": "{}"}),
    (Risk.HIGH, "read_file", {"path": "~/.ssh/id_ed25519"}),
    (Risk.HIGH, "run_command", {"command": "rm -rf build"}),
    (Risk.HIGH, "run_command", {"command": ["rm", "-rf", "build"]}),
    (Risk.HIGH, "run_command", {"cmd": "ls", "cwd": "/etc"}),
    (Risk.HIGH, "some_mcp_tool", {"command": "rm -rf build"}),
    (Risk.HIGH, "some_mcp_tool", {"path": "/etc/x"}),
    (Risk.UNKNOWN, "some_mcp_tool", {"text": "hello"}),
    (Risk.UNKNOWN, "some_mcp_tool", {"command": "ls"}),
    (Risk.UNKNOWN, "run_command", {}),
    (Risk.UNKNOWN, "run_command", {"command": {"x": 1}}),
    (Risk.UNKNOWN, "run_command", {"command": "frobnicate"}),
    (Risk.UNKNOWN, "", {}),
]


@pytest.mark.parametrize(("risk", "tool", "arguments"), CALLS, ids=[f"{tool} {a}" for _, tool, a in CALLS])
async def test_a_call_has_the_risk_in_the_table(
    risk: Risk, tool: str, arguments: dict[str, Any], request_of: Make
) -> None:
    found = await RuleAnalyzer().analyze(request_of(tool, **arguments))
    assert found.risk is risk, found.findings


SECRETS = [
    "AKIA" + "A1B2" * 4,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 20,
    "glpat-" + "a1B2" * 5,
    "sk-ant-" + "a1B2" * 10,
    "sk-proj-" + "a1B2" * 10,
    "AIza" + "a" * 35,
    "xoxb-" + "1234567890-abc",
    "-----BEGIN RSA PRIVATE KEY-----\nMII",
    "eyJ" + "a" * 12 + ".eyJ" + "b" * 12 + "." + "c" * 12,
    "Authorization: Bearer " + "a1B2" * 5,
    "https://user:hunter22@example.org/x",
]


@pytest.mark.parametrize("secret", SECRETS)
async def test_a_secret_anywhere_in_the_arguments_is_high_and_not_repeated(secret: str, request_of: Make) -> None:
    call = request_of("load_skill", skill_name="x", nested={"list": [1, {"deep": f"before {secret} after"}]})
    found = await RuleAnalyzer().analyze(call)
    assert found.risk is Risk.HIGH
    assert secret not in str(found), "a reason goes into the log and to the model"


async def test_ordinary_long_words_are_no_secrets(request_of: Make) -> None:
    text = "risk-assessment-of-the-whole-programme, https://example.org:8080/a@b, sk-short, " + "ab" * 40
    assert (await RuleAnalyzer().analyze(request_of("load_skill", text=text))).risk is Risk.LOW


async def test_own_tools_come_before_the_built_in_rules(request_of: Make) -> None:
    analyzer = RuleAnalyzer({"weather": Risk.LOW, "read_file": Risk.HIGH}, shells=frozenset({"remote"}))
    assert (await analyzer.analyze(request_of("weather", city="Rome"))).risk is Risk.LOW
    assert (await analyzer.analyze(request_of("read_file", path="a.txt"))).risk is Risk.HIGH
    assert (await analyzer.analyze(request_of("remote", command="ls"))).risk is Risk.LOW
    again = analyzer_from_json(analyzer.to_json())
    assert again.to_json() == analyzer.to_json()
    assert again.assess(request_of("weather")) == analyzer.assess(request_of("weather"))


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        {},
        {"kind": "Model"},
        {"kind": "RuleAnalyzer", "risks": {"x": "LOWEST"}},
        {"kind": "RuleAnalyzer", "risks": 1},
    ],
)
def test_json_that_is_no_analyzer_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        analyzer_from_json(value)


async def test_the_same_call_has_the_same_assessment(request_of: Make) -> None:
    call = request_of("run_command", command="rm -rf build; curl x | sh; cat ../y")
    first = await RuleAnalyzer().analyze(call)
    assert isinstance(first, Assessment)
    assert first == await RuleAnalyzer().analyze(call)
