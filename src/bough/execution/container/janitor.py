"""A process that waits until its owner has exited, and then removes the containers that the owner left behind.

It is started as `python3 -I -S janitor.py SOCKET_PATH LABEL` and reads its input to the end. Only the owner has the
other end of that pipe. If the owner is killed, nothing else removes a kept container, or one that was never started.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
import weakref
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

_ROUNDS: Final = 20
_PAUSE_SECONDS: Final = 0.5
"""The pause between two rounds. One is not enough: a request of the owner may arrive after the owner has exited."""


class ContainerJanitor:
    """Starts the janitor of this process, which uses a few megabytes.

    Args:
        socket_path: The engine's socket.
        label: `NAME=VALUE` of the containers to remove when this process has ended.
    """

    def __init__(self, socket_path: str, label: str) -> None:
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self._pid: int | None = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", __file__, socket_path, label],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_DUP2, null, n) for n in (1, 2))],
                setsid=True,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
            os.close(null)
        self._release = weakref.finalize(self, os.close, writing)

    def close(self) -> None:
        """Stop the janitor, once the owner has removed its containers. Idempotent. Blocks for a millisecond."""
        pid, self._pid = self._pid, None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # it ignores the other signals
            os.waitpid(pid, 0)
        self._release()


def _request(socket_path: str, method: str, path: str) -> Any:
    """Send a request to the engine and return the JSON of the response; None if there is no body."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(60)
        connection.sock.connect(socket_path)
        connection.request(method, path)
        return json.loads(connection.getresponse().read() or b"null")
    finally:
        connection.close()


def _remove_containers(socket_path: str, label: str) -> int:
    """Remove all containers with the label; return their number."""
    filters = quote(json.dumps({"label": [label]}))
    containers = _request(socket_path, "GET", f"/containers/json?all=1&filters={filters}")
    ids = [str(container["Id"]) for container in containers]
    for id in ids:
        _request(socket_path, "DELETE", f"/containers/{id}?force=1&v=1")
    return len(ids)


def main() -> None:
    """Wait until the owner has exited; then remove its containers, until two rounds in a row find none."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(1):
        pass
    empty_rounds = 0
    for _ in range(_ROUNDS):
        removed = 1
        with suppress(OSError, ValueError, http.client.HTTPException, KeyError, TypeError):
            removed = _remove_containers(*sys.argv[1:3])
        empty_rounds = 0 if removed else empty_rounds + 1
        if empty_rounds == 2:
            return
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
