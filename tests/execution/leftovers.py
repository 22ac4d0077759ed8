"""What executors leave on a machine, and how often the tests make them leave something.

All counts can be set: `BOUGH_RUNS=1000 BOUGH_CANCELS=100 BOUGH_IDS=50 make test SLOW=1 TESTS="-k leave_nothing"`.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

from bough.errors import Conflict
from bough.execution import CodeExecutionInput
from bough.execution.base import CodeExecutor

_COUNTS = {
    name: int(value) for name, value in os.environ.items() if name in ("BOUGH_RUNS", "BOUGH_CANCELS", "BOUGH_IDS")
}
"""Read at the import: tests are run without the settings of whoever starts them."""


def count_of(name: str, usual: int) -> int:
    """Return how often something is done, by the environment or as usual."""
    return _COUNTS.get(name, usual)


def mounts_of_all() -> str:
    """Return the mounts that any process sees, those of other namespaces included; not of those that end meanwhile."""
    found: dict[str, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[os.readlink(folder / "ns" / "mnt")] = (folder / "mountinfo").read_text()
    return "\n".join(found.values())


def traces(token_folder: Path) -> set[str]:
    """Return what is in the temporary folder, and the control groups that carry its names."""
    names = set(os.listdir(token_folder))
    for folder, groups, _ in os.walk("/sys/fs/cgroup"):
        names |= {os.path.join(folder, group) for group in groups if group.rpartition("-")[0] in names}
    return names


def below(pid: int) -> set[int]:
    """Return the processes that descend from `pid`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, todo = set[int](), [pid]
    while todo:
        more = children.get(todo.pop(), [])
        found.update(more)
        todo += more
    return found


def memory_bytes() -> int:
    """Return what this process holds in memory alone."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def cancel_at_random_moments(
    executor: CodeExecutor, count: int, *, lives_on: bool, seed: str, within_seconds: float = 0.2
) -> list[bool]:
    """Start runs, four at a time, and cancel each at a random moment; return which of them were cancelled."""
    moments = random.Random(seed)

    async def cancel_one(number: int) -> bool:
        id = f"id{number % 4}" if lives_on else None
        running = asyncio.ensure_future(
            executor.execute(CodeExecutionInput(code="import time; time.sleep(0.01)", execution_id=id))
        )
        await asyncio.wait(
            [running], timeout=moments.random() * within_seconds
        )  # a random moment, nothing is waited for
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled()

    found: list[bool] = []
    for begin in range(0, count, 4):
        found += await asyncio.gather(*(cancel_one(number) for number in range(begin, min(begin + 4, count))))
    return found


async def run_ids_at_once(executor: CodeExecutor, count: int) -> int:
    """Run one program of each of so many ids at once; return how many ran, the others were told to wait."""
    requests = [CodeExecutionInput(code=f"x = {n}; print(x)", execution_id=f"id{n}") for n in range(count)]
    found = await asyncio.gather(*(executor.execute(request) for request in requests), return_exceptions=True)
    for number, each in enumerate(found):
        if isinstance(each, BaseException):
            assert isinstance(each, Conflict), each
        else:
            assert (each.stdout, each.state_lost) == (b"%d\n" % number, False), each.stderr
    return sum(not isinstance(each, BaseException) for each in found)
