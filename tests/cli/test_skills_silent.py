"""What a skill's file means and does not say correctly is reported by `bough skills check` and in the log of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FAULTS = {
    "bad-regex": ("triggers: ['re:(']", "trigger-bad-regex", "warning"),
    "empty-regex": ("triggers: ['re:']", "trigger-bad-regex", "warning"),
    "bad-glob": ("globs: ['[b-a].py']", "trigger-bad-glob", "warning"),
    "two-triggers": ("triggers: [zebra]\npaths: ['src/**']", "trigger-both", "warning"),
    "inputs-and-paths": ("inputs: [a]\npaths: ['src/**']", "trigger-both", "warning"),
    "mapping-and-paths": ("trigger: {keywords: [zebra]}\npaths: ['src/**']", "trigger-both", "warning"),
    "mapping-of-both": ("trigger: {keywords: [zebra], globs: ['src/**']}", "trigger-both", "warning"),
    "mapping-and-list": ("trigger: {keywords: [zebra]}\ntriggers: [stripes]", "trigger-both", "warning"),
    "misspelt": ("trigers: [zebra]", "field-misspelt", "warning"),
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """One skill for each fault, one with broken servers, one that uses inputs without declaring them."""
    root = tmp_path / "library"
    for name, (line, _, _) in FAULTS.items():
        write(root / name, line)
    write(root / "bad-servers", "license: MIT")
    (root / "bad-servers" / ".mcp.json").write_text('{"mcpServers": ')
    write(root / "undeclared", "license: MIT", "Greet ${who}; `${code}` and ${HOME} stay.")
    return root


def write(folder: Path, line: str, body: str = "Do it.") -> None:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Does a thing.\n{line}\n---\n{body}\n")


def test_check_reports_each(cli: Any, library: Path) -> None:
    done = cli("skills", "check", "-r", library, "--json")
    assert done.returncode == 0, "warnings are not errors"
    checked = {each["name"]: each["diagnostics"] for each in json.loads(done.stdout)["data"]["skills"]}
    wanted = {name: [(code, severity)] for name, (_, code, severity) in FAULTS.items()}
    wanted |= {"bad-servers": [("mcp-invalid", "warning")], "undeclared": [("input-undeclared", "info")]}
    assert {name: [(each["code"], each["severity"]) for each in notes] for name, notes in checked.items()} == wanted
    assert all(each["message"] and each["fix"] and each["path"] for notes in checked.values() for each in notes)
    assert "`who`" in checked["undeclared"][0]["message"] and "code" not in checked["undeclared"][0]["message"]


def test_a_run_records_each_once(cli: Any, library: Path) -> None:
    assert cli("run", "/bad-servers do it", "--skills", library).returncode == 0
    assert cli("resume", "-", "and again").returncode == 0
    events = cli.data("conv", "show", "-", "--full")["events"]
    skipped = [each["name"] for each in events if each["kind"] == "SkillSkipped"]
    assert sorted(skipped) == sorted(FAULTS)
    errors = [each["message"] for each in events if each["kind"] == "ErrorRaised"]
    assert len(errors) == 2 and all(".mcp.json" in each for each in errors), "each run tries the servers again"
