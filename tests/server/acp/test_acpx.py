"""`acpx`, a client of ACP by others, drives `bough acp`: sessions, permissions, cancelling, a killed process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clients.npm import NodeClients
from tests.server.acp.editor import make_environment

from bough.testing import Answer, OpenAIServer, ServerCall
from bough.testing.openai_server import Hang

pytestmark = pytest.mark.slow
WRITE = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"}),))
REFUSED_CODE = 5
"""How acpx exits after a turn in which a permission was denied, or which was cancelled."""


class Acpx:
    """One person's acpx, with `bough acp` as its agent, in one folder."""

    def __init__(self, clients: NodeClients, model: OpenAIServer, folder: Path, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self._folder, self._home = folder, home
        self._pid_file = home / "agent.pid"
        bough = [sys.executable, "-m", "bough.cli.main", "acp", "-m", "openai:test", "--base-url", model.url]
        start = shlex.join([*bough, "--policy", "ask"])
        script = home / "agent.sh"
        script.write_text(f"echo $$ > {shlex.quote(str(self._pid_file))}\nexec {start}\n")
        acpx = clients.folder / "node_modules" / "acpx" / "dist" / "cli.js"
        self._command = [clients.node, acpx, "--agent", f"/bin/sh {script}", "--cwd", folder, "--ttl", "60"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = make_environment(self._home) | {"HOME": str(self._home)}
        return subprocess.Popen(
            [*self._command, *words],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        with self.start(*words) as process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        return output

    def kill_agent(self) -> None:
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)


@contextmanager
def acpx_with(clients: NodeClients, folder: Path, home: Path, *steps: Any) -> Generator[tuple[Acpx, OpenAIServer]]:
    with OpenAIServer(steps) as model:
        acpx = Acpx(clients, model, folder, home)
        acpx.run("sessions", "new")
        try:
            yield acpx, model
        finally:
            acpx.run("sessions", "close")


def wait_for_request(model: OpenAIServer, count: int, process: subprocess.Popen[str]) -> None:
    while len(model.received) < count:
        assert process.poll() is None, process.communicate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)


def test_calls_are_allowed_and_denied_and_a_session_is_listed(
    node_clients: NodeClients, tmp_path: Path, bough_home: Path
) -> None:
    steps = [WRITE, "not written", WRITE, "written"]
    with acpx_with(node_clients, tmp_path, bough_home, *steps) as (acpx, model):
        assert "not written" in acpx.run("--deny-all", "prompt", "write", code=REFUSED_CODE)
        assert not (tmp_path / "a.txt").exists()
        assert "written" in acpx.run("--approve-all", "prompt", "write now")
        assert (tmp_path / "a.txt").read_text() == "x"
        listed = json.loads(acpx.run("--format", "json", "sessions", "list"))
        assert str(tmp_path) in json.dumps(listed)
        assert len(model.received) == 4


def test_a_prompt_is_cancelled_and_the_session_goes_on_in_another_process_after_a_kill(
    node_clients: NodeClients, tmp_path: Path, bough_home: Path
) -> None:
    steps = [Hang(), "after the cancellation", Hang(), "after the kill"]
    with acpx_with(node_clients, tmp_path, bough_home, *steps) as (acpx, model):
        with acpx.start("prompt", "one") as prompt:
            wait_for_request(model, 1, prompt)
            acpx.run("cancel")
            assert "cancelled" in prompt.communicate(timeout=120)[0]
        assert "after the cancellation" in acpx.run("prompt", "two")
        with acpx.start("prompt", "three") as prompt:
            wait_for_request(model, 3, prompt)
            acpx.kill_agent()
            prompt.communicate(timeout=120)
        assert prompt.returncode == 1
        assert "after the kill" in acpx.run("prompt", "four")
        sent = json.dumps(model.received[-1].body)
        assert all(f'"{word}"' in sent for word in ("one", "two", "three", "four")), "one conversation has all of it"
