"""Attacks that limit or reschedule other processes."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import os
import resource
import subprocess

import pytest

from bough.execution.base import CodeExecutor
from bough.testing.executor_threats.base import Threats
from bough.testing.executor_threats.kernel import X86_64

_BOUND = """
import os, resource, sys
def by_user():
    os.setpriority(os.PRIO_USER, 0, 19)
for pid in {*map(int, sys.argv[1:]), os.getppid(), 1}:
    for attack in (
        lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),
        lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
        lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.sched_setparam(pid, os.sched_param(0)),
        by_user,
    ):
        try: attack()
        except OSError as error: continue
        if pid in (1, os.getppid()) and attack is not by_user: print('done to', pid)
"""

_OWN = """
import os, resource
lower = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
for pid in (0, os.getpid()):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (50, 50))
    os.sched_setaffinity(pid, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, pid, lower)
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.getpriority(os.PRIO_PROCESS, 0) == lower)
"""

_FIRST_PROCESS = """
import os, sys
flags, *names = sys.argv[1:]
for pid in {1, os.getppid()}:
    for name in names:
        try: os.close(os.open(f'/proc/{pid}/{name}', int(flags)))
        except OSError: continue
        print('open:', pid, name)
"""

_OLD_CALL = """
import ctypes, mmap
code = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])  # getpid as a 32-bit program calls it
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print(call())
"""


class ProcessThreats(Threats):
    """Attacks on processes of the host, and on the first process of the sandbox."""

    async def test_bound_and_order_other_processes(
        self, executor: CodeExecutor, bystander: subprocess.Popen[bytes]
    ) -> None:
        initial = [_read_scheduling(pid) for pid in (bystander.pid, os.getpid())]
        result = await self.run(executor, _BOUND, bystander.pid, os.getpid())
        assert (result.exit_code, result.stdout) == (0, b""), result.stderr
        assert [_read_scheduling(pid) for pid in (bystander.pid, os.getpid())] == initial

    async def test_bounding_oneself_works(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, _OWN)
        assert result.stdout == b"(50, 50) True\n", result.stderr

    async def test_change_the_first_process(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, _FIRST_PROCESS, os.O_RDWR, "mem", "oom_score_adj", "coredump_filter")
        assert (result.exit_code, result.stdout) == (0, b"")

    async def test_read_the_first_process(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, _FIRST_PROCESS, os.O_RDONLY, "mem", "environ", "maps")
        assert (result.exit_code, result.stdout) == (0, b"")

    @pytest.mark.skipif(not X86_64, reason="only there a program can make calls of another architecture")
    async def test_system_call_of_another_architecture(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, _OLD_CALL)).stdout == b"-38\n"


def _read_scheduling(pid: int) -> tuple[object, ...]:
    limits = [resource.prlimit(pid, kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
    priority = os.getpriority(os.PRIO_PROCESS, pid)
    return (*limits, priority, os.sched_getaffinity(pid), os.sched_getscheduler(pid))
