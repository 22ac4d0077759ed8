"""A database that goes away and comes back, behind a relay that the test cuts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.processes import POLL_SECONDS

from bough.settings import Settings

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.slow]


class CutRelay:
    """Carries connections to a port of this machine until it is cut; a cut one is made whole again on its own port."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._sockets: set[socket.socket] = set()
        self._listening = self._listen(0)
        self.port: int = self._listening.getsockname()[1]

    def _listen(self, port: int) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._sockets:
            _end(each)
        self._sockets.clear()

    def mend(self) -> None:
        """Take connections again."""
        self._listening = self._listen(self.port)


def _carry(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
    for each in (one, other):
        _end(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture
def relay(database: str) -> Iterator[CutRelay]:
    """What stands between the server and its database."""
    found = CutRelay(urlsplit(database).port or 5432)
    yield found
    found.cut()


@pytest.fixture
def settings(tmp_path: Path, database: str, relay: CutRelay) -> Settings:
    """Settings whose store is reached through the relay."""
    parts = urlsplit(database)
    url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{relay.port}").geturl()
    return Settings.load(home=tmp_path / "home", env={"BOUGH_STORE": url}, cwd=tmp_path)


def test_a_database_that_goes_away_is_503_and_comes_back(serving: Any, relay: CutRelay) -> None:
    with serving("first", "second") as server, server.client() as client:
        id = client.post("/api/conversations", json={"initial_message": "a"}).json()["id"]
        path = f"/api/conversations/{id}"
        assert client.post(f"{path}/run", json={"wait": 60}).json()["output"] == "first"
        relay.cut()
        for answer in (client.get(path), client.post(f"{path}/run"), client.get("/api/tasks")):
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/ready").status_code == 503
        assert client.get("/alive").status_code == 200
        relay.mend()
        while client.get(path).status_code == 503:
            time.sleep(POLL_SECONDS)
        assert client.post(f"{path}/events", json={"content": "b"}).status_code == 200
        assert client.post(f"{path}/run", json={"wait": 60}).json()["output"] == "second"
