"""Attacks on other processes and the kernel."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import platform
import subprocess

import pytest

from bough.execution.base import (
    CodeExecutor,
)
from bough.testing.executor_threats.base import Threats, read_text

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
"""System calls that scripts do not need, with their numbers and harmless arguments."""

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
"""Source that makes one system call and exits with 66 if the kernel accepts it."""


class KernelThreats(Threats):
    """Attacks on other processes and the kernel."""

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
        assert _read_process_state(bystander.pid) == "S"

    async def test_kill_everything(self, executor: CodeExecutor, bystander: subprocess.Popen[bytes]) -> None:
        if executor.isolation == 0:
            pytest.fail("without a sandbox this attack is not even tried")
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

    async def test_make_the_caller_wait_for_a_lease(self, executor: CodeExecutor) -> None:
        code = (
            "import fcntl, os, sys\n"
            "open('file', 'w').close()\n"
            "fd = os.open('file', os.O_RDONLY)\n"
            "for command in (fcntl.F_SETLEASE, 1040, 1 << 32 | fcntl.F_SETLEASE):\n"
            "    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):\n"
            "        try: fcntl.fcntl(fd, command, kind)\n"
            "        except (OSError, OverflowError): continue\n"
            "        print('leased by', command, kind)\n"
            "sys.exit(fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_UNLCK)"
        )
        result = await self.run(executor, code)
        assert (result.exit_code, result.stdout) == (0, b""), result.stderr

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
            "opened = []\n"
            "for name, number in (('mem', (1, 1)), ('disk', (254, 0)), ('sda', (8, 0)), ('kmsg', (1, 11))):\n"
            "    try:\n"
            "        os.mknod(name, 0o600 | stat.S_IFBLK, os.makedev(*number)); opened.append(name)\n"
            "    except OSError: pass\n"
            "for path in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/kvm', '/dev/fuse', '/dev/net/tun'):\n"
            "    try: os.open(path, os.O_RDONLY); opened.append(path)\n"
            "    except OSError: pass\n"
            "print(opened)"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"


def _read_process_state(pid: int) -> str:
    return read_text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0]
