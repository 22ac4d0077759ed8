"""Attacks that exhaust resources of the machine."""

# ruff: noqa: D102, ASYNC230, S103 - tests: their names say what they do
from __future__ import annotations

import asyncio
import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from bough.execution.base import (
    CodeExecutor,
    ExecutionLimits,
)
from bough.testing.executor_threats.base import Threats, read_text

_HOLD = """
import ctypes, os, shutil, socket, sys, threading, time
folder = '/work' if os.path.isdir('/work') else os.getcwd()
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
open_fds = []
mappings = []

def make(kind, flags=os.O_CREAT):
    fds = []
    for number in range(5):
        name = f'{folder}/{kind}-{number}'
        try:
            fd = os.open(folder if flags == os.O_TMPFILE else name, os.O_RDWR | flags)
        except OSError:
            fd = os.open(name, os.O_RDWR | os.O_CREAT)
        if flags != os.O_TMPFILE or os.path.exists(name):
            os.unlink(name)
        os.write(fd, bytes(2 << 20))
        fds.append(fd)
    return fds

def hide(kind, how):
    reading, writing = os.pipe()
    if os.fork():
        os.read(reading, 1)
        return
    for fd in make(kind):
        os.set_inheritable(fd, True)
    how(writing)
    os.write(writing, b'x')
    time.sleep(1000)

def hide_from_proc(writing):
    libc.prctl(4, 0, 0, 0, 0)

def become_unreadable(writing):
    cat = f'{folder}/cat'
    shutil.copy(shutil.which('cat'), cat)
    os.chmod(cat, 0o111)
    os.dup2(os.open('/dev/null', os.O_WRONLY), 1)
    reading, never = os.pipe()
    os.dup2(reading, 0)
    os.set_inheritable(never, True)
    os.write(writing, b'x')
    try:
        os.execv(cat, ['cat'])
    except OSError:  # such a file cannot be executed here
        time.sleep(1000)

def keep_in_thread():
    libc.syscall(436, 1 << 20, 1 << 20, 2)  # close_range, CLOSE_RANGE_UNSHARE: a separate descriptor table
    open_fds.extend(make('thread'))
    ready.set()
    time.sleep(1000)

open_fds += make('open') + make('nameless', os.O_TMPFILE)
for fd in make('mapped'):
    mappings.append(libc.mmap(None, 4096, 1, 1, fd, 0))
    os.close(fd)
sender, receiver = socket.socketpair()
for fd in make('sent'):
    socket.send_fds(sender, [b'x'], [fd])
    os.close(fd)
ready = threading.Event()
threading.Thread(target=keep_in_thread, daemon=True).start()
ready.wait()
if sys.argv[1] == 'hide':
    hide('hidden', hide_from_proc)
    hide('unreadable', become_unreadable)
    time.sleep(1000)
time.sleep(0.3)
"""

_KEEP_ONE_PAGE = """
import ctypes, mmap, time
libc = ctypes.CDLL(None)
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.munmap.restype = ctypes.c_int
memories = []
for _ in range(20):
    memory = mmap.mmap(-1, 40 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, 40 << 20)
    libc.munmap(address + 4096, (40 << 20) - 4096)
    memories.append(memory)
    time.sleep(0.02)
"""

_MAKE_NAMES = """
import os
count = 0
try:
    while True:
        os.close(os.open(f'/tmp/{count}', os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError:
    print(count)
"""


_FILL_SOCKETS = """
import os, socket, time
reading, writing = os.pipe()
block = bytes(1 << 14)
for _ in range(16):
    if os.fork() == 0:
        total, pairs = 0, []
        for _ in range(40):
            pairs.append(socket.socketpair())
            for end in pairs[-1]:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                end.setblocking(False)
                try:
                    while True: total += end.send(block)
                except BlockingIOError: pass
        os.write(writing, total.to_bytes(8, 'big'))
        time.sleep(1000)
total = sum(int.from_bytes(os.read(reading, 8), 'big') for _ in range(16))
time.sleep(1)
print(total)
"""

