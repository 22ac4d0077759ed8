"""Words and arguments in a message: what a planner that cannot see the disk takes for a path, and what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.agents.models.planner.prompt import read_command, read_prompt


@pytest.mark.parametrize(
    ("message", "args"),
    [
        ("profile sales.csv.", ["sales.csv"]),
        ("profile sales.csv, then data/b.csv!", ["sales.csv", "data/b.csv"]),
        ("count a.md,b.md;c.md", ["a.md", "b.md", "c.md"]),
        ("count \"my file.txt\" and 'other file.txt'", ["my file.txt", "other file.txt"]),
        ("count “typographic quotes.txt”", ["typographic quotes.txt"]),
        ("the columns of `sales.csv`", ["sales.csv"]),
        ("sales.csv's columns, and sales.csv’s rows", ["sales.csv"]),
        ("don't count what isn't there in notes.md", ["notes.md"]),
        ("check (docs/guide.md) and <notes/>", ["docs/guide.md", "notes/"]),
        ("check ./docs and ../other and ~/notes", ["./docs", "../other", "~/notes"]),
        ("check links in .", ["."]),
        ("check links in the docs folder", ["docs"]),
        ("check links in folder docs and the directory notes", ["docs", "notes"]),
        ("check links in the current directory", ["."]),
        ("check links in the docs/ folder", ["docs/"]),
        ("are links in this folder broken? And in the folder notes?", [".", "notes"]),
        ("are the links in the folder broken links", []),
        ("check the folder docs for links", ["docs"]),
        ("check this folder, the whole folder and every folder", ["."]),
        ("fetch https://example.org/a?b=c,d#e.", ["https://example.org/a?b=c,d#e"]),
        ("count README, LICENSE and the Makefile", ["README", "LICENSE", "Makefile"]),
        ("what does .gitignore hold", [".gitignore"]),
        (r"profile C:\data\sales.csv", [r"C:\data\sales.csv"]),
        ("profile Übersicht.csv", ["Übersicht.csv"]),
        ("e.g. words and/or lines, i.e. 24/7 or 3.5 % at 10.30 p.m. in the U.S.", []),
        ("mail bob@example.com", []),
        ("wait ... what?", []),
        ("count sales.csv and sales.csv again", ["sales.csv"]),
    ],
)
def test_arguments_are_quotations_paths_and_file_names_in_order(message: str, args: list[str]) -> None:
    assert list(read_prompt(message).args) == args


def test_words_leave_out_arguments_and_stop_words_and_have_one_spelling() -> None:
    prompt = read_prompt("Could you please SUMMARISE and analyse the commits in notes/words.md?")
    assert prompt.words == ("summarize", "analyze", "commits")
    assert prompt.strong == ("commits",)
    assert prompt.kinds == ("markdown",)
    assert prompt.echoed == ("notes", "words", "md")


@pytest.mark.parametrize(
    ("message", "name", "args"),
    [
        ("/word-count README.md", "word-count", ("README.md",)),
        ("  /word-count 'a b' c\\ d --top 5\n", "word-count", ("a b", "c d", "--top", "5")),
        ("/word-count", "word-count", ()),
    ],
)
def test_a_command_is_split_as_a_shell_would(message: str, name: str, args: tuple[str, ...]) -> None:
    command = read_command(message)
    assert command is not None
    assert (command.name, command.args, command.error) == (name, args, "")


@pytest.mark.parametrize("message", ["/etc/passwd has words", "count /word-count", "//x y", "/", ""])
def test_a_path_or_a_slash_inside_a_message_is_no_command(message: str) -> None:
    assert read_command(message) is None


@given(st.text())
def test_any_text_is_read_and_every_argument_is_in_it(message: str) -> None:
    read_command(message)
    prompt = read_prompt(message)
    assert all(arg in message or arg == "." for arg in prompt.args)
    assert all(word == word.casefold() for word in prompt.words)


@pytest.mark.parametrize(
    ("message", "args", "options"),
    [
        ("count words in a.md", ["a.md"], []),
        ("count words --in a.md", [], ["--in", "a.md"]),
        ("check a.md --check", ["a.md"], ["--check"]),
        ("check a.md", ["a.md"], []),
        ("the top three of a.csv with a delimiter of ';'", ["a.csv"], ["--top", "3", "--delimiter", ";"]),
        ("the 5 most frequent in a.csv since last week", ["a.csv"], ["--since", "last week", "--top", "5"]),
        ("in the past two months", [], ["--since", "2 months ago"]),
        ("commits of the last week", [], ["--since", "1 week ago"]),
    ],
)
def test_documented_options_are_taken_in_the_words_that_people_have_for_them(
    message: str, args: list[str], options: list[str]
) -> None:
    documented = {"in": True, "check": False, "top": True, "delimiter": True, "since": True}
    prompt = read_prompt(message, documented)
    assert (list(prompt.args), sorted(prompt.options)) == (args, sorted(options))
    assert not read_prompt(message).options
