"""The README's first words are those of the program, its extras those of the package, and it stays short."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_the_first_sentence_has_the_words_of_the_first_screen(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("bough"), "--home", tmp_path]
    screen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    introduction = screen.splitlines()[0].partition(": ")[2]
    assert introduction in " ".join(TEXT.partition("```")[0].split())


def test_the_first_commands_are_those_that_need_nothing() -> None:
    (first, *_) = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert [line.partition("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]


def test_the_table_of_extras_has_those_of_the_package() -> None:
    table = TEXT.partition("| extra | adds |\n")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines()[1:] for name in re.findall(r"`([a-z0-9]+)`", row.split(" | ")[0])]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert sorted(names) == sorted(project["optional-dependencies"])


def test_it_stays_short() -> None:
    assert len(TEXT.splitlines()) < 150
