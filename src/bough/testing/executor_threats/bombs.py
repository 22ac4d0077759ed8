"""Attacks: using up the machine."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bough.execution.base import (
    CodeExecutor,
    ExecutionLimits,
)
from bough.testing.executor_threats.base import Threats, read_text


class BombsThreats(Threats):
    """Attacks by using up the machine."""

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
        most = await _highest(_read_used_memory, self.run(executor, code, timeout_seconds=3, limits=limits))
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
        most = await _highest(_read_used_disk, self.run(executor, code, timeout_seconds=10, limits=limits))
        assert most < 1024 << 20

    async def test_disk_bomb_of_files_without_names(self, executor: CodeExecutor) -> None:
        code = (
            "import os, time\n"
            "held = []\n"
            "for n in range(256):\n"
            "    held.append(open(f'/work/{n}' if os.path.isdir('/work') else str(n), 'wb'))\n"
            "    os.unlink(held[-1].name)\n"
            "    held[-1].write(bytes(1 << 20))\n"
            "    held[-1].flush()\n"
            "time.sleep(60)"
        )
        limits = ExecutionLimits(work_bytes=32 << 20, open_files=1024)
        result = await self.run(executor, code, timeout_seconds=20, limits=limits)
        assert result.killed_by == "work_bytes"

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


def _read_used_memory() -> int:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return -int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable in /proc/meminfo")


def _read_used_disk() -> int:
    state = os.statvfs(tempfile.gettempdir())
    return -state.f_bavail * state.f_frsize
