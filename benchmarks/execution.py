"""What running a script in the sandbox costs, against a bare `python3 -I -S -c 'print(1)'` child process.

That floor has no wall around it. For the cold run there is a second one, which has: the same interpreter behind a plain
`bwrap` with every namespace, without a filter, bounds, a first process, files or anything that is collected; and what
that costs against the first floor, which nothing that starts bubblewrap can go below.

Landlock, the wall that is left where bubblewrap is not installed, has four rows: a cold run against a
bare interpreter and against `sandlock` that only runs one, what that costs itself, and sixteen at once, which is held
against bubblewrap. Decision 11 says where its time goes.

Figures: a cold run, a run that repeats with an `execution_id`, a call into a stateful interpreter, 50 runs at once,
100 MB of output (time, and how far the caller's memory grows), how late a timeout comes, and how long a script takes to
be over that leaves daemons behind.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import sandlock

from bough.execution import (
    CodeExecutionInput,
    CodeExecutionResult,
    ContainerCodeExecutor,
    Isolation,
    LocalSandboxCodeExecutor,
)
from bough.execution.base import CodeExecutor
from bough.testing.docker_engine import engine, make_image, missing
from harness import Figure, compare_async, in_turns_async, seconds_async

PYTHON = "/usr/bin/python3"
ROUNDS = 21
TIMEOUT_SECONDS = 0.3
PLAIN_BUBBLEWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--"),
)

DAEMONS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(1000)
print(1)
"""


async def bare() -> None:
    """Run a bare interpreter; the floor."""
    await asyncio.to_thread(
        subprocess.run, [PYTHON, "-I", "-S", "-c", "print(1)"], check=True, stdout=subprocess.DEVNULL
    )


async def plain() -> None:
    """Run a bare interpreter behind a plain bubblewrap; the floor with a wall."""
    command = [*PLAIN_BUBBLEWRAP, PYTHON, "-I", "-S", "-c", "print(1)"]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


def plain_sandlock(work: str, tmp: str) -> None:
    """Run a bare interpreter by a sandlock that is loaded; the floor of the wall without namespaces."""
    wall = sandlock.Sandbox(
        chroot="/",
        fs_mount={"/work": work, "/tmp": tmp},
        fs_readable=["/usr", "/bin", "/lib", "/lib64", "/proc", "/dev/null", "/dev/urandom"],
        fs_writable=["/work", "/tmp"],
        cwd="/work",
        clean_env=True,
    )
    result = wall.run([PYTHON, "-I", "-S", "-c", "print(1)"], timeout=10)
    if not result.success:
        raise RuntimeError(result)


async def ok(executor: CodeExecutor, code: str, **request: object) -> CodeExecutionResult:
    """Run code that has to end well."""
    result = await executor.execute(CodeExecutionInput(code=code, **request))  # type: ignore[arg-type]
    if not result.ok:
        raise RuntimeError(result)
    return result


async def overshoot(executor: LocalSandboxCodeExecutor, code: str) -> float:
    """Return by how many seconds a timed-out run is longer than its timeout."""
    request = CodeExecutionInput(code=code, timeout_seconds=TIMEOUT_SECONDS)
    taken = await seconds_async(lambda: executor.execute(request))
    return taken - TIMEOUT_SECONDS


async def in_container() -> None:
    """Print the figure of a container run, where an engine can be had."""
    if lacking := missing():
        print(f"# no container figure: {lacking}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, engine(Path(folder)) as host:
        executor = ContainerCodeExecutor(make_image(host), docker_host=host)
        await compare_async("execution: container", lambda: ok(executor, "print(1)"), bare, rounds=5)
        await executor.aclose()


async def behind_landlock(bubblewrap: CodeExecutor) -> None:
    """Print the figures of the wall that needs nothing installed."""
    executor = LocalSandboxCodeExecutor()
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as nothing:
        os.environ["PATH"] = nothing  # so that no bubblewrap is found when the wall is chosen
        try:
            reached = (await ok(executor, "print(1)")).isolation
        finally:
            os.environ["PATH"] = path
    if reached != Isolation.LANDLOCK:
        raise RuntimeError(f"Landlock was asked for, {reached.name} was reached")

    async def sixteen(runs: CodeExecutor) -> None:
        await asyncio.gather(*(ok(runs, "print(1)") for _ in range(16)))

    executor.supervisor.start()  # as the second run does
    if executor.supervisor.control is None:
        raise RuntimeError("nothing forks supervisors")
    await asyncio.to_thread(select.select, [executor.supervisor.control], [], [])
    await compare_async("execution: cold, Landlock", lambda: ok(executor, "print(1)"), bare, rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as tmp:

        async def floor() -> None:
            await asyncio.to_thread(plain_sandlock, work, tmp)

        await compare_async(
            "execution: cold, Landlock, to plain sandlock", lambda: ok(executor, "print(1)"), floor, rounds=ROUNDS
        )
        await compare_async("execution: plain sandlock", floor, bare, rounds=ROUNDS)
    await compare_async(
        "execution: sixteen at once, Landlock", lambda: sixteen(executor), lambda: sixteen(bubblewrap), rounds=5
    )
    await executor.aclose()


async def main() -> None:
    """Print the figures."""
    executor = LocalSandboxCodeExecutor()
    await ok(executor, "print(1)")
    await compare_async("execution: cold", lambda: ok(executor, "print(1)"), bare, rounds=ROUNDS)
    await compare_async("execution: cold, to plain bubblewrap", lambda: ok(executor, "print(1)"), plain, rounds=ROUNDS)
    await compare_async("execution: plain bubblewrap", plain, bare, rounds=ROUNDS)

    repeat = {"execution_id": "benchmark"}
    if not await executor.warm_up(CodeExecutionInput(code="print(1)", **repeat)):
        raise RuntimeError("no warm sandbox here")
    await compare_async("execution: warm", lambda: ok(executor, "print(1)", **repeat), bare, rounds=ROUNDS)
    stateful = LocalSandboxCodeExecutor(stateful=True)
    await compare_async("execution: stateful", lambda: ok(stateful, "print(1)", **repeat), bare, rounds=ROUNDS)
    await stateful.aclose()
    await behind_landlock(executor)
    await in_container()

    async def many() -> None:
        await asyncio.gather(*(ok(executor, "print(1)") for _ in range(50)))

    async def many_bare() -> None:
        await asyncio.gather(*(bare() for _ in range(50)))

    await compare_async("execution: one of 50 at once", many, many_bare, per=50, rounds=5)
    big = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)"
    await compare_async("execution: 100 MB of output", lambda: ok(executor, big), bare, rounds=5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await ok(executor, big)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    Figure("execution: growth of the caller by 100 MB of output", round(grown, 2), "MB", None, None, 1).report()
    values, floors = await in_turns_async(
        lambda: overshoot(executor, "import time; time.sleep(1000)"), lambda: seconds_async(bare)
    )
    Figure.of("execution: timeout overshoot", [v * 1e3 for v in values], [f * 1e3 for f in floors], unit="ms").report()
    await compare_async("execution: three daemons left behind", lambda: ok(executor, DAEMONS), bare)
    await executor.aclose()


if __name__ == "__main__":
    asyncio.run(main())
