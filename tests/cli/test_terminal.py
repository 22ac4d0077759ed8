"""On a terminal: colours where they are wanted, lines that fit, nothing that takes the screen over; and chat."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def test_a_terminal_gets_colours_and_lines_that_fit(cli: Any) -> None:
    code, screen = cli.on_terminal("skills", "list", columns=60)
    assert code == 0
    assert "\x1b[" in screen
    assert max(len(line) for line in ESCAPES.sub("", screen).splitlines()) <= 60


@pytest.mark.parametrize("columns", [40, 60])
def test_lists_keep_one_line_for_each_item_on_a_narrow_terminal(cli: Any, columns: int) -> None:
    (cli.folder / "config.yaml").write_text(
        "agents:\n  coordinator-of-everything:\n    description: Plans, delegates and checks what the others do.\n"
        "    model: openai:gpt-5\n"
    )
    assert (
        cli("run", "bake a cake, and then another one, and one more for each of the people that are here").returncode
        == 0
    )
    assert cli("fork", "-").returncode == 0
    assert cli("run", "--detach", "how many words are in README.md, please", "-m", "offline").returncode == 0
    for args, items, always in (
        (["conv", "list"], 3, "finished"),
        (["skills", "list"], 5, "csv-profile"),
        (["tasks", "list"], 1, "pending"),
        (["agents"], 2, "coordinator"),
        (["conv", "search", "cake"], 2, "cake"),
    ):
        code, shown = cli.on_terminal(*args, columns=columns, NO_COLOR="1")
        lines = [text for text in ESCAPES.sub("", shown).splitlines() if not text.startswith(("next: ", "  "))]
        assert code == 0
        assert max(map(len, lines)) <= columns
        assert always in shown
        assert len(lines) >= items, "no item is lost"
        assert len({text.split("  ")[0] for text in lines}) >= min(items, 3), "each line begins with its own name"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_stay_away_where_they_are_not_wanted(cli: Any, environment: dict[str, str]) -> None:
    code, screen = cli.on_terminal("run", "bake a cake", **environment)
    assert code == 0
    assert "\x1b" not in screen
    assert "Nothing fits" in screen


def test_only_colours_are_used_that_are_readable_on_black_and_on_white(cli: Any) -> None:
    _, screen = cli.on_terminal("run", "count the words of README.md")
    codes = {int(code) for part in re.findall(r"\x1b\[([0-9;]*)m", screen) for code in part.split(";") if code}
    assert 35 in codes
    assert codes <= {0, 1, 2, 31, 35, 39, 49}


def test_the_answer_is_shown_once_though_it_is_streamed(cli: Any) -> None:
    _, screen = cli.on_terminal("run", "count the words of README.md")
    plain = ESCAPES.sub("", screen)
    assert plain.count("lines words bytes file") == 1
    assert "observability" not in plain


def test_a_title_cannot_move_the_cursor(cli: Any) -> None:
    cli("run", "bake a cake", "--title", "evil\x1b[2J\x07title")
    _, screen = cli.on_terminal("conv", "list")
    assert "\x1b[2J" not in screen
    assert "\x07" not in screen
    assert "evil" in screen


def test_chat_answers_forks_and_changes_the_model(cli: Any) -> None:
    done = cli(
        "chat",
        stdin="/help\ncount the words of README.md\n/fork 1\nbake a cake\n"
        "/cost\n/model nope\n/skills\n/fork x\n/quit\n",
    )
    assert done.returncode == 0
    assert "lines words bytes file" in done.stdout
    assert "Nothing fits" in done.stdout
    assert "unknown model 'nope'" in done.stderr
    assert "'x' is not a position" in done.stderr
    tree = cli.data("conv", "tree")["conversations"]
    assert [each["forked_at"] for each in tree] == [None, 1]


def test_a_command_of_the_chat_that_fails_ends_nothing(cli: Any, workspace: Path) -> None:
    lines = ["bake a cake", "/tasks", "/show 99", "/", "/frok", '/export "my talk', "count the words of README.md"]
    done = cli("chat", stdin="\n".join(lines))
    assert done.returncode == 0
    assert "internal error" not in done.stderr
    assert "the conversation has" in done.stderr
    assert "no command '/'" in done.stderr
    assert "did you mean /fork?" in done.stderr
    assert (workspace / '"my talk').exists()
    assert "lines words bytes file" in done.stdout


def test_a_program_chats_by_json_lines(cli: Any) -> None:
    lines = [
        {"type": "message", "text": "count the words of README.md"},
        {"type": "command", "text": "/frok"},
        {"type": "approve", "call": "nothing"},
        {"type": "command", "text": "/cost"},
    ]
    done = cli("chat", "--json", "--policy", "allow", stdin="\n".join(["not JSON", *map(json.dumps, lines)]))
    assert done.returncode == 0
    records = [json.loads(row) for row in done.stdout.splitlines()]
    kinds = [record["type"] for record in records]
    assert kinds.count("ready") == len(lines) + 2
    assert kinds.count("error") == 3
    (result,) = [record for record in records if record["type"] == "result"]
    assert result["status"] == "finished"
    assert "lines words bytes file" in result["output"]


def test_chat_goes_on_with_a_conversation(cli: Any) -> None:
    cli("run", "bake a cake")
    assert cli("chat", "-", stdin="count the words of README.md\n").returncode == 0
    assert len(cli.data("conv", "list")["conversations"]) == 1
    assert cli("chat", "00000000").returncode == 3
