"""What messages and documentation tell people to type exists: commands, options, settings and make targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from bough.cli.app import build
from bough.conversation import Pending, WorkspacePolicy
from bough.errors import BoughError
from bough.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FILES = sorted((ROOT / "src" / "bough").rglob("*.py"))
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
OF_SCRIPTS = {"--name"}
"""Arguments of a skill's script, which a hint shows as an example."""
OF_OTHERS = {"--large", "--soak", "--page", "--git-dir", "--sbom"}
"""Options of the benchmarks, of git and of `make release-check`."""
NO_SETTINGS = {
    "BOUGH_ADVISORIES",
    "BOUGH_API_KEY",
    "BOUGH_CONFIG",
    "BOUGH_DEBUG",
    "BOUGH_LOG_JSON",
    "BOUGH_PLAIN",
    "BOUGH_RUNS",
    "BOUGH_SECRET_KEY",
    "BOUGH_SERVER",
    "BOUGH_TEST_POSTGRES",
}
"""Variables that are read where they are needed."""

FILLED_IN = "abcd1234"

Place = tuple[str, str]
"""File and line, and a text found there."""


def texts(node: ast.AST) -> Iterator[ast.expr]:
    """The strings under a node, an f-string as a whole."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            yield node
        case _:
            for child in ast.iter_child_nodes(node):
                yield from texts(child)


def plain(node: ast.expr) -> str:
    """The text of a string; what is filled in becomes `FILLED_IN`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def found(path: Path, tree: ast.AST) -> Iterator[Place]:
    where = path.relative_to(ROOT)
    for node in texts(tree):
        yield f"{where}:{node.lineno}", plain(node)


def errors() -> set[str]:
    names, waiting = set[str](), [BoughError]
    while waiting:
        kind = waiting.pop()
        names.add(kind.__name__)
        waiting += kind.__subclasses__()
    return names


TREES = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
STRINGS = [place for path, tree in TREES.items() for place in found(path, tree)]


def told() -> Iterator[Place]:
    """What errors say, and what is said to come next."""
    kinds = errors()
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in kinds:
                    yield from found(path, node)
                case ast.keyword(arg="hint" | "next"):
                    yield from found(path, node.value)
                case _:
                    pass


def commands() -> Iterator[Place]:
    for place, text in STRINGS:
        for match in re.findall(r"`(bough(?: [^`]*)?)`", text):
            yield place, match
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "next":
                yield from ((place, text) for place, text in found(path, node.value) if text.startswith("bough"))


ROOT_COMMAND: Any = typer.main.get_command(build())


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def every_option(command: Any) -> set[str]:
    return options(command).union(*(every_option(each) for each in getattr(command, "commands", {}).values()))


def wrong_in(text: str) -> str:
    """What of a command line there is not; empty for nothing. `a|b` stands for two commands."""
    command: Any = ROOT_COMMAND
    words = text.split()[1:]
    for place, word in enumerate(words):
        if "|" in word and getattr(command, "commands", {}):
            each = (wrong_in(" ".join(["bough", *words[:place], name])) for name in word.split("|"))
            return next(filter(None, each), "")
        if word.startswith("-") and len(word) > 1:
            listing = getattr(command, "commands", {}).get("list", command)
            if word.split("=")[0] not in options(command) | options(listing):
                return f"no option {word}"
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif getattr(command, "commands", {}) and (command is ROOT_COMMAND or word.islower()):
            return f"no command {word}"
    return ""


def in_pages() -> Iterator[Place]:
    """What stands in code style in the documentation, outside of blocks."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        yield from ((str(page.relative_to(ROOT)), code) for code in re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("bough conv show X --full", ""),
        ("bough conv --limit 5", ""),
        ("bough conv show --bundle X", "no option --bundle"),
        ("bough conversation", "no command conversation"),
        ("bough resume -", ""),
        ("bough conv list|tail ID", ""),
        ("bough conv list|tails ID", "no command tails"),
    ],
)
def test_a_wrong_command_is_seen(text: str, wrong: str) -> None:
    assert wrong_in(text) == wrong


def test_every_command_that_is_named_exists_with_its_options() -> None:
    named = sorted(set(commands()))
    assert len(named) > 40, "the source names many; the search has gone wrong"
    assert [(place, text, wrong) for place, text in named if (wrong := wrong_in(text))] == []


def test_every_option_that_an_error_names_exists() -> None:
    known = every_option(ROOT_COMMAND) | OF_SCRIPTS
    named = [(place, option) for place, text in told() for option in OPTION.findall(text)]
    assert len(named) > 15
    assert [each for each in named if each[1] not in known] == []


def test_every_variable_that_is_named_is_read() -> None:
    known = {f"BOUGH_{field.name.upper()}" for field in fields(Settings)} | NO_SETTINGS
    named = {(place, name) for place, text in told() for name in re.findall(r"BOUGH_[A-Z_]*[A-Z]", text)}
    assert named
    assert [each for each in sorted(named) if each[1] not in known] == []


def test_every_way_to_fork_that_is_named_is_one() -> None:
    ways = {"workspace": set(get_args(WorkspacePolicy)), "pending": set(get_args(Pending))}
    named = {(place, *way) for place, text in told() for way in re.findall(r"\b(workspace|pending)=(\w+)", text)}
    assert len(named) > 3
    assert [each for each in sorted(named) if each[2] not in ways[each[1]] | {FILLED_IN}] == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = [(place, name) for place, text in STRINGS for name in re.findall(r"`make ([a-z]+)", text)]
    assert [each for each in named if each[1] not in targets] == []


def test_every_command_and_option_in_the_documentation_exists() -> None:
    said = [(page, code.replace("\\|", "|")) for page, code in in_pages()]
    wrong = [(page, code, wrong_in(code)) for page, code in said if code.startswith("bough ") and wrong_in(code)]
    assert wrong == []
    known = every_option(ROOT_COMMAND) | {"--version"} | OF_OTHERS
    named = [(page, option) for page, code in said for option in OPTION.findall(code)]
    assert len(named) > 20
    assert [each for each in named if each[1] not in known] == []


def test_every_variable_in_the_documentation_is_read() -> None:
    known = {f"BOUGH_{field.name.upper()}" for field in fields(Settings)} | NO_SETTINGS
    named = [(page, name) for page, code in in_pages() for name in re.findall(r"BOUGH_[A-Z_]*[A-Z]", code)]
    assert named
    assert [each for each in named if each[1] not in known] == []
