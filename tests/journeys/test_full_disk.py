"""A server whose disk is full: uploads and messages are refused as such, and no path of the operator's is told."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from tests.journeys.conftest import BOUGH, Person
from websockets.sync.client import connect


def _wait_for_url(log: Path, process: subprocess.Popen[str]) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if match := re.search(r"listening on (http://\S+)\n", log.read_text()):
            return match[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)  # a file tells nobody that it has grown
    raise AssertionError(log.read_text())


def _upload(client: httpx2.Client, path: str, content: bytes) -> None:
    answer = client.post("/api/file/upload", params={"path": path}, files={"file": ("file", content)})
    assert answer.status_code == 200, answer.text


def _send_by_mcp(client: httpx2.Client, id: str, text: str) -> str:
    headers = {"Accept": "application/json, text/event-stream"}
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    begun = client.post("/mcp", json=body, headers=headers)
    headers |= {"Mcp-Session-Id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-06-18"}
    call = {"name": "send_message", "arguments": {"conversation": id, "message": text, "run": False}}
    return client.post("/mcp", json={**body, "method": "tools/call", "params": call}, headers=headers).text


def _send_by_socket(url: str, id: str, message: dict[str, str]) -> str:
    address = f"{url.rstrip('/').replace('http', 'ws')}/sockets/events/{id}"
    with connect(address, proxy=None, max_size=None) as socket:
        socket.send(json.dumps(message))
        while (frame := json.loads(socket.recv(timeout=60)))["kind"] != "ServerErrorEvent":
            pass
        return json.dumps(frame)


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")  # it makes the small disk
def test_a_full_disk_is_told_as_such(person: Person) -> None:
    small = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--size", str(6 << 20), "--tmpfs", "/mnt"]
    log = person.folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*small, "--chdir", str(person.folder), str(BOUGH), "serve", "--port", "0"],
            env={**person.env, "BOUGH_HOME": "/mnt/home"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        with httpx2.Client(base_url=_wait_for_url(log, process), timeout=60, trust_env=False) as client:
            id = client.post("/api/conversations", json={}).json()["id"]
            folder = client.get(f"/api/conversations/{id}").json()["workspace"]["working_dir"]
            assert folder.startswith("/mnt/"), folder
            files = {"file": ("big", b"x" * (8 << 20))}
            refused = client.post("/api/file/upload", params={"path": f"{folder}/big"}, files=files)
            assert refused.status_code == 503, refused.text
            assert "disk is full" in refused.json()["detail"]
            assert client.get("/ready").status_code == 200, "writes to the store have not failed"
            message = {"content": "cake " * 40_000}
            for _ in range(80):
                said = client.post(f"/api/conversations/{id}/events", json=message)
                if said.status_code != 200:
                    break
            assert said.status_code == 503, said.text
            assert said.json()["detail"].startswith("the disk is full")
            ready = client.get("/ready")
            assert (ready.status_code, ready.json()["checks"]["store"]) == (503, "cannot be written")

            over_mcp = _send_by_mcp(client, id, message["content"])
            over_socket = _send_by_socket(str(client.base_url), id, message)
            for text in (said.text, ready.text, over_mcp, over_socket):
                assert "/mnt" not in text and "log.db" not in text
            assert "store_error: the disk is full" in over_mcp
            assert '"detail": "the disk is full' in over_socket

            # Once there is space again, the server is ready without a restart.
            _upload(client, f"{folder}/big", b"")
            assert client.get("/ready").json() == {
                "status": "ok",
                "checks": dict.fromkeys(ready.json()["checks"], "ok"),
            }
            assert client.post(f"/api/conversations/{id}/events", json=message).status_code == 200
    finally:
        process.terminate()
        process.wait(30)
