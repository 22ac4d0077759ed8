"""What `bough acp` answers on its streams, byte by byte, to clients that keep to no protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from tests.server.acp.editor import make_environment

COMMAND = [sys.executable, "-m", "bough.cli.main", "acp", "-m", "offline"]


class Wire(NamedTuple):
    """The streams of a process."""

    process: subprocess.Popen[bytes]

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: Any, params: Any = None, id: Any = 1) -> dict[str, Any]:
        """Send a request, and return its answer. Notifications before it are dropped."""
        self.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())
        while "id" not in (answer := self.read()):
            assert answer["method"] == "session/update"
        return answer


def refuse(answer: dict[str, Any], code: int, text: str) -> None:
    assert answer["error"]["code"] == code, answer
    assert text in answer["error"]["message"], answer
    assert "Traceback" not in json.dumps(answer)


def test_what_is_no_request_is_answered_with_an_error(tmp_path: Path, bough_home: Path) -> None:
    process = subprocess.Popen(
        COMMAND, env=make_environment(bough_home), cwd=tmp_path, stdin=-1, stdout=-1, stderr=subprocess.PIPE
    )
    with process:
        wire = Wire(process)
        refuse(wire.ask("session/new", {"cwd": str(tmp_path), "mcpServers": []}), -32600, "initialize")
        refuse(wire.ask("initialize", {}), -32602, "protocolVersion")
        answer = wire.ask("initialize", {"protocolVersion": 99, "unknown": 1, "clientCapabilities": "none"}, id="a")
        assert (answer["id"], answer["result"]["protocolVersion"]) == ("a", 1)
        for line in (b"{", b"\xff\xfe", b"[" * 100_000):
            wire.send(line)
            refuse(wire.read(), -32700, "not JSON")
        for line in (b"[]", b"1", b'"text"'):
            wire.send(line)
            refuse(wire.read(), -32600, "object")
        wire.send(b'"' + b"x" * (97 << 20) + b'"')
        refuse(wire.read(), -32600, "96 MiB")
        wire.send(b'{"jsonrpc": "2.0", "id": 77, "result": {}}')
        wire.send(b'{"jsonrpc": "2.0", "method": "session/unknown", "params": {}}')
        refuse(wire.ask("session/unknown"), -32601, "session/unknown")
        refuse(wire.ask(["session/new"]), -32601, "no method")
        refuse(wire.ask("session/prompt", {"sessionId": 1}), -32602, "sessionId")
        refuse(wire.ask("session/prompt", []), -32602, "the parameters")
        refuse(wire.ask("session/new", {"cwd": "relative", "mcpServers": []}), -32602, "absolute")
        refuse(wire.ask("session/new", {"cwd": str(tmp_path / "none"), "mcpServers": []}), -32602, "not a folder")
        server: dict[str, Any] = {"name": "clock", "command": "/bin/date", "args": [], "env": []}
        refuse(wire.ask("session/new", {"cwd": str(tmp_path), "mcpServers": [server]}), -32602, "clock")
        refuse(wire.ask("session/list", {"cursor": "none"}), -32602, "cursor")
        session = wire.ask("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]["sessionId"]
        for id in (str(uuid4()), "none", ""):
            refuse(wire.ask("session/load", {"sessionId": id, "cwd": "/", "mcpServers": []}), -32002, "no")
            refuse(wire.ask("session/prompt", {"sessionId": id, "prompt": []}), -32002, "no")
        refuse(wire.ask("session/prompt", {"sessionId": session, "prompt": []}), -32602, "empty")
        image = {"type": "image", "data": "no base64", "mimeType": "image/png"}
        refuse(wire.ask("session/prompt", {"sessionId": session, "prompt": [image]}), -32602, "base64")
        refuse(wire.ask("session/set_mode", {"sessionId": session, "modeId": "none"}), -32602, "no mode")
        option = {"sessionId": session, "configId": "model", "value": "nowhere:none"}
        refuse(wire.ask("session/set_config_option", option), -32602, "nowhere")
        answer = wire.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "bake a cake"}]})
        assert answer["result"]["stopReason"] == "end_turn", "the connection has survived"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


CHECK = """
import os, select, sys, threading

frames, stdout = os.pipe()
stdin, requests = os.pipe()
os.dup2(stdin, 0)
os.dup2(stdout, 1)
early, answered = [], threading.Event()

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] == "pydantic_ai":
        if not answered.is_set() and not select.select([frames], [], [], 0)[0]:
            early.append(arguments[0])

sys.addaudithook(watch)
os.write(requests, b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}\\n')
os.write(requests, b'{"jsonrpc": "2.0", "id": 2, "method": "session/list", "params": {}}\\n')

def read():
    select.select([frames], [], [])
    answered.set()
    with open(frames, "rb", closefd=False) as lines:
        lines.readline()
        lines.readline()
    os.close(requests)

threading.Thread(target=read, daemon=True).start()
from bough.cli.main import run
os.close(stdin)
code = run(["acp", "-m", "offline"])
assert "pydantic_ai" in sys.modules
sys.stderr.write(str((code, early)))
"""


def test_initialize_is_answered_before_pydantic_ai_is_imported(tmp_path: Path, bough_home: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHECK], env=make_environment(bough_home), cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stderr.splitlines()[-1:] == ["(0, [])"], ran.stderr


def test_an_option_that_is_wrong_is_told_on_stderr(tmp_path: Path, bough_home: Path) -> None:
    command = [*COMMAND, "--policy", "none"]
    ran = subprocess.run(command, env=make_environment(bough_home), cwd=tmp_path, capture_output=True, stdin=-3)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"error:" in ran.stderr
