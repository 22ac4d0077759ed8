"""What the peer's client sends, sent again: every request is answered as its models read it.

`traffic.json` was recorded while the client of `openhands-sdk` drove the server; see `test_client.py`.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import pytest
from tests.server.peer.steps import model_steps
from tests.server.peer.traffic import find_misfit, is_json, route_of
from tests.server.processes import POLL_SECONDS
from websockets.sync.client import connect

from bough.settings import Settings

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("traffic.json").read_text())
_NAME = re.compile(r"<(\w+)>")


class Replay:
    """Sends the recorded requests in order, ids bound by name as they come."""

    def __init__(self, client: httpx2.Client, names: dict[str, str]) -> None:
        self._client = client
        self._names = names

    def send(self, request: dict[str, Any]) -> None:
        """Send one, and check what comes back."""
        body = None if request["body"] is None else self._bind(request["body"]).encode()
        headers = {"Content-Type": "application/json"}
        if body is not None and b"Content-Disposition" in body:
            boundary = body.split(b"\r\n", 1)[0].removeprefix(b"--").decode()
            headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        path, query = self._bind(request["path"]), self._bind(request["query"])
        for _ in range(600):
            answer = self._client.request(
                request["method"], f"{path}?{quote(query, safe='=&')}", content=body, headers=headers
            )
            if not self._is_early(request, answer):
                break
            time.sleep(POLL_SECONDS)
        assert answer.status_code == request["status"], (request, answer.text)
        if is_json(answer.content):
            shape = RECORDED["answers"][route_of(request["method"], path)]
            assert find_misfit(shape, answer.json()) is None, request
        self._learn(request, answer)
        if path.endswith("/run"):
            self._wait(path.removesuffix("/run"))

    def _is_early(self, request: dict[str, Any], answer: httpx2.Response) -> bool:
        """Whether a command has not ended, which its output is asked for again until it has."""
        return "bash_events" in request["path"] and not answer.json()["items"]

    def _wait(self, path: str) -> None:
        while self._client.get(path).json()["execution_status"] == "running":
            time.sleep(POLL_SECONDS)

    def _bind(self, text: str) -> str:
        return _NAME.sub(lambda found: self._names.setdefault(found[1], str(uuid4())), text)

    def _learn(self, request: dict[str, Any], answer: httpx2.Response) -> None:
        """Bind the names that the recording gave to the ids of an answer."""
        for name, where in request.get("ids", {}).items():
            value: Any = answer.json()
            for step in where:
                value = value[step]
            self._names.setdefault(name, value)


def read_frames(port: int, id: str, key: str, count: int) -> list[dict[str, Any]]:
    """Return the first frames of a socket that is sent everything from the beginning."""
    with connect(f"ws://127.0.0.1:{port}/sockets/events/{id}?resend_mode=all", proxy=None) as socket:
        socket.send(json.dumps({"type": "auth", "session_api_key": key}))
        return [json.loads(socket.recv(timeout=30)) for _ in range(count)]


@pytest.mark.needs("bubblewrap")
def test_recorded_requests_are_answered_as_the_client_reads_them(
    serving: Any, new_key: Any, settings: Settings
) -> None:
    key = new_key(tenant="red", role="admin")
    folder = settings.home / "workspaces" / "red" / "project"
    folder.mkdir(parents=True)
    with serving(*model_steps(), tools="run") as server, server.client(key.text) as client:
        names = {"model": server.model_url, "home": str(settings.home)}
        replay = Replay(client, names)
        *requests, last = RECORDED["requests"]
        for request in requests:
            replay.send(request)
        assert last["method"] == "DELETE"
        (id,) = _NAME.findall(last["path"])
        count = client.get(f"/api/conversations/{names[id]}/events/count").json()
        first, *frames = read_frames(server.port, names[id], key.text, count + 1)
        assert first["key"] == "full_state"
        misfits = [find_misfit(RECORDED["frames"][frame["kind"]], frame) for frame in (first, *frames)]
        assert misfits == [None] * (count + 1)
        replay.send(last)
