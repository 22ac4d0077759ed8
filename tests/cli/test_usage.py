"""What every command has in common: help, the shared options, usage errors, completion, faults of bough's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONV = ("list", "show", "turns", "tree", "tail", "diff", "export", "import", "adopt", "tag", "delete")
SKILLS = ("list", "show", "check", "match", "run", "new", "add", "lock", "trust")
COMMANDS = [
    *([verb] for verb in ("run", "resume", "fork", "approve", "reject", "replay", "exec", "doctor")),
    *(["conv", verb] for verb in CONV),
    *(["skills", verb] for verb in SKILLS),
]


def test_every_command_takes_home_store_and_json_and_fits_80_columns(cli: Any) -> None:
    code = (
        "import json, sys; from bough.cli.main import run\n"
        "for command in json.loads(sys.argv[1]): assert run([*command, '--help']) == 0; print('=====')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([[], ["conv"], ["skills"], *COMMANDS])],
        env=cli.env(COLUMNS="80", TERMINAL_WIDTH="80"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    nouns, pages = 3, done.stdout.split("=====\n")[:-1]
    for command, page in zip(COMMANDS, pages[nouns:], strict=True):
        assert f"Usage: bough {' '.join(command)}" in page
        assert all(option in page for option in ("--home", "--store", "--json")), command
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert not [line for line in "".join(pages[:nouns]).splitlines() if line[:1] == " " and line.endswith("...")]


@pytest.mark.parametrize("args", [["nope"], ["conv", "nope"], ["run", "--nope"], ["fork"]])
def test_a_usage_error_ends_with_2_and_says_where_help_is(cli: Any, args: list[str]) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--help` shows how" in done.stderr
    error = json.loads(cli(*args, "--json").stdout)["error"]
    assert error["code"] == "invalid_input"


def test_without_arguments_the_help_is_shown(cli: Any) -> None:
    done = cli()
    assert "Usage: bough" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", {"COMP_WORDS": "bough conv ", "COMP_CWORD": "2"}, ["list", "show", "tree", "tail"]),
        ("bash", {"COMP_WORDS": "bough ", "COMP_CWORD": "1"}, ["run", "chat", "resume", "fork"]),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "bough skills "}, ["check", "trust"]),
        ("fish", {"_TYPER_COMPLETE_ARGS": "bough r", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, ["run", "resume"]),
    ],
)
def test_shells_complete_commands(cli: Any, shell: str, words: dict[str, str], expected: list[str]) -> None:
    done = cli(_BOUGH_COMPLETE=f"complete_{shell}", **words)
    assert all(word in done.stdout for word in expected), done
    # Typer looks for a shell among the parents, which here is whichever shell started the tests.
    script = cli("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_BOUGH_COMPLETE" in script


def test_shells_complete_conversations(cli: Any) -> None:
    cli("run", "bake a cake")
    name = cli.data("conv", "list")["conversations"][0]["short_id"]
    done = cli(_BOUGH_COMPLETE="complete_bash", COMP_WORDS="bough conv show ", COMP_CWORD="3")
    assert name in done.stdout


def test_a_fault_of_bough_s_own_is_told_without_a_traceback_unless_it_is_asked_for(cli: Any) -> None:
    code = (
        "import bough.cli.commands.doctor as d, sys; from bough.cli.main import run\n"
        "d.check_versions = None\nsys.exit(run(['doctor']))"
    )
    for environment, shown in (({}, False), ({"BOUGH_DEBUG": "1"}, True)):
        done = subprocess.run([sys.executable, "-c", code], env=cli.env(**environment), capture_output=True, text=True)
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) is shown
        assert "NoneType" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("conv list", 0), ("run 'bake a cake'", 0), ("run", 2), ("chat", 0)])
def test_a_stream_that_is_closed_is_an_empty_one(cli: Any, closed: str, command: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{Path(sys.executable).with_name("bough")}" {command} {closed}'],
        cwd=cli.folder,
        env=cli.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("args", [["skills", "check"], ["skills", "add"], ["run", "x", "--skills"], ["run", "-f"]])
def test_a_name_that_no_file_can_have_is_wrong_input(cli: Any, args: list[str]) -> None:
    done = cli(*args, "x" * 300)
    assert done.returncode == 2
    assert "hint: " in done.stderr
    assert "internal error" not in done.stderr
