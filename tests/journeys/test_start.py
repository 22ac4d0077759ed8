"""What somebody does after `pip install bough`, with no key and an empty folder: `bough demo`, `bough init`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.journeys.conftest import Person, Result

ASK = ("run", "how many lines are in AGENTS.md")
COUNTED = "AGENTS.md: 7 lines"


def show(result: Result) -> str:
    return f"{result.code}\n{result.output}"


@pytest.mark.slow
def test_the_demo_runs_skills_forks_and_draws_the_tree(person: Person) -> None:
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:none", "BOUGH_EXECUTOR": "unsafe"}
    result = person.bough("demo")
    assert "sales.csv: 180 rows" in result.stdout
    assert "no such heading" in result.stdout
    assert "508 README.md" in result.stdout
    assert "└─ @1" in result.stdout
    assert result.stderr.count("executor sandbox (") == 3, "settings of the person's own do not apply"
    assert not (person.home / ".bough").exists()

    person.environment = {"BOUGH_HOME": str(person.folder / "bough-demo" / "home")}
    conversations = person.bough("conv", "list", "--json").json()["conversations"]
    assert [conversation["status"] for conversation in conversations] == ["finished"] * 3
    assert "csv-profile" in person.bough("skills").stdout, "what is typed afterwards finds the skills"


@pytest.mark.slow
def test_the_demo_runs_again_in_its_folder_and_keeps_what_is_there(person: Person) -> None:
    person.bough("demo", "x y")
    notes = person.folder / "x y" / "workspace" / "mine.txt"
    notes.write_text("mine")
    second = person.bough("demo", "x y", "--json")
    data = json.loads(second.stdout)["data"]
    assert [step["exit_code"] for step in data["steps"]] == [0] * 7
    assert "180 rows" in data["steps"][1]["stdout"]
    assert (second.stderr, data["home"]) == ("", str(person.folder / "x y" / "home-2"))
    assert notes.read_text() == "mine"
    for home in ("home", "home-2"):
        person.environment["BOUGH_HOME"] = str(person.folder / "x y" / home)
        assert len(person.bough("conv", "list", "--json").json()["conversations"]) == 3


@pytest.mark.parametrize("in_the_way", ["file", "folder", "link"])
def test_the_demo_overwrites_nothing_and_writes_nothing_then(person: Person, tmp_path: Path, in_the_way: str) -> None:
    workspace = person.folder / "demo" / "workspace"
    workspace.mkdir(parents=True)
    if in_the_way == "file":
        (workspace / "README.md").write_text("mine\n")
    elif in_the_way == "folder":
        (workspace / "README.md").mkdir()
    else:
        (workspace / "notes").symlink_to(tmp_path)
    refused = person.bough("demo", "demo", code=7)
    assert "was not written by the demo" in refused.stderr
    assert len(list(workspace.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    assert not (workspace.parent / "home").exists()


@pytest.mark.slow
def test_the_demo_trusts_no_home_and_no_skill_that_it_finds(person: Person) -> None:
    """A cloned folder may hold settings that switch the sandbox off, and skills that fit the demo's prompts."""
    person.write({"demo/home/bough.yaml": "executor: unsafe\n"})
    assert person.bough("demo", "demo").stderr.count("executor sandbox (") == 3
    assert (person.folder / "demo" / "home" / "bough.yaml").read_text() == "executor: unsafe\n"

    skill = "demo/workspace/.agents/skills/profiler"
    person.write(
        {
            f"{skill}/SKILL.md": "---\nname: profiler\ndescription: Profile sales.csv.\n---\n",
            f"{skill}/scripts/x.py": "print('stolen')\n",
        }
    )
    refused = person.bough("demo", "demo", code=4)
    assert "skill 'profiler' contains code that is not trusted" in refused.stderr
    assert "stolen" not in refused.output
    assert "To continue" not in refused.output


@pytest.mark.slow
def test_without_a_sandbox_the_demo_runs_no_script_and_says_so(person: Person) -> None:
    person.write({"broken/sandlock.py": "raise ImportError('hidden')\n", "bin/empty": ""})
    person.environment |= {"PATH": str(person.folder / "bin"), "PYTHONPATH": str(person.folder / "broken")}
    result = person.try_command([sys.executable, "-m", "bough.cli.main", "demo"])
    assert result.code == 6, show(result)
    assert "No sandbox works here, so scripts do not run. The demo shows the rest." in result.stderr
    assert result.stderr.count("executor sandbox (not working") == 1
    assert "180 rows" not in result.stdout
    assert "└─ @1" in result.stdout
    assert "Everything is in bough-demo" in result.stdout


@pytest.mark.slow
def test_an_empty_folder_names_what_to_do_next(person: Person) -> None:
    for result in (person.bough("run", "hello"), person.bough()):
        assert "bough demo" in result.output
        assert "bough init" in result.output
    assert "skills here: 0" in person.bough().stdout
    person.bough("init")
    for result in (person.bough("run", "hello"), person.bough()):
        assert "bough init" not in result.output
    assert "skills here: 1" in person.bough().stdout


def test_a_project_runs_at_once(person: Person) -> None:
    created = person.bough("init", "my project")
    assert "cd 'my project'" in created.stdout
    folder = person.folder / "my project"
    for file in ("AGENTS.md", "agent.yaml", "bough.yaml"):
        assert (folder / file).is_file()
    person.folder = folder
    assert COUNTED in person.bough(*ASK).stdout
    assert COUNTED in person.bough(*ASK, "--agent", "agent.yaml").stdout
    assert person.bough("skills", "check", ".agents/skills/count-lines").code == 0
    assert "withheld" in person.bough("skills", "--json").json()


def test_a_project_replaces_no_file_without_being_told_to(person: Person, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("outside")
    (person.folder / "AGENTS.md").symlink_to(outside)
    refused = person.bough("init", code=7)
    assert "these already exist: AGENTS.md" in refused.stderr
    assert [path.name for path in person.folder.iterdir()] == ["AGENTS.md"]
    person.bough("init", "--force")
    assert outside.read_text() == "outside", "the link is replaced, not followed"
    assert (person.folder / "AGENTS.md").read_text().startswith("# Notes")
    assert COUNTED in person.bough(*ASK).stdout


def test_a_project_s_folder_that_is_a_link_or_the_home_is_refused(person: Person, tmp_path: Path) -> None:
    (person.folder / ".agents").symlink_to(tmp_path)
    assert "is not a folder" in person.bough("init", code=7).stderr
    assert not list(tmp_path.iterdir())
    assert "cannot be your home folder" in person.bough("init", person.home, code=2).stderr
    assert not list(person.home.iterdir())


def test_a_project_trusts_only_what_it_wrote(person: Person) -> None:
    """What a cloned folder holds beside the new skill, or inside of it, stays untrusted."""
    other = ".agents/skills/other"
    person.write(
        {
            f"{other}/SKILL.md": "---\nname: other\ndescription: Do something else entirely.\n---\n",
            f"{other}/scripts/x.py": "",
            "config.yaml": "agents: {}\n",
        }
    )
    person.bough("init")
    assert [skill["name"] for skill in person.bough("skills", "--json").json()["withheld"]] == ["other"]

    person.write({".agents/skills/count-lines/scripts/count.sh": "echo stolen\n"})
    said = person.bough("init", "--force")
    assert "so the skill is not trusted" in said.stdout
    withheld = {skill["name"] for skill in person.bough("skills", "--json").json()["withheld"]}
    assert withheld == {"count-lines", "other"}
