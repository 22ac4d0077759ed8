"""Broken and odd frontmatter: the fields, diagnostics and refusals of each form, as a table that must not change."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bough.skills.model import Diagnostic, Skill
from bough.skills.read.parse import read_head, try_read

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("broken_frontmatter.json").read_text("utf-8"))
NOT_OF_THE_FILE = frozenset({"path", "source", "scope", "loader", "diagnostics"})


def read_forms(root: Path, data: bytes) -> dict[str, Any]:
    """Return the results of reading a skill file leniently, strictly, and for its metadata alone, as JSON."""
    file = root / "my-skill" / "SKILL.md"
    file.parent.mkdir()
    file.write_bytes(data)
    lenient, strict = try_read(file), try_read(file, "strict")
    head = read_head(str(file), "my-skill", source="", scope="code")
    assert head is not None
    assert head.metadata == (lenient.skill and lenient.skill.summary())
    return {
        "skill": None if lenient.skill is None else dump_skill(lenient.skill),
        "diagnostics": dump_diagnostics(lenient.diagnostics),
        "head_diagnostics": dump_diagnostics(head.diagnostics),
        "strict": {"refused": strict.skill is None, "diagnostics": dump_diagnostics(strict.diagnostics)},
    }


def dump_skill(skill: Skill) -> dict[str, Any]:
    """Return the fields that a skill does not leave at their defaults, with the type of its trigger."""
    values = {item.name: getattr(skill, item.name) for item in fields(skill) if item.name not in NOT_OF_THE_FILE}
    values["inputs"] = [[item.name, item.description, item.required, item.default] for item in skill.inputs]
    values["trigger"] = skill.trigger and repr(skill.trigger)
    skipped: tuple[Any, ...] = (None, "", (), [], {})
    return json.loads(json.dumps({name: value for name, value in values.items() if value not in skipped}))


def dump_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> list[list[Any]]:
    """Return code, severity, message, line and fix of each diagnostic."""
    return [list(diagnostic[:5]) for diagnostic in diagnostics]


def test_the_table_has_its_size() -> None:
    assert len({row["case"] for row in ROWS}) == len(ROWS) >= 80


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_a_broken_form_is_read_as_recorded(tmp_path: Path, row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"]) if "hex" in row else row["text"].encode()
    expected = {key: value for key, value in row.items() if key not in ("case", "text", "hex")}

    assert read_forms(tmp_path, data) == expected
