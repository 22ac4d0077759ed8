"""Runs that are stopped: by Ctrl+C, SIGTERM, a timeout, kill -9; and how they continue."""

from __future__ import annotations

import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest


def wait_for(path: Path, process: Any) -> None:
    """Wait until a file is there; the process has to live that long."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the script did not start"
        time.sleep(0.01)


def kinds(events: list[Any]) -> list[str]:
    return [event["kind"] for event in events]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_pauses_the_run_and_resume_finishes_it(
    slow_skill: Any, workspace: Path, number: signal.Signals, code: int
) -> None:
    process = slow_skill.start("run", "/wait-long")
    wait_for(workspace / "running", process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert "bough resume" in err
    assert "Traceback" not in err
    assert slow_skill.data("conv", "list")["conversations"][0]["status"] == "paused"
    done = slow_skill("resume", "-")
    assert done.returncode == 0
    assert slow_skill.data("conv", "list")["conversations"][0]["status"] == "finished"


def test_after_kill_9_no_recorded_response_is_asked_for_again_and_the_call_is_closed(
    slow_skill: Any, workspace: Path
) -> None:
    process = slow_skill.start("run", "/wait-long")
    wait_for(workspace / "running", process)
    process.kill()
    process.communicate()
    before = slow_skill.data("conv", "show")["events"]
    done = slow_skill("resume", "-")
    assert done.returncode == 0
    after = slow_skill.data("conv", "show")["events"]
    assert after[: len(before)] == before
    assert kinds(before)[-1] == "ToolCalled"
    assert kinds(after).count("ToolInterrupted") == 1
    assert kinds(after).count("ModelResponded") == kinds(before).count("ModelResponded") + 1
    assert kinds(after).count("ToolCalled") == kinds(before).count("ToolCalled")
    assert slow_skill.data("conv", "list")["conversations"][0]["status"] == "finished"


def test_a_timeout_ends_with_124_and_says_how_to_go_on(slow_skill: Any) -> None:
    done = slow_skill("run", "/wait-long", "--timeout", "1")
    assert done.returncode == 124
    assert "timed out after 1" in done.stderr
    assert "bough resume" in done.stderr
    result = slow_skill.lines("run", "/wait-long", "--timeout", "1")[-1]
    assert (result["type"], result["error"]["code"], result["status"]) == ("result", "timeout", "paused")


def test_a_script_timeout_is_told_to_the_model_and_the_run_ends(slow_skill: Any) -> None:
    done = slow_skill("run", "/wait-long", "--script-timeout", "0.3")
    assert done.returncode == 1
    assert "timed out" in done.stderr


def test_resume_with_nothing_to_do_says_so_and_with_a_prompt_answers(cli: Any) -> None:
    cli("run", "bake a cake")
    idle = cli("resume", "-")
    assert (idle.returncode, idle.stdout) == (0, "")
    assert "nothing to do" in idle.stderr
    assert cli("resume", "-", "count the words of README.md").stdout.startswith("lines words bytes file")
    assert cli("resume", "-@1").returncode == 2


def test_waiting_for_a_locked_store_is_told(cli: Any, bough_home: Path) -> None:
    assert cli("run", "bake a cake").returncode == 0
    other = sqlite3.connect(bough_home / "bough.db", isolation_level=None)
    other.execute("begin immediate")
    process = cli.start("run", "bake bread")
    line = process.stderr.readline()
    while line and "waiting for the store" not in line:
        line = process.stderr.readline()
    assert line == f"waiting for the store {bough_home / 'bough.db'}: another program keeps it locked\n"
    assert process.poll() is None
    other.execute("rollback")
    other.close()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "waiting for the store" not in errors, "it is told once"


@pytest.mark.parametrize("hidden", ["bubblewrap", "both"])
def test_without_bubblewrap_the_next_rung_is_taken_and_without_any_the_script_is_refused_with_6(
    cli: Any, tmp_path: Path, hidden: str
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sandlock.py").write_text("raise ImportError('hidden')\n")
    environment = {"PATH": str(bare)} | ({"PYTHONPATH": str(tmp_path / "broken")} if hidden == "both" else {})
    done = cli("run", "/word-count README.md", **environment)
    doctor = cli("doctor", **environment)
    if hidden == "both":
        assert (done.returncode, doctor.returncode) == (6, 6)
        assert "bubblewrap" in done.stderr
        assert "apt-get install bubblewrap" in doctor.stdout
        assert cli.lines("run", "/word-count README.md", **environment)[-1]["error"]["code"] == "sandbox_unavailable"
        assert cli("run", "bake a cake", **environment).returncode == 0
    else:
        assert "executor sandbox (landlock)" in done.stderr
        assert "isolation reached: landlock" in doctor.stdout
        assert (done.returncode, doctor.returncode) == (0, 0)
