"""What a person does with skills: install them, run their scripts, name them in a prompt, lose their files."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

SKILL = """---
name: greet
description: Greets somebody by name. Use it for greetings.
triggers: [salute]
---
Run scripts/hello.py and read references/words.md.
"""
SCRIPT = "import sys\nprint('hello', *sys.argv[1:])\n"


def _write_source(person: Person, version: str = "one") -> None:
    person.write(
        {
            "source/greet/SKILL.md": SKILL,
            "source/greet/scripts/hello.py": SCRIPT,
            "source/greet/references/words.md": f"words {version}\n",
        }
    )


def _use_model(person: Person, model: OpenAIServer) -> None:
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}


@pytest.mark.slow
def test_an_installed_skill_with_scripts_is_usable(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    _write_source(person)
    person.bough("skills", "add", person.folder / "source", "--yes")
    assert person.bough("skills", "run", "greet", "hello.py", "you").stdout == "hello you\n"
    person.bough("skills", "lock", "--verify")

    model = openai_server("first", "second", "third")
    _use_model(person, model)
    for prompt in ("/greet somebody", "please salute them"):
        person.bough("run", prompt)
    person.bough("chat", input="/greet again\n/exit\n")
    for request in model.received:
        assert "Run scripts/hello.py" in str(request.body), request
        assert "references/words.md" in str(request.body), request

    _write_source(person, "two")
    assert "references/words.md" in person.bough("skills", "update").output
    assert person.bough("skills", "run", "greet", "hello.py", "all").stdout == "hello all\n"
    person.bough("skills", "lock", "--verify")


def test_an_installed_skill_under_another_name_runs(person: Person) -> None:
    _write_source(person)
    person.bough("skills", "add", person.folder / "source/greet", "--as", "welcome", "--yes")
    assert person.bough("skills", "run", "welcome", "hello.py").stdout == "hello\n"


def test_a_list_of_untrusted_skills_does_not_claim_that_there_are_none(person: Person) -> None:
    person.write({".agents/skills/greet/SKILL.md": SKILL, ".agents/skills/greet/scripts/hello.py": SCRIPT})
    listed = person.bough("skills", "list").output
    assert "greet: not trusted" in listed
    assert "no skills found" not in listed


def test_a_branch_with_files_of_its_own(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    _use_model(person, openai_server("first"))
    person.write({"notes.txt": "notes"})
    person.bough("run", "hello")
    person.bough("fork", "-", "--workspace", "elsewhere", code=2)
    branch = person.bough("fork", "-", "--workspace", "copy", "--json").json()["conversation"]
    copy = person.home / ".bough/workspaces" / branch["id"]
    assert (copy / "notes.txt").read_text() == "notes"
