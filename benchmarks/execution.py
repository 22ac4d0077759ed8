"""What running a script in the sandbox costs, against a bare `python3 -I -S -c 'print(1)'` child process.

That floor has no sandbox. The cold run has a second floor, which has one: the same interpreter in a plain `bwrap` with
every namespace, but without a filter, limits, a first process, files, or collected results. A row of its own compares
this floor with the first one, because no run that starts bubblewrap can cost less.

Landlock is the sandbox where bubblewrap is not installed. It has four rows: a cold run against a bare interpreter, a
cold run against `sandlock` that only runs the interpreter, that `sandlock` against the bare interpreter, and sixteen
runs at once against bubblewrap. Decision 11 says where its time goes.

Figures: a cold run, a run that repeats with an `execution_id`, a call into a stateful interpreter, 50 runs at once,
100 MB of output (its time, and how much the caller's memory grows), how late a timeout comes, and how long it takes to
end a script that leaves daemons behind.
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
from harness import Figure, compare_async, in_turns_async, measure_seconds_async

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


async def run_bare() -> None:
    """Run a bare interpreter. This is the floor."""
    await asyncio.to_thread(
        subprocess.run, [PYTHON, "-I", "-S", "-c", "print(1)"], check=True, stdout=subprocess.DEVNULL
    )


async def run_in_plain_bubblewrap() -> None:
    """Run a bare interpreter in a plain bubblewrap. This is the floor with a sandbox."""
    command = [*PLAIN_BUBBLEWRAP, PYTHON, "-I", "-S", "-c", "print(1)"]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


def run_in_plain_sandlock(work: str, tmp: str) -> None:
    """Run a bare interpreter with sandlock, already loaded. This is the floor of the sandbox without namespaces."""
    sandbox = sandlock.Sandbox(
        chroot="/",
        fs_mount={"/work": work, "/tmp": tmp},
        fs_readable=["/usr", "/bin", "/lib", "/lib64", "/proc", "/dev/null", "/dev/urandom"],
        fs_writable=["/work", "/tmp"],
        cwd="/work",
        clean_env=True,
    )
    result = sandbox.run([PYTHON, "-I", "-S", "-c", "print(1)"], timeout=10)
    if not result.success:
        raise RuntimeError(result)


async def run_ok(executor: CodeExecutor, code: str, **request: object) -> CodeExecutionResult:
    """Run code, and raise `RuntimeError` unless it succeeds."""
    result = await executor.execute(CodeExecutionInput(code=code, **request))  # type: ignore[arg-type]
    if not result.ok:
        raise RuntimeError(result)
    return result


async def measure_overshoot(executor: LocalSandboxCodeExecutor, code: str) -> float:
    """Return by how many seconds a timed-out run is longer than its timeout."""
    request = CodeExecutionInput(code=code, timeout_seconds=TIMEOUT_SECONDS)
    taken = await measure_seconds_async(lambda: executor.execute(request))
    return taken - TIMEOUT_SECONDS


async def measure_container() -> None:
    """Print the figure of a run in a container, if an engine can be started."""
    if reason := missing():
        print(f"# no container figure: {reason}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, engine(Path(folder)) as host:
        executor = ContainerCodeExecutor(make_image(host), docker_host=host)
        await compare_async("execution: container", lambda: run_ok(executor, "print(1)"), run_bare, rounds=5)
        await executor.aclose()


async def measure_landlock(bubblewrap: CodeExecutor) -> None:
    """Print the figures of the sandbox that needs no installed program."""
    executor = LocalSandboxCodeExecutor()
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as empty_folder:
        os.environ["PATH"] = empty_folder  # so that no bubblewrap is found when the isolation is chosen
        try:
            reached = (await run_ok(executor, "print(1)")).isolation
        finally:
            os.environ["PATH"] = path
    if reached != Isolation.LANDLOCK:
        raise RuntimeError(f"Landlock was asked for, {reached.name} was reached")

    async def run_sixteen(runs: CodeExecutor) -> None:
        await asyncio.gather(*(run_ok(runs, "print(1)") for _ in range(16)))

    executor.supervisor.start()  # as the second run does
    if executor.supervisor.control is None:
        raise RuntimeError("nothing forks supervisors")
    await asyncio.to_thread(select.select, [executor.supervisor.control], [], [])
    await compare_async("execution: cold, Landlock", lambda: run_ok(executor, "print(1)"), run_bare, rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as tmp:

        async def floor() -> None:
            await asyncio.to_thread(run_in_plain_sandlock, work, tmp)

        await compare_async(
            "execution: cold, Landlock, to plain sandlock", lambda: run_ok(executor, "print(1)"), floor, rounds=ROUNDS
        )
        await compare_async("execution: plain sandlock", floor, run_bare, rounds=ROUNDS)
    await compare_async(
        "execution: sixteen at once, Landlock", lambda: run_sixteen(executor), lambda: run_sixteen(bubblewrap), rounds=5
    )
    await executor.aclose()


async def main() -> None:
    """Print the figures."""
    executor = LocalSandboxCodeExecutor()
    await run_ok(executor, "print(1)")
    await compare_async("execution: cold", lambda: run_ok(executor, "print(1)"), run_bare, rounds=ROUNDS)
    await compare_async(
        "execution: cold, to plain bubblewrap",
        lambda: run_ok(executor, "print(1)"),
        run_in_plain_bubblewrap,
        rounds=ROUNDS,
    )
    await compare_async("execution: plain bubblewrap", run_in_plain_bubblewrap, run_bare, rounds=ROUNDS)

    repeat = {"execution_id": "benchmark"}
    if not await executor.warm_up(CodeExecutionInput(code="print(1)", **repeat)):
        raise RuntimeError("no warm sandbox here")
    await compare_async("execution: warm", lambda: run_ok(executor, "print(1)", **repeat), run_bare, rounds=ROUNDS)
    stateful = LocalSandboxCodeExecutor(stateful=True)
    await compare_async("execution: stateful", lambda: run_ok(stateful, "print(1)", **repeat), run_bare, rounds=ROUNDS)
    await stateful.aclose()
    await measure_landlock(executor)
    await measure_container()

    async def run_many() -> None:
        await asyncio.gather(*(run_ok(executor, "print(1)") for _ in range(50)))

    async def run_many_bare() -> None:
        await asyncio.gather(*(run_bare() for _ in range(50)))

    await compare_async("execution: one of 50 at once", run_many, run_many_bare, per=50, rounds=5)
    big = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)"
    await compare_async("execution: 100 MB of output", lambda: run_ok(executor, big), run_bare, rounds=5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await run_ok(executor, big)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    Figure("execution: growth of the caller by 100 MB of output", round(growth, 2), "MB", None, None, 1).report()
    values, floors = await in_turns_async(
        lambda: measure_overshoot(executor, "import time; time.sleep(1000)"), lambda: measure_seconds_async(run_bare)
    )
    Figure.of("execution: timeout overshoot", [v * 1e3 for v in values], [f * 1e3 for f in floors], unit="ms").report()
    await compare_async("execution: three daemons left behind", lambda: run_ok(executor, DAEMONS), run_bare)
    await executor.aclose()


if __name__ == "__main__":
    asyncio.run(main())
