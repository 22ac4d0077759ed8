"""What every command has in common: help, the shared options, usage errors, completion, faults of bough's own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
import typer

from bough.cli.app import build
from bough.cli.examples import EXAMPLES
from bough.cli.help import SUMMARIES
from bough.cli.usage import arrange

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


@pytest.mark.parametrize("args", [["nope"], ["conv", "nope"], ["run", "--xyzzy"], ["fork"]])
def test_a_usage_error_ends_with_2_and_says_where_help_is(cli: Any, args: list[str]) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--help`" in done.stderr
    error = json.loads(cli(*args, "--json").stdout)["error"]
    assert error["code"] == "invalid_input"


def test_without_arguments_the_first_screen_is_shown(cli: Any) -> None:
    done = cli()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "skills here: 5" in lines[-1]
    assert "bough demo" not in done.stdout
    empty = cli(BOUGH_SKILL_ROOTS="").stdout
    assert "skills here: 0" in empty
    assert "bough demo" in empty
    assert "bough init" in empty
    assert cli.data()["commands"]["conv"][:2] == ["list", "show"]


def test_the_first_screen_and_the_list_name_every_command(cli: Any) -> None:
    """With the first sentence of each command's own help."""
    command: Any = typer.main.get_command(build())
    summaries = {name: text for group in SUMMARIES.values() for name, text in group.items()}
    first_sentences = {name: " ".join(sub.help.split("\n\n")[0].split()) for name, sub in command.commands.items()}
    assert {name: text.split(". ")[0].rstrip(".") for name, text in first_sentences.items()} == {
        name: text.rstrip(".") for name, text in summaries.items()
    }
    assert all(name in cli().stdout.split() for name in summaries)
    listed = cli("--help")
    assert (listed.stdout, listed.returncode) == (cli("help").stdout, 0)
    assert all(text in listed.stdout for text in summaries.values())


