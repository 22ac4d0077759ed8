"""What the documentation shows works: Python blocks run, links resolve, and every command it names exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    """The code blocks of all pages in a language."""
    return [
        pytest.param(found[2], id=f"{page.relative_to(ROOT)}:{page.read_text()[: found.start()].count(chr(10)) + 1}")
        for page in PAGES
        for found in BLOCK.finditer(page.read_text())
        if found[1] == language
    ]


def programs() -> list[object]:
    """The Python blocks of all pages, each with what the page says that it prints; None if it does not say so."""
    return [
        pytest.param(
            match[1], match[2], id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}"
        )
        for page in PAGES
        for match in PROGRAM.finditer(page.read_text())
    ]


@pytest.mark.parametrize(("code", "printed"), programs())
def test_a_python_example_runs_and_prints(code: str, printed: str | None) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if printed is None:
        assert done.stdout.strip()
    else:
        assert done.stdout == printed


def test_the_tour_of_the_command_line_in_the_readme_goes_as_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tour,) = re.findall(r"## On the command line\n.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    activate = ". .venv/bin/activate\n"
    assert activate in tour
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "set -e\n" + tour.replace(activate, "")
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "180 rows, 8 columns" in done.stdout
    assert "word-count" in done.stderr, "the fork has the skills that its source was started with"
    assert "lines words bytes file" in done.stdout
    assert "failed" not in done.stdout
    assert "└─ @1" in done.stdout


@pytest.mark.parametrize("code", blocks("sh"))
def test_a_command_in_an_example_is_one_there_is(code: str) -> None:
    for line in code.splitlines():
        words = line.split("#")[0].split()
        if words[0].startswith('"'):
            continue  # further arguments
        if re.match(r"[A-Z]+=", words[0]) and "bough" not in words:
            continue  # a variable of the shell
        if re.match(r"[A-Z]+=", words[0]):
            words = words[1:]
        if words[0] in (".", "cd", "cp", "curl", "pip", "printf", "python"):
            continue  # of other programs; journeys run them
        if words[0] == "bough":
            verbs = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
            command = [Path(sys.executable).with_name("bough"), *verbs, "--help"]
        else:
            command = ["make", "--dry-run", *words[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)


def test_every_link_in_the_documentation_resolves() -> None:
    check = ROOT / "examples" / "skills" / "link-check" / "scripts" / "check.py"
    done = subprocess.run([sys.executable, check, "--check", *PAGES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_table_of_exit_codes_is_the_one_in_the_code() -> None:
    from bough.errors import OUTCOMES

    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8").partition("## Exit codes\n")[2]
    rows = re.findall(r"^\| (\d+) \| ([a-z][^|]*?) \|$", page, re.MULTILINE)
    assert {outcome.exit_code for outcome in OUTCOMES.values()} | {0} == {int(code) for code, _ in rows}


def test_the_guide_for_workers_stays_short_and_its_folders_exist() -> None:
    guide = (ROOT / "AGENTS.md").read_text()
    assert len(guide.splitlines()) < 80
    for folder in re.findall(r"`((?:src/bough|tests|examples|benchmarks|docs)[\w/]*)`?", guide):
        assert (ROOT / folder).exists(), folder
