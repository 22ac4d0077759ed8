"""Attacks on the channels between the host and an interpreter."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import os
from contextlib import suppress

import pytest

from bough.errors import ExecutorError
from bough.execution.base import CodeExecutor
from bough.testing.executor_threats.base import Threats

_SEND_DESCRIPTORS = """
import array, os, socket
null = os.open('/dev/null', os.O_RDONLY)
for fd in range(3, 4096):
    if fd == null: continue
    try: os.fstat(fd)
    except OSError: continue
    for _ in range(8):
        try:
            with socket.socket(fileno=os.dup(fd)) as channel:
                channel.setblocking(False)
                channel.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [null] * 4))])
        except OSError: break
"""

_FORGE_THE_END = """
import os, socket, stat, sys, time
def sockets():
    for fd in range(3, 4096):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode): yield fd
        except OSError: continue
token = b''
if 'read' in sys.argv:
    for fd in sockets():
        with socket.socket(fileno=os.dup(fd)) as channel:
            try: token = b' ' + channel.recv(64, socket.MSG_DONTWAIT)
            except OSError: continue
for fd in sockets():
    for words in (b'e 5\\n', b'k\\n', b's 0 1 1' + token + b'\\n')['end' in sys.argv and 2:]:
        try: os.write(fd, words)
        except OSError: continue
time.sleep(0.2)
print('to the end')
sys.exit(7)
"""
"""Source that forges the end of a call, optionally with the token read from a socket, and continues."""


class SessionThreats(Threats):
    """Attacks on host descriptors held by an interpreter; they do nothing if it holds none."""

    async def test_closing_every_descriptor_does_not_stop_the_clock(self, executor: CodeExecutor) -> None:
        code = "import os, time\nos.closerange(3, 4096)\nwhile True: time.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.0)
        assert (result.timed_out, result.killed_by) == (True, "timeout")

    async def test_closing_every_descriptor_lets_the_program_end(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "import os, sys\nos.closerange(3, 4096)\nsys.exit(7)", timeout_seconds=20.0)
        assert (result.exit_code, result.timed_out) == (7, False)

    async def test_putting_other_files_over_every_descriptor(self, executor: CodeExecutor) -> None:
        code = (
            "import os, time\n"
            "null = os.open('/dev/null', os.O_RDWR)\n"
            "for fd in range(3, 200):\n"
            "    try:\n"
            "        if fd != null: os.dup2(null, fd)\n"
            "    except OSError: pass\n"
            "while True: time.sleep(1000)"
        )
        assert (await self.run(executor, code, timeout_seconds=2.0)).timed_out

    async def test_descriptors_sent_to_the_host_are_not_kept(self, executor: CodeExecutor) -> None:
        await self.run(executor, "pass")
        initial_count = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await self.run(executor, _SEND_DESCRIPTORS, timeout_seconds=20.0)
        await executor.aclose()
        assert len(os.listdir("/proc/self/fd")) <= initial_count

    async def test_a_forged_end_ends_nothing(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, _FORGE_THE_END, "end", timeout_seconds=20.0)
        assert (result.exit_code, result.stdout) == (7, b"to the end\n")
        assert (await self.run(executor, "print('next')", timeout_seconds=20.0)).stdout == b"next\n"

    @pytest.mark.parametrize("forged", ["all", "end read"])
    async def test_a_forged_control_word_does_not_fail_the_next_run(self, executor: CodeExecutor, forged: str) -> None:
        with suppress(ExecutorError):
            await self.run(executor, _FORGE_THE_END, *forged.split(), timeout_seconds=20.0)
        result = await self.run(executor, "print('next')", timeout_seconds=20.0)
        assert (result.exit_code, result.stdout) == (0, b"next\n"), result
