"""`bough` from a process that has imported it: each command is a fork of it, a process like any other.

Importing PydanticAI is most of what a command takes, and the tests start hundreds of them. What concerns the start of
the interpreter, terminals and signals is tested with processes of their own: `Cli.start`, `Cli.on_terminal`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import bough

LEFT_OUT = (
    "bough.conversation.adapters",
    "bough.execution.adapters",
    "bough.execution.inside",
    "bough.server",
    "bough.testing",
)
"""What few commands use: imported by those that do."""

_STREAMS = 3
_MAX_MESSAGE = 1 << 20


class Preloaded:
    """A process that runs commands of `bough` in forks of itself; it ends with the process that made it."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "bough")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def run(
        self, args: Sequence[str | Path], cwd: Path, env: Mapping[str, str], input: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command like `subprocess.run(…, capture_output=True, text=True)`."""
        pipes = [os.pipe() for _ in range(_STREAMS)]
        (stdin, feed), (out, stdout), (err, stderr) = pipes
        asked = json.dumps({"args": [str(arg) for arg in args], "cwd": str(cwd), "env": dict(env)}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_MESSAGE)
            connection.connect(self._address)
            socket.send_fds(connection, [asked], [stdin, stdout, stderr])
            for end in (stdin, stdout, stderr):
                os.close(end)
            said: dict[str, bytes] = {}
            readers = [
                threading.Thread(target=_read_all, args=(os.fdopen(end, "rb"), said, name))
                for end, name in ((out, "stdout"), (err, "stderr"))
            ]
            for reader in readers:
                reader.start()
            _write_all(os.fdopen(feed, "wb"), input.encode())
            for reader in readers:
                reader.join()
            code = int.from_bytes(connection.recv(4), "little", signed=True)
        if "--json" in args and code >= 0:
            from tests.json_schemas import check_lines  # here, because this module is also the program below

            check_lines([*map(str, args)], said["stdout"].decode())
        return subprocess.CompletedProcess(
            ["bough", *map(str, args)], code, *(said[name].decode() for name in ("stdout", "stderr"))
        )


def _read_all(file: IO[bytes], said: dict[str, bytes], name: str) -> None:
    with file:
        said[name] = file.read()


def _write_all(file: IO[bytes], data: bytes) -> None:
    try:
        with file:
            file.write(data)
    except BrokenPipeError:  # the command does not read it
        pass


def _serve(address: str) -> dict[str, Any]:
    """Fork for each command that is asked for, until stdin ends; return in the fork, with what is asked for."""
    waiting = selectors.DefaultSelector()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    waiting.register(listening, selectors.EVENT_READ)
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}
    assert threading.active_count() == 1, "a fork has only the thread that makes it"
    gc.freeze()
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj == sys.stdin.fileno():
                os._exit(0)
            if key.fileobj is not listening:
                pid, connection = running.pop(key.fd)
                waiting.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                connection.send(code.to_bytes(4, "little", signed=True))
                connection.close()
                continue
            connection, _ = listening.accept()
            data, fds, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, _STREAMS)
            pid = os.fork()
            if pid == 0:
                waiting.close()
                listening.close()
                connection.close()
                for fd, (_, other) in running.items():
                    os.close(fd)
                    other.close()
                for place, fd in enumerate(fds):
                    os.dup2(fd, place)
                for fd in fds:
                    os.close(fd)
                return json.loads(data)
            for fd in fds:
                os.close(fd)
            found = os.pidfd_open(pid)
            running[found] = (pid, connection)
            waiting.register(found, selectors.EVENT_READ)


def _become(asked: Mapping[str, Any]) -> None:
    """Become like the process that the command would have had of its own."""
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    os.chdir(asked["cwd"])
    random.seed()
    sys.argv = ["bough", *asked["args"]]
    for name, mode, fd in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        stream = open(fd, mode, encoding="utf-8", closefd=False, errors="backslashreplace" if fd == 2 else "strict")  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    for module in pkgutil.walk_packages(bough.__path__, "bough."):
        if not module.name.startswith(LEFT_OUT):
            importlib.import_module(module.name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _become(_serve(sys.argv[1]))
    from bough.cli.main import main

    ended: int | None = 0
    try:
        main()
    except SystemExit as end:
        ended = end.code if end.code is None or isinstance(end.code, int) else 1
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()  # pyright: ignore
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended or 0)  # modules are not taken apart: that would copy every page that is shared