def walk(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def test_every_command_has_examples_that_parse() -> None:
    commands = dict(walk(typer.main.get_command(build())))
    assert commands.keys() == EXAMPLES.keys()
    for name, examples in EXAMPLES.items():
        for example in examples:
            words = arrange(shlex.split(example.partition(" | ")[2] or example.partition(" > ")[0], comments=True)[1:])
            verb = len(name.split()) if words[: len(name.split())] == name.split() else 1
            words = words[verb:]
            commands[name].make_context(name, ["@5" if word == "-@5" else word for word in words])


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal_and_ends_with_examples(cli: Any, columns: int) -> None:
    for args in (["--help"], ["run", "--help"], ["help", "conv", "show"], ["help", "skills"]):
        done = cli(*args, COLUMNS=str(columns), TERMINAL_WIDTH="")
        assert done.returncode == 0
        prose = done.stdout.partition("Examples:")[0] if columns < 80 else done.stdout
        if args != ["--help"]:  # in a pipe nothing is broken
            assert max(map(len, prose.splitlines())) <= max(columns, 40)
        assert ("Examples:" in done.stdout) is (args in (["run", "--help"], ["help", "conv", "show"]))


def test_common_options_go_before_the_command_too(cli: Any, tmp_path: Path) -> None:
    assert cli("run", "bake a cake").returncode == 0
    assert json.loads(cli("--json", "conv", "show", "-").stdout)["command"] == "conv show"
    assert json.loads(cli("--json", "conv").stdout)["command"] == "conv list"
    assert json.loads(cli("--json", "version").stdout)["data"].keys() == {"version"}
    assert cli("version").stdout == cli("--version").stdout
    other = cli("--home", tmp_path / "other", "--json", "conv", "list")
    assert json.loads(other.stdout)["data"]["conversations"] == []
    other = cli(f"--home={tmp_path / 'other'}", "--store", f"sqlite:///{tmp_path}/x.db", "conv", "list")
    assert other.stdout == "no conversations yet\n"
    assert not list(tmp_path.glob("*.db"))
    exec_help = cli("--json", "exec", "-c", "import sys; print(sys.argv[1:])", "--json")
    assert exec_help.returncode == 0


@pytest.mark.parametrize("json_option", [[], ["--json"]])
@pytest.mark.parametrize(
    "args",
    [
        ["conv", "list"],
        ["doctor"],
        ["run", "bake a cake"],
        ["--version"],
        ["conv", "--help"],
        ["exec", "-c", "print(1)"],
    ],
)
def test_output_that_cannot_be_written_is_told_in_one_line(cli: Any, args: list[str], json_option: list[str]) -> None:
    for buffered in ("", "1"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [Path(sys.executable).with_name("bough"), *json_option, *args],
                cwd=cli.folder,
                env=cli.env(PYTHONUNBUFFERED=buffered),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "error: cannot write to stdout: No space left on device"
        assert "internal error" not in done.stderr


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


def complete_in_bash(cli: Any, typed: str) -> list[str]:
    """What bash completes for a line, with the script that bough prints."""
    script = cli("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    words = typed.split(" ")
    program = f"""{script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_bough_completion bough
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=cli.folder, env=cli.env(PATH=path), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


@pytest.fixture
def shell_environment(cli: Any, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds bough, in which no dot file of a person is read."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return cli.env(PATH=path, HOME=str(tmp_path), TERM="dumb", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")


@pytest.mark.needs("fish")
def test_fish_completes_values(cli: Any, shell_environment: dict[str, str]) -> None:
    name = cli.lines("run", "bake a cake")[-1]["conversation"][-8:]

    def complete(typed: str) -> list[str]:
        program = f'bough --show-completion fish | source; complete -C "{typed}"'
        done = subprocess.run(
            ["fish", "--no-config", "-c", program],
            cwd=cli.folder,
            env=shell_environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    assert complete("bough run --policy a") == ["allow", "ask"]
    assert complete("bough fork ") == [f"{name}\tbake a cake"]
    assert any(row.startswith("check") for row in complete("bough skills c"))


@pytest.fixture
def zsh(cli: Any, shell_environment: dict[str, str]) -> Iterator[Any]:
    """An interactive zsh with the completion that bough prints."""
    shell = pexpect.spawn(
        "zsh", ["-f", "-i"], cwd=str(cli.folder), env=shell_environment, encoding="utf-8", dimensions=(50, 120)
    )
    shell.sendline("PS1='ready> '; autoload -U compinit; compinit -u -D; bough --show-completion zsh > c; source ./c")
    shell.sendline("print loa''ded")
    shell.expect("loaded", timeout=60)
    yield shell
    shell.close(force=True)


@pytest.mark.needs("zsh")
def test_zsh_completes_values_and_runs_nothing_that_a_title_says(cli: Any, zsh: Any) -> None:
    """It evaluates what is completed: no title of a conversation may reach it as code."""
    title = r"""cake \$(touch dollar) \`touch tick\` "; touch quote; " '; touch apostrophe; ' $((1))"""
    name = cli.lines("run", title)[-1]["conversation"][-8:]
    zsh.send("bough run --policy al\t")
    zsh.expect("allow", timeout=60)
    zsh.send("\x15bough fork \t")
    zsh.expect(name, timeout=60)
    zsh.send("\x15print fini''shed; ls\r")
    zsh.expect("finished", timeout=60)
    zsh.expect("ready> ", timeout=60)
    assert "unmatched" not in zsh.before
    assert not {"dollar", "tick", "quote", "apostrophe"} & {path.name for path in cli.folder.iterdir()}


def test_bash_completes_values(cli: Any) -> None:
    assert complete_in_bash(cli, "bough conv show ") == [], "a store that is not there completes nothing"
    done = cli.lines("run", "bake a cake")
    name = done[-1]["conversation"][-8:]
    assert complete_in_bash(cli, "bough fork ") == [name]
    assert complete_in_bash(cli, f"bough chat {name[:3]}") == [name]
    shown = cli.data("conv", "show", "-")["events"]
    (asked,) = [event["seq"] for event in shown if event["kind"] == "UserMessage"]
    assert complete_in_bash(cli, f"bough fork {name}@") == [f"{name}@{asked}"]
    assert complete_in_bash(cli, "bough fork ffff@") == []
    assert complete_in_bash(cli, "bough run --agent ") == []
    (cli.folder / "config.yaml").write_text("agents: {helper: {}, reviewer: {}}")
    assert complete_in_bash(cli, "bough agents show ") == ["helper", "reviewer"]
    assert complete_in_bash(cli, "bough run --agent r") == ["reviewer"]
    (cli.folder / "config.yaml").write_text("agents: [")
    assert complete_in_bash(cli, "bough run --agent r") == []
    assert complete_in_bash(cli, "bough run --policy a") == ["allow", "ask"]
    assert complete_in_bash(cli, "bough run --skill wo") == ["word-count"]
    assert complete_in_bash(cli, "bough run --model o") == ["offline", "openai:"]
    assert complete_in_bash(cli, "bough conv list --status st") == ["stuck"]
    assert complete_in_bash(cli, "bough tasks show ") == []
    assert "--max-steps" in complete_in_bash(cli, "bough run --max")


def test_help_lists_options_by_what_they_are_for(cli: Any) -> None:
    shown = cli("run", "--help").stdout
    titles = [row[:-1] for row in shown.splitlines() if row.endswith(":") and not row.startswith(" ")]
    assert titles[:6] == ["Arguments", "Options", "Agent and model", "Rules", "Run", "Data and output"]
    assert "--max-steps" in shown.partition("Rules:")[2].partition("Run:")[0]
    assert "[x>=" not in shown and "[0<=" not in shown


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
