"""What no sandbox may let through, as tests: subclass `ExecutorThreats` and give it a fixture `executor`.

Every attack aims at something on the host: a secret, a folder, a listener, a process. What counts is what the host sees
of it: whether the secret came out, the folder changed, the listener was reached, the process is alive. Where an attack
has no trace on the host (a system call that must not reach the kernel), the probe's own report counts, and only against
the sandbox. An executor without a wall fails these tests, which shows that the attacks work.
"""

# ruff: noqa: S108, S603, D102, ASYNC240 - tests: their names say what they do
from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.errors import BoughError
from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionLimits,
    File,
    Mount,
)

SEARCH = """
import os, sys, time
end = time.monotonic() + 3
def tell(path):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as f:
            data = f.read(1 << 16) or b""
    except OSError:
        return
    if b"canary-" in data:
        at = data.index(b"canary-")
        print("FOUND", path, data[at:at + 60], flush=True)
for path in sys.argv[1:]:
    tell(path)
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid() and time.monotonic() < end:
        for name in ("environ", "cmdline"):
            tell(f"/proc/{pid}/{name}")
        for path in sys.argv[1:]:
            tell(f"/proc/{pid}/root{path}")
            tell(f"/proc/{pid}/cwd{path}")
for root in ("/etc", "/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/run", "/mnt", "/srv", "/opt"):
    for folder, _, names in os.walk(root):
        if folder.count("/") > 6 or time.monotonic() > end:
            break
        for name in names[:50]:
            if not folder.startswith("/run/bough"):
                tell(os.path.join(folder, name))
"""
"""Source that looks for canaries everywhere, and at the paths it is given."""

