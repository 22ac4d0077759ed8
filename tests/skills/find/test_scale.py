"""Many skills: what is opened, what is imported, and how much memory is held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_MB = 30


def write_library(root: Path, count: int) -> None:
    """Skills in about the proportions of real ones: most plain, some folded, broken, misnamed or bare."""
    for number in range(count):
        folder = root / f"skill-{number}"
        folder.mkdir(parents=True)
        kind = number % 20
        description = f"Does the thing number {number}, " + "with some words to say when it is to be used, " * 4
        header = {
            0: "",
            1: f"---\nname: skill-{number}\ndescription: Broken: {description}\n---\n",
            2: f"---\nname: skill-{number}\ndescription: >\n  {description}\n---\n",
            3: f"---\nname: other-{number}\ndescription: {description}\n---\n",
        }.get(kind, f"---\nname: skill-{number}\ndescription: {description}\nlicense: MIT\n---\n")
        (folder / "SKILL.md").write_text(header + "# Steps\n\n" + "Do it step by step.\n" * 100)


def run(code: str, *arguments: str) -> dict[str, float]:
    """Run code in a fresh interpreter and return the JSON it prints."""
    command = [sys.executable, "-c", code, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


OPENED = """
import json, sys
from pathlib import Path
from bough.skills.registry import SkillRegistry
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
def discover():
    opened.clear()
    found = SkillRegistry(index=Path(sys.argv[2])).discover([Path(sys.argv[1])])
    return len(found), sum(path.endswith("SKILL.md") for path in opened)
cold, warm = discover(), discover()
(Path(sys.argv[1]) / "skill-5" / "SKILL.md").write_text("---\\nname: skill-5\\ndescription: Changed.\\n---\\n")
print(json.dumps({"cold": cold, "warm": warm, "changed": discover()}))
"""


def test_a_file_is_opened_once_cold_and_only_when_it_changed_after_that(tmp_path: Path) -> None:
    write_library(tmp_path / "library", 60)
    found = run(OPENED, str(tmp_path / "library"), str(tmp_path / "cache"))
    assert found["cold"] == [60, 60]
    assert found["warm"] == [60, 0]
    assert found["changed"] == [60, 1]


IMPORTED = """
import json, sys
from pathlib import Path
from bough.skills import SkillRegistry, TriggerIndex, render_catalog, activate
registry = SkillRegistry.open(Path(sys.argv[1]), home=Path(sys.argv[2]), roots=[Path(sys.argv[3])])
render_catalog(registry.list_catalogued(), budget_tokens=1000)
TriggerIndex(registry.list_all())
heavy = "pydantic pydantic_ai yaml strictyaml re2 ahocorasick_rs sqlite3 asyncio urllib.request".split()
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_plain_skills_import_nothing_heavy(tmp_path: Path) -> None:
    folder = tmp_path / "roots" / "plain"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: plain\ndescription: x\n---\nx\n")
    assert run(IMPORTED, str(tmp_path), str(tmp_path / "home"), str(tmp_path / "roots")) == []


MEMORY = """
import gc, json, resource, sys
from pathlib import Path
import bough.skills.read.yaml_text, bough.skills.find.check, tempfile
from bough.skills.registry import SkillRegistry
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
before = resident()
registry = SkillRegistry(index=Path(sys.argv[2]))
found = registry.discover([Path(sys.argv[1])])
held = resident() - before
print(json.dumps({"found": len(found), "held": held}))
"""

CHECKED = """
import json, sys
from bough.cli.main import run
def peak():  # not ru_maxrss, which begins with what the process that started this one had
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) / 1e3
def check(folder):
    return run(["skills", "check", folder, "--recursive", "--lenient", "--json"])
check(sys.argv[1] + "/skill-1")
before = peak()
code = check(sys.argv[1])
print(json.dumps({"code": code, "grown": peak() - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_ten_thousand_skills_stay_within_their_memory(tmp_path: Path) -> None:
    library = tmp_path / "library"
    write_library(library, 10_000)

    cold = run(MEMORY, str(library), str(tmp_path / "cache"))
    warm = run(MEMORY, str(library), str(tmp_path / "cache"))
    command = [sys.executable, "-c", CHECKED, str(library)]
    _, listing, growth = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    checked = json.loads(listing)["data"]["skills"]

    assert cold["found"] == warm["found"] == len(checked) == 10_000
    assert all(skill["loaded"] for skill in checked) and len({skill["name"] for skill in checked}) == 10_000
    assert sum(any(d["code"] == "yaml-unquoted-colon" for d in s["diagnostics"]) for s in checked) == 500
    grown = json.loads(growth)
    assert grown["code"] == 0
    assert cold["held"] < LIMIT_MB and warm["held"] < LIMIT_MB and grown["grown"] < LIMIT_MB / 3, (cold, warm, grown)
