"""The skills that come with bough: found last, free of cost until they are called, in the wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from bough.skills import SkillRegistry, TriggerIndex, activate, read_skill
from bough.skills.find.places import BUILTIN

REPOSITORY = Path(__file__).parents[3]


def test_each_loads_without_a_diagnostic_and_carries_no_code() -> None:
    for file in BUILTIN.iterdir():
        skill = read_skill(file)
        assert (skill.name, skill.diagnostics, skill.mcp_tools, skill.hooks) == (file.stem, (), {}, False)


def test_it_is_called_by_a_person_and_asks_for_what_it_needs(tmp_path: Path) -> None:
    registry = SkillRegistry.open(tmp_path, home=tmp_path / "home")
    skill = registry.get("write-a-skill")
    assert (skill.scope, skill.kind, registry.list_catalogued()) == ("builtin", "task", [])

    index = TriggerIndex(registry.list_all())
    assert index.match("write a skill") == []
    [match] = index.match("/write-a-skill one that counts lines")
    assert "Write a skill for this: one that counts lines" in activate(skill, match.inputs).rendered
    [bare] = index.match("/write-a-skill")
    assert bare.missing == ("purpose",)


def test_any_other_of_its_name_wins(tmp_path: Path) -> None:
    file = tmp_path / "home" / "skills" / "write-a-skill" / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: write-a-skill\ndescription: Mine.\n---\nMine.\n")
    registry = SkillRegistry.open(tmp_path, home=tmp_path / "home")
    assert (registry.get("write-a-skill").description, registry.metadata("write-a-skill").scope) == ("Mine.", "user")


def test_the_wheel_brings_them_along(tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    built = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split()[-1]
    with zipfile.ZipFile(tmp_path / built) as wheel:
        wheel.extractall(tmp_path / "installed")
    show = "import sys; from bough.cli.main import run; sys.exit(run(['skills', 'show', 'write-a-skill', '--json']))"
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-c", show]
    told = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    shown = json.loads(told)["data"]
    assert shown["scope"] == "builtin"
    assert Path(shown["path"]).is_relative_to(tmp_path / "installed")
