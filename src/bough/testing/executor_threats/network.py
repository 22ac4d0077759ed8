"""Attacks over the network and sockets."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import shutil
import socket
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from bough.execution.base import (
    CodeExecutor,
    Mount,
)
from bough.testing.executor_threats.base import Threats


class NetworkThreats(Threats):
    """Attacks that reach a listener on the host."""

    async def test_reach_a_listener_over_tcp(self, executor: CodeExecutor) -> None:
        code = (
            "import socket, sys\n"
            "for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET, sys.argv[2]),\n"
            "                     (socket.AF_INET6, '::1')):\n"
            "    try:\n"
            "        s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(1)\n"
            "        s.connect((host, int(sys.argv[1]))); s.send(b'hello')\n"
            "    except OSError: pass\n"
        )
        with _make_listener(socket.AF_INET6, socket.SOCK_STREAM, ("::", 0)) as listener:
            await self.run(executor, code, listener.getsockname()[1], _find_own_address())
            with pytest.raises(BlockingIOError):
                listener.accept()

    async def test_reach_a_listener_over_udp(self, executor: CodeExecutor) -> None:
        code = (
            "import socket, sys\n"
            "for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET, sys.argv[2]),\n"
            "                     (socket.AF_INET6, '::1')):\n"
            "    try: socket.socket(family, socket.SOCK_DGRAM).sendto(b'hello', (host, int(sys.argv[1])))\n"
            "    except OSError: pass\n"
        )
        with _make_listener(socket.AF_INET6, socket.SOCK_DGRAM, ("::", 0)) as listener:
            await self.run(executor, code, listener.getsockname()[1], _find_own_address())
            with pytest.raises(BlockingIOError):
                listener.recv(100)

    async def test_reach_an_abstract_unix_socket(self, executor: CodeExecutor) -> None:
        name = f"bough-{uuid.uuid4().hex}"
        code = (
            "import socket, sys\n"
            "try: socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])\n"
            "except OSError: pass\n"
        )
        with _make_listener(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}") as listener:
            await self.run(executor, code, name)
            with pytest.raises(BlockingIOError):
                listener.accept()

    @pytest.mark.parametrize("place", ["workspace", "skill", "elsewhere"])
    async def test_reach_a_unix_socket_by_path(self, executor: CodeExecutor, workspace: Path, place: str) -> None:
        code = (
            "import socket, sys\n"
            "for path in ('/work/s', '/skill/s', sys.argv[1]):\n"
            "    try: socket.socket(socket.AF_UNIX).connect(path)\n"
            "    except OSError: pass\n"
        )
        folder = Path(tempfile.mkdtemp(prefix="s-")) if place == "elsewhere" else workspace
        folder.chmod(0o755)
        request: dict[str, Any] = {}
        if place == "workspace":
            request = {"workspace": str(folder)}
        elif place == "skill":
            request = {"mounts": (Mount(source=str(folder), target="/skill"),)}
        with _make_listener(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "s")) as listener:
            (folder / "s").chmod(0o777)
            await self.run(executor, code, folder / "s", **request)
            with pytest.raises(BlockingIOError):
                listener.accept()
        if place == "elsewhere":
            shutil.rmtree(folder)

    @pytest.mark.parametrize("place", ["workspace", "elsewhere"])
    async def test_reach_a_datagram_socket_from_a_pair(
        self, executor: CodeExecutor, workspace: Path, place: str
    ) -> None:
        """A socket of a pair can be connected to another address, or send to it; a link may lead to the address."""
        code = (
            "import array, os, socket, sys\n"
            "try: os.symlink(sys.argv[1], '/work/link')\n"
            "except OSError: pass\n"
            "rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))]\n"
            "for path in ('/work/s', '/work/link', 'link', sys.argv[1]):\n"
            "    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):\n"
            "        for attempt in (lambda s: s.sendto(b'hello', path),\n"
            "                        lambda s: s.sendmsg([b'x'], rights, 0, path),\n"
            "                        lambda s: (s.connect(path), s.send(b'hello'))):\n"
            "            try: attempt(socket.socketpair(socket.AF_UNIX, kind)[0])\n"
            "            except OSError: pass\n"
            "one, other = socket.socketpair()\n"
            "one.send(b'pairs work'); print(other.recv(100))"
        )
        folder = Path(tempfile.mkdtemp(prefix="s-")) if place == "elsewhere" else workspace
        folder.chmod(0o755)
        with _make_listener(socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "s")) as listener:
            (folder / "s").chmod(0o777)
            result = await self.run(executor, code, folder / "s", workspace=str(workspace))
            assert result.exit_code == 0, result.stderr
            with pytest.raises(BlockingIOError):
                listener.recv(100)
        if place == "elsewhere":
            shutil.rmtree(folder)

    async def test_make_sockets_of_other_kinds(self, executor: CodeExecutor) -> None:
        code = (
            "import socket\n"
            "created = []\n"
            "for family in range(2, 46):\n"
            "    for kind in (1, 2, 3, 5):\n"
            "        try: socket.socket(family, kind, 0).close(); created.append((family, kind))\n"
            "        except OSError: pass\n"
            "print(created)"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"


def _make_listener(family: int, kind: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    # Non-blocking, so that `accept` and `recv` fail at once if nothing arrived.
    listener.setblocking(False)
    return listener


def _find_own_address() -> str:
    """Return an address of this machine that is not a loopback address, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
