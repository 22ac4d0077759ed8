"""One offline run end to end (prompt, plan, sandboxed script, answer) against the bare script; and its interruption.

The run is measured as a command, which imports everything, and in a process that has imported everything. The
interrupted script ignores signals and has started daemons. Its interruption takes until the status is `paused` and all
daemons are gone. The floor kills the process group of the same script without a sandbox, which leaves the daemons
alive, because they changed their process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Figure, compare, compare_async, in_turns_async, measure_seconds_async

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPT = EXAMPLES / "skills" / "csv-profile" / "scripts" / "profile.py"
WORKSPACE = EXAMPLES / "workspace"
PROMPT = "profile sales.csv"
SCRIPTS = 50


def run_script_bare() -> None:
    """Run the script without bough."""
    subprocess.run([sys.executable, SCRIPT, "sales.csv"], cwd=WORKSPACE, check=True, stdout=subprocess.DEVNULL)


def run_command_line(home: str) -> None:
    """Run the prompt with the command line."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "BOUGH_HOME": home,
        "BOUGH_SKILL_ROOTS": str(EXAMPLES / "skills"),
        "BOUGH_MODEL": "offline",
    }
    argv = [str(Path(sys.executable).with_name("bough")), "run", PROMPT]
    subprocess.run(argv, cwd=WORKSPACE, env=environment, check=True, stdin=subprocess.DEVNULL, capture_output=True)


async def run_script_bare_async() -> None:
    """Run the script from an event loop, without bough."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, "sales.csv", cwd=WORKSPACE, stdout=subprocess.PIPE
    )
    await process.communicate()


async def measure_in_process(home: str) -> None:
    """Measure runs in one process, each a new conversation in one durable store."""
    from bough import AgentSpec, AsyncConversation, LocalSandboxCodeExecutor, Settings, open_store

    settings = Settings.load(home)
    store = await open_store(settings.store)
    executor = LocalSandboxCodeExecutor()
    agent = AgentSpec(model="offline", skill_roots=(EXAMPLES / "skills",))

    async def run() -> None:
        conversation = await AsyncConversation.create(
            agent, workspace=WORKSPACE, store=store, executor=executor, settings=settings
        )
        async with conversation:
            await conversation.send_message(PROMPT)
            result = await conversation.run()
        if "180 rows" not in result.output:
            raise RuntimeError(result.output)

    try:
        await compare_async("run: one conversation in a warm process", run, run_script_bare_async)
    finally:
        await executor.aclose()
        await store.aclose()


STUBBORN = """
trap '' TERM INT HUP QUIT
for n in 1 2 3; do setsid sh -c 'trap "" TERM INT HUP; echo $$ >> daemons; exec sleep 30' >/dev/null 2>&1 & done
while [ "$({ wc -l < daemons; } 2>/dev/null)" != 3 ]; do :; done
touch started
while :; do sleep 30; done
"""


async def measure_interruptions(home: str) -> None:
    """Measure how long a script that ignores signals continues after an interrupt."""
    from bough import AgentSpec, AsyncConversation, LocalSandboxCodeExecutor, Settings, open_store
    from bough.testing import ScriptedModel, tool_call

    store, executor = await open_store("memory:"), LocalSandboxCodeExecutor()

    async def wait_for_start(folder: Path) -> None:
        while not (folder / "started").exists():
            await asyncio.sleep(0.002)

    async def measure_interrupt() -> float:
        with tempfile.TemporaryDirectory() as folder:
            spec = AgentSpec(
                model=ScriptedModel([tool_call("run_command", command=STUBBORN)]),
                skills=(),
                workspace_access="run",
            )
            conversation = await AsyncConversation.create(
                spec, workspace=folder, store=store, executor=executor, settings=Settings.load(home)
            )
            await conversation.send_message("go")
            run = asyncio.create_task(conversation.run())
            await wait_for_start(Path(folder))
            taken = await measure_seconds_async(conversation.interrupt)
            if (await run).status != "paused":
                raise RuntimeError("it was not interrupted")
            return taken

    async def measure_kill() -> float:
        with tempfile.TemporaryDirectory() as folder:
            process = await asyncio.create_subprocess_exec("sh", "-c", STUBBORN, cwd=folder, start_new_session=True)
            await wait_for_start(Path(folder))

            async def kill() -> None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

            taken = await measure_seconds_async(kill)
            for daemon in (Path(folder) / "daemons").read_text().split():
                os.kill(int(daemon), signal.SIGKILL)
            return taken

    try:
        values, floors = await in_turns_async(measure_interrupt, measure_kill, rounds=5)
    finally:
        await executor.aclose()
        await store.aclose()
    name = "run: interrupt of a script that ignores signals and left daemons, until all are gone"
    Figure.of(name, [1000 * v for v in values], [1000 * f for f in floors], unit="ms").report()


async def measure_scripts(home: str) -> None:
    """Measure the warm scripts of one conversation against as many cold ones, and how many sandboxes were started."""
    from bough import LocalSandboxCodeExecutor
    from bough.skills.read.parse import read_skill
    from bough.skills.run.scripts import run_script
    from bough.skills.trust.snapshot import SnapshotStore

    folder = SCRIPT.parents[1]
    skill = read_skill(folder / "SKILL.md")
    snapshot = SnapshotStore(Path(home) / "snapshots").take(folder, allow_faults=True)

    async def run(executor: LocalSandboxCodeExecutor, execution_id: str | None) -> None:
        for _ in range(SCRIPTS):
            done = await run_script(
                skill,
                executor,
                SCRIPT.name,
                ["sales.csv"],
                workspace=WORKSPACE,
                execution_id=execution_id,
                snapshot=snapshot,
            )
            if done.status != "success":
                raise RuntimeError(done.details)

    async with LocalSandboxCodeExecutor() as warm, LocalSandboxCodeExecutor() as cold:
        await compare_async(
            f"run: one of {SCRIPTS} scripts of a conversation, to a cold one",
            lambda: run(warm, "conversation"),
            lambda: run(cold, None),
            per=SCRIPTS,
            rounds=5,
        )
        started = warm.counts["cold"] + warm.counts["zygotes"]
        name = f"run: sandboxes that were started for {warm.counts['cold'] + warm.counts['warm']} scripts"
        Figure(name, started, "", cold.counts["cold"], round(started / cold.counts["cold"], 4), 1).report()


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(measure_scripts(home))
        compare("run: bough run, a process of its own", lambda: run_command_line(home), run_script_bare)
        asyncio.run(measure_in_process(home))
        asyncio.run(measure_interruptions(home))


if __name__ == "__main__":
    main()
