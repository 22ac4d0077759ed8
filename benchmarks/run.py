"""One offline run end to end (prompt, plan, sandboxed script, answer) against the bare script.

Once as a command, which has everything to import, and once in a process that has done so.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import compare, compare_async

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPT = EXAMPLES / "skills" / "csv-profile" / "scripts" / "profile.py"
WORKSPACE = EXAMPLES / "workspace"
PROMPT = "profile sales.csv"


def bare() -> None:
    """Run the script as anyone would, without bough."""
    subprocess.run([sys.executable, SCRIPT, "sales.csv"], cwd=WORKSPACE, check=True, stdout=subprocess.DEVNULL)


def command(home: str) -> None:
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


async def bare_async() -> None:
    """Run the script from an event loop, without bough."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, "sales.csv", cwd=WORKSPACE, stdout=subprocess.PIPE
    )
    await process.communicate()


async def in_process(home: str) -> None:
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
        await compare_async("run: one conversation in a warm process", run, bare_async)
    finally:
        await executor.aclose()
        await store.aclose()


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as home:
        compare("run: bough run, a process of its own", lambda: command(home), bare)
        asyncio.run(in_process(home))


if __name__ == "__main__":
    main()
