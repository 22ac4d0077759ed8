"""`bough try`, `bough bisect` and `bough run --until`, as a person uses them, on the example."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from bough.events import open_store

pytestmark = pytest.mark.needs("bubblewrap")

EXAMPLE = Path(__file__).parents[2] / "examples/try"


@pytest.fixture
def example(cli: Any, tmp_path: Path) -> Any:
    """The command line in a copy of the example whose skills are trusted."""
    here = cli.having(Path(shutil.copytree(EXAMPLE, tmp_path / "try")))
    assert here("skills", "trust", "--yes").returncode == 0
    return here


def count_kinds(home: Path, branches: list[str]) -> list[dict[str, int]]:
    """Return how many events of each kind the branches have."""

    async def main() -> list[dict[str, int]]:
        store = await open_store(f"sqlite:///{home / 'bough.db'}")
        counts: list[dict[str, int]] = []
        for branch in branches:
            kinds = [stored.kind async for stored in store.read(UUID(branch))]
            counts.append({kind: kinds.count(kind) for kind in ("ModelResponded", "CheckRan", "ToolCalled")})
        await store.aclose()
        return counts

    return asyncio.run(main())


def test_the_best_of_three_variants_is_applied(example: Any, tmp_path: Path, bough_home: Path) -> None:
    folder = tmp_path / "try"
    command = ("try", "--variant", "variants.yaml", "--repeat", "5", "--model", "offline")
    process = example.start(*command)
    assert process.stderr is not None
    for text in process.stderr:
        if "3 of 15" in text:
            break
    process.kill()
    process.communicate()
    tried = example(*command, "--resume")
    assert tried.returncode == 0, tried.stderr
    rows = [line.split()[:3] for line in tried.stdout.splitlines()[1:16]]
    verdicts = [("idle", "failed"), ("wrong", "failed"), ("right", "passed")]
    assert rows == [[name, number, verdict] for name, verdict in verdicts for number in "12345"]
    assert "right  5 of 5 passed" in tried.stdout
    assert tried.stderr.count(" of 15") == 15
    assert subprocess.run(["sh", "check.sh"], cwd=folder, check=False).returncode == 1

    data = example.data(*command, "--resume")
    assert [(v["name"], v["runs"], v["passed"]) for v in data["variants"]] == [
        ("idle", 5, 0),
        ("wrong", 5, 0),
        ("right", 5, 5),
    ]
    branches = [branch["conversation"] for variant in data["variants"] for branch in variant["branches"]]
    assert [count["CheckRan"] for count in count_kinds(bough_home, branches)] == [1] * 15, "no branch ran twice"
    assert len(example.data("conv", "list", "--limit", "50")["conversations"]) == 16
    assert data["variants"][2]["branches"][0]["files"] == {"added": 0, "changed": 1, "removed": 0}
    winner = data["winner"]["conversation"]
    assert winner.replace("-", "")[-8:] in tried.stdout
    assert example.data("conv", "apply", winner, "--yes")["files"] == [{"path": "total.sh", "change": "changed"}]
    assert subprocess.run(["sh", "check.sh"], cwd=folder, check=False).returncode == 0
    assert (folder / "variants.yaml").read_bytes() == (EXAMPLE / "variants.yaml").read_bytes()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_or_ctrl_c_no_branch_runs_twice(
    stop: signal.Signals, example: Any, tmp_path: Path, bough_home: Path
) -> None:
    folder = tmp_path / "try"
    slow = folder / ".agents/skills/fix-wrong/scripts/fix.sh"
    slow.write_text(slow.read_text().replace("set -e\n", "set -e\nsleep 1.5\n"))
    assert example("skills", "trust", "--yes").returncode == 0
    command = ("try", "--variant", "variants.yaml", "--model", "offline", "--jobs", "1")
    process = example.start(*command)
    assert process.stderr is not None
    for line in process.stderr:
        if "1 of 3" in line:
            break
    process.send_signal(stop)
    table, _ = process.communicate()
    if stop is signal.SIGINT:
        assert process.returncode == 130
        assert "idle     failed" in table
        assert "branches are done" in table
    tried = example.data(*command, "--resume")
    branches = [branch for variant in tried["variants"] for branch in variant["branches"]]
    assert [branch["status"] for branch in branches] == ["finished"] * 3
    assert [branch["passed"] for branch in branches if branch["exit_code"] == 0] == [True]
    ids = [str(uuid5(UUID(tried["session"]), f"{name}/1")) for name in ("idle", "wrong", "right")]
    assert [branch["conversation"] for branch in branches] == ids
    counts = count_kinds(bough_home, ids)
    assert [count["CheckRan"] for count in counts] == [1, 1, 1]
    assert counts[0] == counts[2]  # the finished branch has not one event more than one that was never interrupted
    assert len(example.data("conv", "list")["conversations"]) == 4
    assert tried == example.data(*command, "--resume")


def test_what_cannot_be_tried_is_said(example: Any, tmp_path: Path) -> None:
    files = {
        "unknown.yaml": "varaints: []\n",
        "empty.yaml": "variants: []\n",
        "unnamed.yaml": "variants: [{message: x}]\n",
        "number.yaml": "variants: [{name: 7}]\n",
        "list.yaml": "- x\n",
        "twice.yaml": "variants: [{name: a}, {name: a}]\n",
        "repeat.yaml": "repeat: 0\nvariants: [{name: a}]\n",
        "broken.yaml": "variants: [\n",
    }
    for name, text in files.items():
        (tmp_path / "try" / name).write_text(text)
    commands = [["--variant", name] for name in (*files, "missing.yaml")]
    commands += [[], ["x", "--keep", "none"], ["x", "--session", "7"], ["x", "--check", ""], ["x", "--secret", "A"]]
    for arguments in commands:
        done = example("try", *arguments, "--model", "offline")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), (arguments, done.stderr)
        assert done.stderr.startswith("error: "), (arguments, done.stderr)
    for arguments in (["x", "--resume"], ["deadbeef@3", "x"]):
        assert example("try", *arguments, "--model", "offline").returncode == 3
    nothing = example("try", "/fix-idle", "--check", "false", "--model", "offline", "--keep", "winner")
    assert nothing.returncode == 1
    assert "nothing passed" in nothing.stdout


def test_run_until_a_check_passes_and_bisect(example: Any) -> None:
    done = example("run", "/fix-right", "--until", "sh check.sh", "--model", "offline", "--check")
    assert done.returncode == 0, done.stderr
    assert "check    sh check.sh  passed" in done.stderr
    records = [json.loads(line) for line in example("conv", "show", "-", "--json").stdout.splitlines()]
    assert "CheckRan" in json.dumps(records)
    found = example("bisect", "-", "--check", "! sh check.sh")
    assert found.returncode == 0, found.stderr
    assert "first bad: event " in found.stdout
    assert "+for position in $(seq 1 $#); do" in found.stdout
    assert "3 checks" in found.stdout or "2 checks" in found.stdout
    assert example("bisect", "-", "--check", "sh check.sh").returncode == 1
    assert example("bisect", "-", "--check", "no-such-command").returncode == 1
    assert example("bisect", "-@1", "--check", "true").returncode == 3