X86_64 = platform.machine() == "x86_64"
SYSCALLS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    # name: (x86_64, aarch64, arguments)
    "unshare(CLONE_NEWUSER)": (272, 97, (0x10000000,)),
    "unshare(CLONE_NEWNS)": (272, 97, (0x00020000,)),
    "setns": (308, 268, (-1, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, 0)),
    "pivot_root": (155, 41, (0, 0)),
    "chroot": (161, 51, (0,)),
    "open_tree": (428, 428, (-100, 0, 1)),
    "fsopen": (430, 430, (0, 0)),
    "move_mount": (429, 429, (-1, 0, -1, 0, 0)),
    "mount_setattr": (442, 442, (-1, 0, 0, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "userfaultfd": (323, 282, (0,)),
    "io_uring_setup": (425, 425, (1, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, 0)),
    "keyctl": (250, 219, (0, 0)),
    "request_key": (249, 218, (0, 0, 0, 0)),
    "ptrace": (101, 117, (16, 1, 0, 0)),
    "process_vm_readv": (310, 270, (1, 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, 271, (1, 0, 0, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (-1, 0, 0)),
    "kcmp": (312, 272, (1, 1, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "finit_module": (313, 273, (-1, 0, 0)),
    "delete_module": (176, 106, (0, 0)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "swapon": (167, 224, (0, 0)),
    "syslog": (103, 116, (3, 0, 0)),
    "acct": (163, 89, (1,)),
    "settimeofday": (164, 170, (0, 0)),
    "clock_settime": (227, 112, (0, 0)),
    "sethostname": (170, 161, (0, 100)),
    "quotactl": (179, 60, (0, 0, 0, 0)),
    "fanotify_init": (300, 262, (0, 0)),
    "clone3": (435, 435, (0, 0)),
}
"""System calls that scripts have no use for, with numbers and harmless arguments."""

CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number, *arguments = map(int, sys.argv[1:])
result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
refused = result == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EACCES)
print(result, errno.errorcode.get(ctypes.get_errno()))
sys.exit(0 if refused else 66)
"""
"""Source that makes one system call and ends with 66 when the kernel took it."""


@pytest.mark.anyio
class ExecutorThreats:
    """Attacks on the host; every one has to fail.

    A subclass may set `let_through`: the names of attacks that its wall is documented not to stop. They are then
    expected to succeed, and the test fails when they do not.
    """

    let_through: frozenset[str] = frozenset()

    @pytest.fixture
    def executor(self) -> CodeExecutor:
        """The executor under test; a subclass gives it."""
        raise NotImplementedError("a subclass gives the fixture 'executor'")

    @pytest.fixture(autouse=True)
    def _expected(self, request: pytest.FixtureRequest) -> None:
        name = request.node.name
        if name in self.let_through or name.split("[")[0] in self.let_through:
            request.node.add_marker(pytest.mark.xfail(strict=True, reason="documented: this wall does not stop it"))

    @pytest.fixture
    def canary(self) -> str:
        """A text that must never come out."""
        return f"canary-{uuid.uuid4().hex}"

    @pytest.fixture
    def outside(self) -> Iterator[Path]:
        """A folder on the host that everyone may read and write."""
        folder = Path(tempfile.mkdtemp(prefix="outside-"))
        folder.chmod(0o777)
        yield folder
        shutil.rmtree(folder)

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        """A folder of the caller, to be used as `/work` itself."""
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder

    @pytest.fixture
    def bystander(self, canary: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process on the host with a secret in its environment and its arguments."""
        code = "import time; print('up', flush=True); time.sleep(1000)"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, canary], stdout=subprocess.PIPE, env={"SECRET": canary}
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()
        process.communicate()

    @staticmethod
    async def run(executor: CodeExecutor, code: str, *argv: object, **request: Any) -> CodeExecutionResult:
        """Run Python source text with arguments."""
        arguments = tuple(str(argument) for argument in argv)
        return await executor.execute(CodeExecutionInput(code=code, argv=arguments, **request))

    @staticmethod
    def everything(result: CodeExecutionResult) -> bytes:
        """Return all that came out of a run."""
        files = b"".join(file.content for file in result.output_files)
        return result.stdout + result.stderr + files

    # reading

    async def test_read_secrets_on_the_host(
        self, executor: CodeExecutor, canary: str, outside: Path, isolated_home: Path
    ) -> None:
        places = [outside / "secret", isolated_home / ".ssh" / "id_ed25519", outside / "other-skill" / "SKILL.md"]
        for place in places:
            place.parent.mkdir(exist_ok=True)
            place.write_text(canary)
        result = await self.run(executor, SEARCH, *places)
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

    # writing

    async def test_write_outside(self, executor: CodeExecutor, outside: Path) -> None:
        name = f"bough-{uuid.uuid4().hex}"
        code = (
            "import os, sys\n"
            "name, *folders = sys.argv[1:]\n"
            "for folder in folders:\n"
            "    try: open(os.path.join(folder, name), 'w').write('x')\n"
            "    except OSError: pass\n"
        )
        folders = [str(outside), "/tmp", "/var/tmp", "/dev/shm", "/", "/usr", "/etc", "/root", "/run", "/proc/1/cwd"]
        await self.run(executor, code, name, *folders)
        assert [folder for folder in folders if os.path.exists(os.path.join(folder, name))] == []

    async def test_change_the_own_skill(self, executor: CodeExecutor, outside: Path) -> None:
        (outside / "SKILL.md").write_text("as it was")
        (outside / "SKILL.md").chmod(0o666)
        code = (
            "import os\n"
            "for attack in (lambda: open('/skill/SKILL.md', 'w').write('x'), lambda: open('/skill/new', 'w'),\n"
            "               lambda: os.unlink('/skill/SKILL.md'), lambda: os.rename('/skill', '/gone'),\n"
            "               lambda: os.chmod('/skill/SKILL.md', 0), lambda: os.utime('/skill/SKILL.md', (0, 0)),\n"
            "               lambda: os.truncate('/skill/SKILL.md', 0), lambda: os.mkdir('/skill/folder')):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
        )
        before = (outside / "SKILL.md").stat()
        await self.run(executor, code, mounts=(Mount(source=str(outside), target="/skill"),))
        after = (outside / "SKILL.md").stat()
        assert [p.name for p in outside.iterdir()] == ["SKILL.md"]
        assert (outside / "SKILL.md").read_text() == "as it was"
        assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)

    async def test_change_a_protected_part_of_the_workspace(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / ".git").mkdir()
        (workspace / ".git" / "config").write_text("as it was")
        code = (
            "import os\n"
            "for attack in (lambda: open('.git/config', 'w').write('x'), lambda: os.rename('.git', 'moved'),\n"
            "               lambda: open('.git/hook', 'w'), lambda: os.unlink('.git/config')):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
            "open('mine', 'w')"
        )
        mounts = (Mount(source=str(workspace / ".git"), target="/work/.git"),)
        result = await self.run(executor, code, workspace=str(workspace), mounts=mounts)
        assert result.exit_code == 0
        assert (workspace / ".git" / "config").read_text() == "as it was"
        assert sorted(p.name for p in workspace.iterdir()) == [".git", "mine"]
        assert [p.name for p in (workspace / ".git").iterdir()] == ["config"]

    async def test_input_files_are_not_written_through_a_planted_link(
        self, executor: CodeExecutor, workspace: Path, outside: Path
    ) -> None:
        (outside / "victim").write_text("as it was")
        plant = "import os, sys; os.symlink(sys.argv[1], 'd'); os.symlink(sys.argv[1] + '/victim', 'f')"
        assert (await self.run(executor, plant, outside, workspace=str(workspace))).ok
        files = (File(path="d/evil", content=b"x"), File(path="f", content=b"x"))
        for file in files:
            try:
                await self.run(executor, "pass", workspace=str(workspace), input_files=(file,))
            except BoughError:
                continue
        assert (outside / "victim").read_text() == "as it was"
        assert [p.name for p in outside.iterdir()] == ["victim"]

    async def test_leave_a_setuid_file_behind(self, executor: CodeExecutor, workspace: Path) -> None:
        code = (
            "import os, shutil\n"
            "shutil.copy('/bin/sh', 'a')\n"
            "def by_open(): os.close(os.open('b', os.O_CREAT | os.O_WRONLY, 0o4755))\n"
            "def by_fchmod(): os.fchmod(os.open('c', os.O_CREAT | os.O_WRONLY), 0o6755)\n"
            "for attack in (lambda: os.chmod('a', 0o4755), by_open, by_fchmod, lambda: os.mknod('d', 0o104755)):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
        )
        await self.run(executor, code, workspace=str(workspace))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in workspace.iterdir()}
        assert "a" in modes
        assert {name: mode for name, mode in modes.items() if mode & 0o6000} == {}

    async def test_change_settings_of_the_kernel(self, executor: CodeExecutor) -> None:
        names = ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory")
        before = {name: _read(f"/proc/sys/{name}") for name in names}
        code = (
            "import sys\n"
            "for path in sys.argv[1:]:\n"
            "    try:\n"
            "        old = open(path).read().strip()\n"
            "        open(path, 'w').write(old + ('0' if old.isdigit() else '-attacked'))\n"
            "    except OSError: pass\n"
            "import socket\n"
            "try: socket.sethostname('attacked')\n"
            "except OSError: pass\n"
        )
        try:
            await self.run(executor, code, *(f"/proc/sys/{name}" for name in names[:2]), "/proc/sysrq-trigger")
            assert {name: _read(f"/proc/sys/{name}") for name in names} == before
        finally:
            for name, value in before.items():
                if _read(f"/proc/sys/{name}") != value:
                    Path(f"/proc/sys/{name}").write_text(value)

    # network

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
        with _listener(socket.AF_INET6, socket.SOCK_STREAM, ("::", 0)) as listener:
            await self.run(executor, code, listener.getsockname()[1], _own_address())
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
        with _listener(socket.AF_INET6, socket.SOCK_DGRAM, ("::", 0)) as listener:
            await self.run(executor, code, listener.getsockname()[1], _own_address())
            with pytest.raises(BlockingIOError):
                listener.recv(100)

    async def test_reach_an_abstract_unix_socket(self, executor: CodeExecutor) -> None:
        name = f"bough-{uuid.uuid4().hex}"
        code = (
            "import socket, sys\n"
            "try: socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])\n"
            "except OSError: pass\n"
        )
        with _listener(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}") as listener:
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
        with _listener(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "s")) as listener:
            (folder / "s").chmod(0o777)
            await self.run(executor, code, folder / "s", **request)
            with pytest.raises(BlockingIOError):
                listener.accept()
        if place == "elsewhere":
            shutil.rmtree(folder)

    async def test_make_sockets_of_other_kinds(self, executor: CodeExecutor) -> None:
        code = (
            "import socket\n"
            "made = []\n"
            "for family in range(2, 46):\n"
            "    for kind in (1, 2, 3, 5):\n"
            "        try: socket.socket(family, kind, 0).close(); made.append((family, kind))\n"
            "        except OSError: pass\n"
            "print(made)"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"

    # other processes and the kernel

    async def test_kill_processes_of_the_host(self, executor: CodeExecutor, bystander: subprocess.Popen[bytes]) -> None:
        code = (
            "import os, signal, sys\n"
            "for pid in (int(sys.argv[1]), int(sys.argv[1]), os.getppid()):\n"
            "    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):\n"
            "        try: os.kill(pid, number)\n"
            "        except OSError: pass\n"
        )
        await self.run(executor, code, bystander.pid, timeout_seconds=5)
        assert bystander.poll() is None
        assert _state_of(bystander.pid) == "S"

    async def test_kill_everything(self, executor: CodeExecutor, bystander: subprocess.Popen[bytes]) -> None:
        if executor.isolation == 0:
            pytest.fail("without a wall this attack is not even tried")
        code = "import os, signal; os.kill(-1, signal.SIGKILL)"
        await self.run(executor, code, timeout_seconds=5)
        assert bystander.poll() is None

    async def test_stopping_the_first_process_does_not_stop_the_clock(self, executor: CodeExecutor) -> None:
        code = (
            "import os, signal, time\n"
            "for pid in (1, os.getppid()):\n"
            "    try: os.kill(pid, signal.SIGSTOP)\n"
            "    except OSError: pass\n"
            "print('still here', flush=True)\n"
            "time.sleep(1000)"
        )
        result = await self.run(executor, code, timeout_seconds=1.0)
        assert result.timed_out
        assert result.wall_seconds < 10

    async def test_forge_the_end_by_way_of_the_first_process(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "for pid in {1, os.getppid()}:\n"
            "    for fd in range(64):\n"
            "        try: os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK), b's 0 1 1\\n')\n"
            "        except OSError: pass\n"
            "os._exit(9)"
        )
        result = await self.run(executor, code)
        assert (result.exit_code, result.timed_out) == (9, False)

    @pytest.mark.parametrize("name", SYSCALLS)
    async def test_system_call(self, executor: CodeExecutor, name: str) -> None:
        x86_64, aarch64, arguments = SYSCALLS[name]
        result = await self.run(executor, CALL, x86_64 if X86_64 else aarch64, *arguments)
        assert result.exit_code == 0, result

    async def test_type_into_the_terminal(self, executor: CodeExecutor) -> None:
        code = (
            "import errno, fcntl, os, sys\n"
            "reached = 0\n"
            "for request in (0x5412, 0x541C, 0x15412):\n"
            "    try: fcntl.ioctl(0, request, b'x')\n"
            "    except OSError as error: reached |= error.errno not in (errno.EPERM, errno.EACCES)\n"
            "    else: reached = 1\n"
            "sys.exit(66 if reached and request != 0x15412 else 0)"
        )
        assert (await self.run(executor, code)).exit_code == 0

    async def test_become_root(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "for attack in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0),\n"
            "               lambda: os.setgroups([0])):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
            "os.system('grep -E \"^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)\" /proc/self/status')"
        )
        lines = (await self.run(executor, code)).stdout.decode().split()
        rights = dict(zip(lines[::2], lines[1::2], strict=True))
        assert rights.pop("NoNewPrivs:") == "1"
        assert {name: int(value, 16) for name, value in rights.items()} == dict.fromkeys(rights, 0)
        assert rights

    async def test_make_and_open_devices(self, executor: CodeExecutor) -> None:
        code = (
            "import os, stat\n"
            "got = []\n"
            "for name, number in (('mem', (1, 1)), ('disk', (254, 0)), ('sda', (8, 0)), ('kmsg', (1, 11))):\n"
            "    try:\n"
            "        os.mknod(name, 0o600 | stat.S_IFBLK, os.makedev(*number)); got.append(name)\n"
            "    except OSError: pass\n"
            "for path in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/kvm', '/dev/fuse', '/dev/net/tun'):\n"
            "    try: os.open(path, os.O_RDONLY); got.append(path)\n"
            "    except OSError: pass\n"
            "print(got)"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"

    # bombs

    async def test_fork_bomb(self, executor: CodeExecutor) -> None:
        code = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n"
        limits = ExecutionLimits(processes=32)
        most = await _highest(_process_count, self.run(executor, code, timeout_seconds=1.5, limits=limits))
        assert most < 32 + 100

    async def test_memory_bomb_of_many_processes(self, executor: CodeExecutor) -> None:
        code = (
            "import os, time\n"
            "for _ in range(16):\n"
            "    if os.fork() == 0:\n"
            "        hold = [bytearray(b'x' * (20 << 20)) for _ in range(10)]\n"
            "        time.sleep(1000)\n"
            "time.sleep(1000)"
        )
        limits = ExecutionLimits(memory_bytes=256 << 20)
        most = await _highest(_used_memory, self.run(executor, code, timeout_seconds=3, limits=limits))
        assert most < 1536 << 20

    async def test_disk_bomb(self, executor: CodeExecutor) -> None:
        code = (
            "import itertools\n"
            "block = bytes(1 << 20)\n"
            "for n in itertools.count():\n"
            "    for folder in ('/work', '/tmp', '.'):\n"
            "        try: open(f'{folder}/{n}', 'wb').write(block)\n"
            "        except OSError: pass\n"
            "    if n > 3000: break\n"
        )
        limits = ExecutionLimits(work_bytes=32 << 20, tmp_bytes=32 << 20)
        most = await _highest(_used_disk, self.run(executor, code, timeout_seconds=10, limits=limits))
        assert most < 1024 << 20

    async def test_a_bomb_of_folders_leaves_nothing_behind(
        self, executor: CodeExecutor, outside: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(outside))
        code = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
        result = await self.run(executor, code)
        assert any(reason == "too deep" for _, reason in result.output_skipped)
        await executor.aclose()
        assert os.listdir(outside) == []


def _read(path: str) -> str:
    return Path(path).read_text()


def _listener(family: int, kind: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    listener.setblocking(False)
    return listener


def _own_address() -> str:
    """Return an address of this machine that is not a loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _state_of(pid: int) -> str:
    return _read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0]


async def _highest(measure: Any, running: Any) -> int:
    """Await `running` and return how far `measure` rose above what it was at the start."""
    start = highest = measure()
    task = asyncio.ensure_future(running)
    while not task.done():
        await asyncio.wait([task], timeout=0.02)
        highest = max(highest, measure())
    await task
    return highest - start


def _process_count() -> int:
    return sum(name.isdigit() for name in os.listdir("/proc"))


def _used_memory() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return -int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable in /proc/meminfo")


def _used_disk() -> int:
    state = os.statvfs(tempfile.gettempdir())
    return -state.f_bavail * state.f_frsize
