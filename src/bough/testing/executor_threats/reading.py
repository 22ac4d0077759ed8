"""Attacks that read data a script must not see."""

# ruff: noqa: D102, ASYNC230, S103 - tests: their names say what they do
from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from bough.execution.base import (
    CodeExecutor,
)
from bough.testing.executor_threats.base import Threats

SEARCH = """
import os, sys, time
end = time.monotonic() + 3
def search_file(path):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as f:
            data = f.read(1 << 16) or b""
    except OSError:
        return
    if b"canary-" in data:
        at = data.index(b"canary-")
        print("FOUND", path, data[at:at + 60], flush=True)
for path in sys.argv[1:]:
    search_file(path)
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid() and time.monotonic() < end:
        for name in ("environ", "cmdline"):
            search_file(f"/proc/{pid}/{name}")
        for path in sys.argv[1:]:
            search_file(f"/proc/{pid}/root{path}")
            search_file(f"/proc/{pid}/cwd{path}")
for root in ("/etc", "/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/run", "/mnt", "/srv", "/opt"):
    for folder, _, names in os.walk(root):
        if folder.count("/") > 6 or time.monotonic() > end:
            break
        for name in names[:50]:
            if not folder.startswith("/run/bough"):
                search_file(os.path.join(folder, name))
"""
"""Source that searches for canaries in common folders, in other processes and at the given paths."""


class ReadingThreats(Threats):
    """Attacks that read data a script must not see."""

    async def test_read_secrets_on_the_host(
        self, executor: CodeExecutor, canary: str, outside: Path, isolated_home: Path
    ) -> None:
        files = [outside / "secret", isolated_home / ".ssh" / "id_ed25519", outside / "other-skill" / "SKILL.md"]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text(canary)
        result = await self.run(executor, SEARCH, *files)
        assert canary.encode() not in self.everything(result)

    async def test_read_the_password_hashes(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print(open('/etc/shadow').read())")
        assert b"root:" not in result.stdout

    async def test_read_another_process(
        self, executor: CodeExecutor, canary: str, bystander: subprocess.Popen[bytes]
    ) -> None:
        pid = bystander.pid
        result = await self.run(executor, SEARCH, f"/proc/{pid}/environ", f"/proc/{pid}/cmdline", f"/proc/{pid}/mem")
        assert canary.encode() not in self.everything(result)

    async def test_read_the_environment_of_the_caller(
        self, executor: CodeExecutor, canary: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("A_KEY", canary)
        code = "import os; print(dict(os.environ)); os.system('env; cat /proc/*/environ')"
        assert canary.encode() not in self.everything(await self.run(executor, code))

    async def test_read_connections_and_addresses_of_the_host(self, executor: CodeExecutor, outside: Path) -> None:
        code = (
            "import os, sys\n"
            "for folder in ('/proc/net', '/proc/self/net', f'/proc/{os.getppid()}/net', '/proc/1/net'):\n"
            "    for name in ('tcp', 'unix', 'route', 'fib_trie', 'arp', 'dev'):\n"
            "        try: text = open(f'{folder}/{name}').read()\n"
            "        except OSError: continue\n"
            "        print(*(word for word in sys.argv[1:] if word in text))"
        )
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(outside / "socket"))
            unix.listen()
            port = f":{tcp.getsockname()[1]:04X} 00000000:0000"
            result = await self.run(executor, code, port, outside / "socket")
        assert result.stdout.split() == [], result.stderr

    async def test_a_link_among_the_outputs_is_not_followed(
        self, executor: CodeExecutor, canary: str, outside: Path
    ) -> None:
        (outside / "secret").write_text(canary)
        code = (
            "import os, sys\n"
            "os.symlink(sys.argv[1] + '/secret', 'file'); os.symlink(sys.argv[1], 'folder')\n"
            "os.mkdir('was'); open('was/x', 'w'); os.rename('was', 'gone'); os.symlink(sys.argv[1], 'was')"
        )
        result = await self.run(executor, code, outside)
        assert canary.encode() not in self.everything(result)

    async def test_read_the_input_of_a_run_as_another_user(
        self, executor: CodeExecutor, workspace: Path, canary: str
    ) -> None:
        """During a run, other users of the machine cannot read its inputs."""
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        code = f"secret = '{canary}'\nopen('up', 'w').write('x')\nimport time; time.sleep(1000)"
        with open(workspace / "up", "r+b", buffering=0) as up:
            running = asyncio.ensure_future(
                self.run(executor, code, workspace=str(workspace), stdin=canary, env={"SECRET": canary})
            )
            reading = asyncio.ensure_future(anyio.wait_readable(up))
            await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            try:
                assert not running.done(), running
                readable = [path for folder in _list_run_folders() for path in _list_world_accessible(folder)]
                assert [path for path in readable if path.is_socket()] == []
                assert [path for path in readable if canary.encode() in path.read_bytes()] == []
            finally:
                reading.cancel()
                running.cancel()
                await asyncio.wait([running])


def _list_run_folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("bough-run-*"))


def _list_world_accessible(folder: Path) -> Iterator[Path]:
    """Yield the files and sockets below a folder that every user of the machine may read or write."""
    try:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return
        entries = list(folder.iterdir())
    except OSError:
        return
    for path in entries:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _list_world_accessible(path)
        elif (stat.S_ISREG(mode) and mode & stat.S_IROTH) or (stat.S_ISSOCK(mode) and mode & stat.S_IWOTH):
            yield path
