"""Containers chosen by a setting: in a run, in what continues with it, and where the engine or the image is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.testing.docker_engine import IMAGE
from bough.testing.openai_server import Answer, OpenAIServer, ServerCall

BOUGH = Path(sys.executable).with_name("bough")
CALL = Answer(calls=(ServerCall(tool="run_command", arguments={"command": "cat /proc/1/cmdline"}),))


class Machine:
    """Runs `bough` against a scripted model, with an engine or with none."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine = folder, engine

    def __call__(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "DOCKER_HOST": self.engine, "OPENAI_API_KEY": "none", **environment}
        return subprocess.run([BOUGH, *args], cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def machine(container_engine: str, tmp_path: Path) -> Machine:
    return Machine(tmp_path, container_engine)


def results(server: OpenAIServer) -> list[str]:
    """Return what the model was told of its calls in its last request."""
    return [message["content"] for message in server.received[-1].body["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("how", ["option", "environment", "file"])
def test_a_run_has_its_commands_in_a_container(how: str, machine: Machine, isolated_home: Path) -> None:
    name, options, environment = f"container:{IMAGE}", [], {}
    if how == "option":
        options = ["--executor", name]
    elif how == "environment":
        environment = {"BOUGH_EXECUTOR": "container", "BOUGH_CONTAINER_IMAGE": IMAGE}
    else:
        (isolated_home / ".bough").mkdir()
        (isolated_home / ".bough" / "bough.yaml").write_text(f"executor: {name}\n")
    with OpenAIServer([CALL, "done"]) as server:
        done = machine("run", "-m", "openai:test", "--base-url", server.url, *options, "begin", **environment)
        assert done.returncode == 0, done.stderr
        assert f"executor {name}" in done.stderr
        assert "contained.py" in results(server)[0], "the first process is the one of a container"


def test_resume_keeps_the_container_and_refuses_where_there_is_none(machine: Machine) -> None:
    with OpenAIServer([CALL, "one", CALL, "two", CALL, "three"]) as server:
        there = {"BOUGH_BASE_URL": server.url}
        name = f"container:{IMAGE}"
        assert machine("run", "-m", "openai:test", "--executor", name, "begin", **there).returncode == 0
        again = machine("resume", "-", "once more", **there)
        assert again.returncode == 0, again.stderr
        assert f"executor {name}" in again.stderr
        assert "contained.py" in results(server)[-1]
        nothing = {"DOCKER_HOST": f"unix://{machine.folder}/nothing.sock", "BOUGH_EXECUTOR": "unsafe"}
        refused = machine("resume", "-", "and again", **there, **nothing)
        assert f"executor {name} (not working" in refused.stderr
        assert "No container engine answers" in results(server)[-1]


def test_an_image_that_is_not_there_is_told_with_what_brings_it(machine: Machine) -> None:
    done = machine("exec", "--executor", "container:bough-absent:1", "-c", "print(1)")
    assert done.returncode == 6, done.stderr
    assert "The engine has no image bough-absent:1" in done.stderr
    assert "docker pull bough-absent:1" in done.stderr


@pytest.mark.parametrize("name", ["containers", "container:", "container:-v", "container:a b", "Container:x"])
def test_a_name_that_means_nothing_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    done = Machine(tmp_path, "unix:///nothing")("exec", "--executor", name, "-c", "print(1)")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "container:" in done.stderr
