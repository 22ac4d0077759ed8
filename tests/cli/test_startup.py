"""Starting is quick because nothing heavy is imported before it is needed; here as lists of modules, not as times."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

HEAVY = {"pydantic", "pydantic_ai", "openai", "prompt_toolkit", "rich", "yaml"}


def modules_after(cli: Any, code: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after `code`."""
    ending = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + ending], cwd=cli.folder, env=cli.env(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("code", "light"),
    [
        ("import bough", HEAVY | {"typer", "asyncio", "sqlite3"}),
        ("from bough.cli.main import run; run(['--version'])", HEAVY | {"typer", "asyncio", "sqlite3"}),
        ("from bough.cli.main import run; run([])", HEAVY),
        ("from bough.cli.main import run; run(['--help'])", HEAVY | {"sqlite3"}),
        ("from bough.cli.main import run; run(['nope'])", HEAVY | {"sqlite3"}),
        ("from bough.cli.main import run; run(['conv', 'list'])", HEAVY),
        ("from bough.cli.main import run; run(['conv', 'list', '--json'])", HEAVY),
        ("from bough.cli.main import run; run(['conv', '--help'])", HEAVY),
        ("from bough.cli.main import run; run(['skills', 'list'])", {"pydantic_ai", "pydantic", "openai", "rich"}),
    ],
)
def test_heavy_modules_stay_out_of_quick_commands(cli: Any, code: str, light: set[str]) -> None:
    assert modules_after(cli, code) & light == set()


def test_a_run_loads_no_client_that_it_does_not_use(cli: Any) -> None:
    code = "from bough.cli.main import run; assert run(['run', 'how many words are in README.md']) == 0"
    unused = {
        "mcp",
        "fastmcp",
        "prompt_toolkit",
        "openai",
        "anthropic",
        "google",
        "docker",
        "psycopg",
        "tree_sitter",
        "logfire",
    }
    assert modules_after(cli, code) & unused == set()


def test_showing_a_conversation_needs_no_event_model(cli: Any) -> None:
    assert cli("run", "bake a cake").returncode == 0
    for command in (
        ["conv", "show"],
        ["conv", "tail"],
        ["conv", "tree"],
        ["conv", "diff", "-@2"],
        ["conv", "export", "-"],
    ):
        code = f"from bough.cli.main import run; assert run({command!r}) == 0"
        assert modules_after(cli, code) & {"pydantic", "pydantic_ai"} == set()


@pytest.mark.parametrize(
    "command",
    [
        ["fork", "-"],
        ["fork", "-", "--json", "--title", "branch", "--tag", "a=b", "--reason", "to see"],
        ["fork", "-@3", "--pending", "drop"],
        ["fork", "-", "--turn", "1"],
        ["conv", "turns"],
    ],
)
def test_a_fork_without_a_prompt_builds_no_agent(cli: Any, command: list[str]) -> None:
    """Nor does the list of turns: neither PydanticAI nor a client of a model is loaded."""
    assert cli("run", "bake a cake").returncode == 0
    code = f"from bough.cli.main import run; assert run({command!r}) == 0"
    assert modules_after(cli, code) & (HEAVY - {"pydantic"}) == set()


def test_the_version_is_the_package_s(cli: Any) -> None:
    from importlib.metadata import version

    assert cli("--version").stdout == f"bough {version('bough')}\n"
