"""`bough exec` and `bough skills run`: streams, exit code and bounds of code run by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_streams_exit_code_and_arguments_are_the_script_s_own(cli: Any, workspace: Path) -> None:
    (workspace / "x.py").write_text("import sys\nprint(sys.argv[1:])\nprint('err', file=sys.stderr)\nsys.exit(3)\n")
    done = cli("exec", "x.py", "--json", "-@5", "a b")
    assert (done.returncode, done.stdout, done.stderr) == (3, "['--json', '-@5', 'a b']\n", "err\n")


def test_a_shell_script_without_a_first_line_runs_under_bash(cli: Any, workspace: Path) -> None:
    """As `run_skill_script` runs it: a script that works there works by hand."""
    (workspace / "x.sh").write_text("set -o pipefail\nall=(one two)\nfalse | true || echo ${all[1]} $@\n")
    done = cli("exec", "x.sh", "three")
    assert (done.returncode, done.stdout) == (0, "two three\n"), done.stderr


def test_code_environment_stdin_and_workspace(cli: Any, workspace: Path) -> None:
    code = "import os, sys; open('made', 'w').write(sys.stdin.read() + os.environ['WORD'])"
    args = ["--env", "WORD=two", "--stdin", "-", "-C", str(workspace), "-c", code]
    assert cli("exec", *args, stdin="one ").returncode == 0
    assert (workspace / "made").read_text() == "one two"


def test_json_gives_the_whole_result_and_bounds_hold(cli: Any) -> None:
    code = "open('made', 'w').write('x'); b = bytearray(10**9)"
    done = cli("exec", "--json", "--memory", "64", "--timeout", "20", "-c", code)
    assert done.returncode != 0
    assert '"isolation"' in done.stdout
    assert '"path": "made"' in done.stdout
    slow = cli("exec", "--timeout", "0.5", "--language", "sh", "-c", "echo begun; sleep 60")
    assert (slow.returncode, slow.stdout) == (124, "begun\n")
    assert "timed out" in slow.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["exec"], 2, "nothing to run"),
        (["exec", "gone.py"], 2, "cannot be read"),
        (["exec", "README.md"], 2, "unknown file type"),
        (["exec", "--language", "cobol", "-c", "x"], 2, "is not known"),
        (["exec", "--env", "x", "-c", "x"], 2, "NAME=VALUE"),
        (["skills", "run", "word-count", "gone.sh"], 3, "has no script"),
        (["skills", "run", "word-cuont", "count.sh"], 3, "word-count"),
    ],
)
def test_mistakes_are_told(cli: Any, args: list[str], code: int, says: str) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_without_a_sandbox_nothing_runs_and_the_code_is_6(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sandlock.py").write_text("raise ImportError('hidden')\n")
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "broken")}
    assert cli("exec", "-c", "print(1)", **environment).returncode == 6
    assert cli("skills", "run", "word-count", "count.sh", **environment).returncode == 6


def test_a_skill_s_script_runs_by_hand(cli: Any) -> None:
    done = cli("skills", "run", "word-count", "count.sh", "README.md")
    assert done.returncode == 0
    assert done.stdout.startswith("lines words bytes file")
