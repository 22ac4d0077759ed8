"""kill -9 in the middle of a script, seen from the model's side: what it is asked before, and what after."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bough.testing import Answer, OpenAIServer, Received, ServerCall

BOUGH = Path(sys.executable).with_name("bough")
LOAD = Answer(text="I load it.", calls=(ServerCall(tool="load_skill", arguments={"skill_name": "wait-long"}),))
RUN = Answer(
    calls=(
        ServerCall(tool="load_skill", arguments={"skill_name": "wait-long"}),
        ServerCall(tool="run_skill_script", arguments={"skill_name": "wait-long", "script_path": "scripts/wait.sh"}),
    )
)


def outcomes(received: Received) -> str:
    """Answer with what the model is told about its last calls."""
    return "\n".join(m["content"] for m in received.body["messages"] if m["role"] == "tool")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path, bough_home: Path) -> dict[str, str]:
    skill = tmp_path / "skills" / "wait-long"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: wait-long\ndescription: Wait.\n---\nRun `scripts/wait.sh`.\n")
    (skill / "scripts" / "wait.sh").write_text("#!/bin/sh\necho here > running\nwhile :; do sleep 0.05; done\n")
    return {**os.environ, "BOUGH_HOME": str(bough_home), "BOUGH_SKILL_ROOTS": str(tmp_path / "skills")}


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the script did not start"
        time.sleep(0.01)


def test_a_resumed_run_asks_the_model_only_what_it_was_not_asked_yet(
    workspace: Path, environment: dict[str, str]
) -> None:
    with OpenAIServer([LOAD, RUN, outcomes]) as server:
        common: Any = {"cwd": workspace, "env": {**environment, "BOUGH_BASE_URL": server.url}, "text": True}
        process = subprocess.Popen(
            [BOUGH, "run", "wait for it", "--model", "openai:test"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **common,
        )
        wait_for(workspace / "running", process)
        process.kill()
        process.communicate()
        assert len(server.received) == 2
        resumed = subprocess.run([BOUGH, "resume", "-"], capture_output=True, timeout=50, **common)
    assert resumed.returncode == 0, resumed.stderr
    assert len(server.received) == 3, "the two recorded responses were not asked for again"
    before, after = server.received[1].body["messages"], server.received[2].body["messages"]
    assert after[: len(before)] == before, "what the model saw before is byte for byte what it sees again"
    calls = [call["id"] for message in after if message["role"] == "assistant" for call in message["tool_calls"]]
    answered = [message["tool_call_id"] for message in after if message["role"] == "tool"]
    assert sorted(calls) == sorted(answered), "every call has one outcome"
    assert "did not finish" in resumed.stdout
