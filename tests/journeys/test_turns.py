"""Turns at the command line: listed, and said again in a fork with the recorded results of tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import Answer, OpenAIServer, ServerCall


def write(path: str) -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": path, "content": "x"}),))


@pytest.fixture
def source(person: Person, openai_server: Callable[..., OpenAIServer]) -> str:
    """The id of a conversation of two turns, the second of which wrote a file."""
    answers = ("hello", write("a.txt"), "written", write("a.txt"), "again", write("b.txt"), "refused", "other")
    model = openai_server(*answers)
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    person.bough("run", "hi", "--policy", "allow")
    person.bough("resume", "-", "write\na.txt, please", "--policy", "allow")
    return person.bough("conv", "list", "--json").json()["conversations"][0]["id"]


def test_turns_are_listed_one_a_line_and_as_json(person: Person, source: str) -> None:
    heading, first, second = person.bough("conv", "turns", source).stdout.splitlines()
    assert heading.split() == ["turn", "message", "calls", "answer", "usage", "files"]
    assert first.split()[:4] == ["1", "hi", "0", "hello"]
    assert "write a.txt, please" in second and second.endswith("a.txt")
    data = person.bough("conv", "turns", source, "--json").json()
    assert [(turn["number"], turn["output"], turn["files"]) for turn in data["turns"]] == [
        (1, "hello", []),
        (2, "written", ["a.txt"]),
    ]
    assert [(call["tool"], call["ended"]) for call in data["turns"][1]["calls"]] == [("write_file", "ToolReturned")]
    assert data["turns"][1]["message"]["content"] == [{"type": "text", "text": "write\na.txt, please"}]
    cut = data["turns"][0]["stop"]
    assert len(person.bough("conv", "turns", f"{source}@{cut}", "--json").json()["turns"]) == 1
    assert person.bough("conv", "turns", f"{source}@0").stdout == "nothing was said yet\n"


def test_a_turn_is_said_again_with_recorded_results(person: Person, source: str) -> None:
    (person.folder / "a.txt").unlink()
    output = person.bough("fork", source, "--turn", "2", "--repeat", "--tools", "recorded").output
    assert "write" in output and "again" in output
    assert not (person.folder / "a.txt").exists(), "the result came from the log"
    fork, _ = person.bough("conv", "list", "--json").json()["conversations"]
    assert fork["forked_from"] == source
    shared, repeated = person.bough("conv", "turns", fork["id"], "--json").json()["turns"]
    assert (shared["output"], repeated["message"]["content"][0]["text"]) == ("hello", "write\na.txt, please")
    assert repeated["calls"][0]["by"].startswith("recorded:")

    refused = person.bough("fork", source, "--turn", "2", "--repeat", "--tools", "recorded")
    assert "refused" in refused.stdout and not (person.folder / "b.txt").exists()
    person.bough("fork", source, "another way", "--turn", "1", "--tools", "recorded-or-run")
    turns = person.bough("conv", "turns", "-", "--json").json()["turns"]
    assert [turn["output"] for turn in turns] == ["hello", "other"]

    kept = person.bough("fork", source, "--turn", "1", "--json").json()["conversation"]
    assert kept["forked_at"] == fork["forked_at"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-@1", "--turn", "1"], "both @1 and --turn 1"),
        (["-", "--repeat"], "--repeat needs the number of a turn"),
        (["-", "--turn", "0", "--repeat"], "--repeat needs the number of a turn"),
        (["-", "again", "--turn", "1", "--repeat"], "both a prompt and --repeat"),
        (["-", "--turn", "3"], "no turn 3"),
        (["-", "--turn", "3", "--repeat"], "no turn 3: the conversation has 2"),
        (["-", "--turn", "1", "--tools", "none"], "invalid value of tools"),
    ],
)
def test_options_that_do_not_fit_fork_nothing(person: Person, source: str, options: list[str], says: str) -> None:
    assert says in person.bough("fork", *options, code=2).stderr
    assert len(person.bough("conv", "list", "--json").json()["conversations"]) == 1
