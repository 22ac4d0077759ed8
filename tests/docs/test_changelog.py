"""`CHANGELOG.md` stays short: a section for each version, groups in a fixed order, bullets of at most two lines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
GROUPS = ["Added", "Changed", "Removed", "Fixed", "Security"]
MOST_LINES = 220


def test_the_first_section_is_the_version_of_the_package() -> None:
    versions = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert versions[0] == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)


def test_each_version_has_groups_in_order() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        groups = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert groups
        assert groups == [group for group in GROUPS if group in groups], section.partition("\n")[0]


def test_it_stays_short() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > 130] == []
    bullets = re.findall(r"^- .*\n(?:  (?!\|).+\n)*", TEXT, re.MULTILINE)
    assert len(bullets) > 50
    assert [bullet for bullet in bullets if bullet.count("\n") > 2] == []
