"""A library of skill folders behind the skill tools' contract, served by a plain PydanticAI agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model

WORDS = """\
# Word count

Run `scripts/count.py FILE...`; it prints one line a file.
"""

COUNT = """\
import sys
if len(sys.argv) < 2:
    sys.exit("usage: count.py FILE...")
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        print(f"{name}: {len(file.read().split())} words")
"""

CSV = """\
# CSV profile

## Profile

To profile the columns of a table run `scripts/profile.py FILE`.

## Head

To see the first rows of a table run `scripts/head.py FILE`.
"""

PROFILE = """\
import csv, sys
with open(sys.argv[1], newline="") as file:
    rows = list(csv.DictReader(file))
print(f"profile of {sys.argv[1]}: {len(rows)} rows, columns {', '.join(rows[0])}")
"""

HEAD = """\
import itertools, sys
with open(sys.argv[1]) as file:
    sys.stdout.writelines(itertools.islice(file, 2))
"""

STYLE = """\
# House style

Write short sentences.

## Titles

Headings and titles use sentence case.

## Dates

Dates are written as 20 November 2026.
"""


@dataclass
class Library:
    """Skill folders under `root`, their scripts run as real processes in `workspace`."""

    root: Path
    workspace: Path
    descriptions: dict[str, str] = field(default_factory=dict[str, str])
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, Mapping[str, Any]]])

    def add(self, name: str, description: str, text: str, **scripts: str) -> None:
        folder = self.root / name
        (folder / "scripts").mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
        for script, source in scripts.items():
            (folder / "scripts" / f"{script}.py").write_text(source)
        self.descriptions[name] = description

    def catalog(self) -> str:
        skills = "\n".join(
            f"  <skill><name>{escape(name)}</name><description>{escape(text)}</description></skill>"
            for name, text in self.descriptions.items()
        )
        return f"<available_skills>\n{skills}\n</available_skills>"

    def agent(self, model: Model, *, instructions: str | None = None, without: str = "") -> Agent[None, str]:
        tools: list[Callable[..., Any]] = [self.load_skill, self.run_skill_script]
        kept = [tool for tool in tools if tool.__name__ != without]
        return Agent(model, instructions=self.catalog() if instructions is None else instructions, tools=kept)

    def load_skill(self, skill_name: str) -> str:
        """Load a skill."""
        self.calls.append(("load_skill", {"skill_name": skill_name}))
        folder = self.root / skill_name
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))
        listing = "\n".join(f"  <resource>{name}</resource>" for name in files)
        text = (folder / "SKILL.md").read_text()
        return f'<skill name="{skill_name}">\n{text}\n<skill_resources>\n{listing}\n</skill_resources>\n</skill>'

    def run_skill_script(self, skill_name: str, script_path: str, args: list[str]) -> dict[str, Any]:
        """Run a script."""
        self.calls.append(("run_skill_script", {"skill": skill_name, "script": script_path, "args": args}))
        command = [sys.executable, "-I", str(self.root / skill_name / script_path), *args]
        done = subprocess.run(command, cwd=self.workspace, capture_output=True, text=True, timeout=30, check=False)
        return {
            "status": "success" if done.returncode == 0 else "error",
            "stdout": done.stdout,
            "stderr": done.stderr,
            "exit_code": done.returncode,
            "timed_out": False,
            "output_files": [],
            "error_code": None if done.returncode == 0 else "EXECUTION_ERROR",
            "error": None,
        }


@pytest.fixture
def library(tmp_path: Path) -> Library:
    root, workspace = tmp_path / "skills", tmp_path / "work"
    workspace.mkdir()
    (workspace / "notes.md").write_text("one two three")
    (workspace / "sales.csv").write_text("region,amount\nnorth,10\nsouth,20\n")
    made = Library(root, workspace)
    made.add("word-count", "Counts words in text files. Use when asked how long a text is.", WORDS, count=COUNT)
    made.add("csv-profile", "Profiles CSV files: rows, columns & values.", CSV, profile=PROFILE, head=HEAD)
    made.add("house-style", "The rules of our house style for prose: titles, dates, sentences.", STYLE)
    return made