_WATCH = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
for _ in range(int(sys.argv[1]) // 200 + 1):
    reading, writing = os.pipe()
    if not os.fork():
        for _ in range(200):
            if libc.inotify_init1(0) < 0: break
        os.write(writing, b'x')
        time.sleep(1000)
    os.read(reading, 1)
with open('up', 'w') as up: up.write('x')
time.sleep(1000)
"""
"""Source that creates and holds a given number of inotify instances."""

_INOTIFY_LIMIT = int(read_text("/proc/sys/fs/inotify/max_user_instances"))


class BombsThreats(Threats):
    """Attacks that exhaust resources of the machine."""

    async def test_fork_bomb(self, executor: CodeExecutor) -> None:
        code = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n"
        limits = ExecutionLimits(processes=32)
        peak = await _measure_peak(_count_processes, self.run(executor, code, timeout_seconds=1.5, limits=limits))
        assert peak < 32 + 100

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
        peak = await _measure_peak(_read_used_memory, self.run(executor, code, timeout_seconds=3, limits=limits))
        assert peak < 1536 << 20

    async def test_memory_bomb_of_pages_that_are_not_mapped(self, executor: CodeExecutor) -> None:
        """Shared memory exists as long as one of its pages is mapped, but processes are charged only mapped pages."""
        limits = ExecutionLimits(memory_bytes=128 << 20)
        running = asyncio.ensure_future(self.run(executor, _KEEP_ONE_PAGE, timeout_seconds=30, limits=limits))
        peak = await _measure_peak(_read_shared_memory, running)
        assert (await running).exit_code != 0
        assert peak < 600 << 20

    async def test_memory_bomb_of_socket_buffers(self, executor: CodeExecutor) -> None:
        """Data that was sent but not read is not charged to any process."""
        limits = ExecutionLimits(memory_bytes=128 << 20)
        result = await self.run(executor, _FILL_SOCKETS, timeout_seconds=30, limits=limits)
        assert result.killed_by != "timeout"
        assert not result.ok or int(result.stdout) < 160 << 20

    async def test_bomb_of_names(self, executor: CodeExecutor) -> None:
        limits = ExecutionLimits(work_bytes=1 << 20, tmp_bytes=1 << 20)
        result = await self.run(executor, _MAKE_NAMES, timeout_seconds=30, limits=limits)
        assert result.killed_by in ("work_bytes", "tmp_bytes") or int(result.stdout) <= 1 << 20 >> 9

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
        peak = await _measure_peak(_read_used_disk, self.run(executor, code, timeout_seconds=10, limits=limits))
        assert peak < 1024 << 20

    async def test_disk_bomb_of_files_without_names(self, executor: CodeExecutor) -> None:
        """Each of seven ways to keep a removed file uses 10 MiB. All are counted, and visible files only once."""
        limits = ExecutionLimits(work_bytes=64 << 20, file_size_bytes=2 << 20)
        result = await self.run(executor, _HOLD, "hide", timeout_seconds=30, limits=limits)
        assert result.killed_by == "work_bytes", result.stderr
        limits = ExecutionLimits(work_bytes=56 << 20, file_size_bytes=2 << 20)
        result = await self.run(executor, _HOLD, "show", timeout_seconds=30, limits=limits)
        assert (result.exit_code, result.killed_by) == (0, None), result.stderr

    async def test_a_deep_workspace_is_measured_like_any_other(self, executor: CodeExecutor) -> None:
        code = (
            "import os, time\n"
            "for _ in range(200):\n"
            "    os.mkdir('d'); os.chdir('d')\n"
            "open('f', 'w').write('kept')\n"
            "time.sleep(0.3)"
        )
        assert (await self.run(executor, code)).killed_by is None
        bomb = code.replace("time.sleep(0.3)", "open('g', 'wb').write(bytes(48 << 20)); time.sleep(60)")
        result = await self.run(executor, bomb, timeout_seconds=20, limits=ExecutionLimits(work_bytes=32 << 20))
        assert result.killed_by == "work_bytes"

    async def test_a_bomb_of_folders_leaves_nothing_behind(
        self, executor: CodeExecutor, outside: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(outside))
        code = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
        result = await self.run(executor, code)
        assert any(reason == "too deep" for _, reason in result.output_skipped)
        await executor.aclose()
        assert os.listdir(outside) == []

    @pytest.mark.skipif(_INOTIFY_LIMIT > 4000, reason="more than the processes of a run can hold")
    async def test_use_up_the_inotify_instances_of_the_caller(self, executor: CodeExecutor, workspace: Path) -> None:
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        with open(workspace / "up", "r+b", buffering=0) as up:
            attack = self.run(executor, _WATCH, _INOTIFY_LIMIT, workspace=str(workspace))
            running = asyncio.ensure_future(attack)
            reading = asyncio.ensure_future(anyio.wait_readable(up))
            await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            try:
                assert not running.done(), running
                fd = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
                assert fd >= 0, "the caller has no instance left"
                os.close(fd)
            finally:
                reading.cancel()
                running.cancel()
                await asyncio.wait([running])


async def _measure_peak(measure: Any, running: Any) -> int:
    """Await `running` and return the largest increase of `measure` since the start."""
    start = highest = measure()
    task = asyncio.ensure_future(running)
    while not task.done():
        # A sample every 20 ms; shorter peaks may be missed.
        await asyncio.wait([task], timeout=0.02)
        highest = max(highest, measure())
    await task
    return highest - start


def _count_processes() -> int:
    return sum(name.isdigit() for name in os.listdir("/proc"))


def _read_used_memory() -> int:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return -int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable in /proc/meminfo")


def _read_shared_memory() -> int:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Shmem in /proc/meminfo")


def _read_used_disk() -> int:
    state = os.statvfs(tempfile.gettempdir())
    return -state.f_bavail * state.f_frsize
