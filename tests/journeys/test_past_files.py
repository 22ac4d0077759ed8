"""Journeys: files that an agent removed are in a fork from before, and folders of forks that a person removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import Person
from tests.journeys.test_readme import use_model

from bough.testing import Answer, OpenAIServer, ServerCall

pytestmark = pytest.mark.needs("bubblewrap")

FILES = {"notes/a.txt": "one\n", "notes/deep/b.txt": "two\n", "keep.txt": "three\n"}


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def remove_notes(person: Person, server: OpenAIServer) -> None:
    """Let an agent remove a folder that it should have kept."""
    person.write(FILES)
    use_model(person, server)
    person.bough("run", "tidy up", "--policy", "allow")
    assert not (person.folder / "notes").exists()


def fork_files(person: Person, *args: str) -> tuple[str, Path]:
    """Fork the latest conversation with files of its own; return the fork's id and its folder."""
    lines = person.bough("fork", *args, "--files", "copy", "--json").stdout.splitlines()
    id = json.loads(lines[-1])["data"]["conversation"]["id"]
    return id, person.home / ".bough" / "workspaces" / id


def test_a_fork_from_before_a_removal_has_the_files_and_the_source_stays(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    remove_notes(person, openai_server(Answer(calls=(call,)), "tidy"))
    before = read_tree(person.folder)
    _, folder = fork_files(person, "-@1")
    assert {name: text.encode() for name, text in FILES.items()}.items() <= read_tree(folder).items()
    assert read_tree(person.folder) == before, "the source has not changed by a byte"


def test_a_fork_whose_folder_a_person_removed_says_so_and_is_deleted(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    remove_notes(person, openai_server(Answer(calls=(call,)), "tidy"))
    id, folder = fork_files(person, "-@1")
    shutil.rmtree(folder)
    refused = person.bough("conv", "diff", id, "--files", code=3)
    assert "is not a folder" in refused.stderr
    assert "keep_max_files" not in refused.stderr, "no setting can help"
    deleted = person.bough("conv", "delete", id, "--yes")
    assert "cannot be removed" not in deleted.stderr
