"""Names of skills in letters of any script: the same ones are valid in a project and in an installation."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

_SKILL = "---\nname: {0}\ndescription: Measures {0}.\n---\nMeasure.\n"
_SCRIPT = "print('measured')\n"


def _write(person: Person, folder: str, name: str) -> None:
    person.write({f"{folder}/SKILL.md": _SKILL.format(name), f"{folder}/scripts/measure.py": _SCRIPT})


@pytest.mark.slow
def test_a_name_of_unicode_letters_is_installed_used_and_removed(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    decomposed = unicodedata.normalize("NFD", "größe-1")
    assert decomposed != "größe-1"
    _write(person, f"source/{decomposed}", decomposed)
    _write(person, "source/измерение", "измерение")
    added = person.bough("skills", "add", person.folder / "source", "--yes")
    assert "größe-1" in added.stdout, added
    assert "измерение" in added.stdout, added
    for name in ("größe-1", "измерение"):
        assert person.bough("skills", "run", name, "measure.py").stdout == "measured\n"
    person.bough("skills", "lock", "--verify")
    model = openai_server("first")
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    person.bough("run", "/größe-1 please")
    assert "Measure." in str(model.received[0].body)
    person.bough("skills", "update")
    person.bough("skills", "remove", "größe-1")
    assert "größe-1" not in person.bough("skills", "list").stdout

    assert person.bough("skills", "new", "länge", "--description", "Measures lengths.").code == 0


@pytest.mark.parametrize("name", ["ｇｒｅｅｔ", "Größe", "gr\u200beet", "-größe", "größe--1", "x²"])
def test_other_names_are_not_installed(person: Person, name: str) -> None:
    _write(person, "source/skill", name)
    refused = person.bough("skills", "add", person.folder / "source", "--yes", code=2)
    assert "invalid skill name" in refused.output, refused
